"""Reads the sources of a command: the arm that NAME=SOURCE names, and the paths of a pattern."""

import glob
import os
import re
from collections.abc import Iterable
from pathlib import Path

from ampcompare.errors import UserError
from ampcompare.runs.wandb_api import API_PREFIX


def group_by_arm(sources: Iterable[str | Path]) -> dict[str, list[str]]:
    """Return the sources of each arm, without their names; "" is the arm of sources without a name.

    Raises:
        UserError: Some sources have a name, and others have none. Or a source is a part of NAME=SOURCE.
    """
    arms: dict[str, list[str]] = {}
    for text in map(str, sources):
        arm, source = _split_arm(text)
        arms.setdefault(arm, []).extend(_expand(source))
        if arms[arm][-1] == source and not os.path.lexists(source):
            _check_separators(text)
    if "" in arms and len(arms) > 1:
        nameless = arms[""][0]
        names = ", ".join(arm for arm in arms if arm)
        raise UserError(
            f"{nameless}: has no name, but the other sources have ({names}); name it too: NAME={nameless}"
        )
    return arms


def _check_separators(text: str) -> None:
    """Refuse a source that spaces or commas have split or joined.

    Raises:
        UserError: The source begins or ends with `=`, or a comma joins two named sources.
    """
    if text.startswith("=") or text.endswith("="):
        raise UserError(f"{text}: a name without its source; write NAME=SOURCE without spaces: fp32=logs/a")
    if re.fullmatch(r"[^,/=]+=[^,]+,[^,/=]+=.*", text):
        raise UserError(f"{text}: names several sources; separate them by spaces: fp32=logs/a bf16=logs/b")


def _expand(source: str) -> list[str]:
    """Return the paths that match a pattern such as `logs/fp32_*`; a shell does not expand it in NAME=SOURCE.

    A source that exists, is on W&B's server or matches nothing is returned as it is.
    """
    if source.startswith(API_PREFIX) or os.path.lexists(source):
        return [source]
    return sorted(glob.glob(source, recursive=True)) or [source]


def _split_arm(source: str | Path) -> tuple[str, str]:
    """Return the arm's name (`fp32` in `fp32=logs/a`), "" without one, and the source."""
    name, equals, path = str(source).partition("=")
    is_named = equals and name.strip() and path and not set(name) & {"/", os.sep, ":"}
    if is_named and not os.path.lexists(source):
        return name.strip(), path
    return "", str(source)
