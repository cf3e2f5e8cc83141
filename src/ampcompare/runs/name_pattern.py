"""`--run-name PATTERN`: settings that a user writes into the names of runs or of their files."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath

from ampcompare.errors import UserError
from ampcompare.runs.run_record import RunRecord
from ampcompare.runs.values import as_setting
from ampcompare.runtime.formatting import printable, some

ARM = "arm"  # the config key of the arm
KEY = re.compile(r"\{(\w+)\}")
MAX_NAMES = 3  # that a message names


def apply_name_pattern(runs: Sequence[RunRecord], pattern: str) -> list[RunRecord]:
    """Return the runs with the settings in their names.

    Args:
        pattern: A text with `{key}` for a setting and `*` for any text. It is matched against the whole name
            of a run; of a run in a file of its own, against the names of its folder and file, and the path.

    Raises:
        UserError: The pattern has no key or one key twice, or does not match each run.
    """
    expression, in_paths = _compile(pattern)
    named = []
    unmatched = []
    for run in runs:
        match = _match(run, expression, in_paths)
        if match is None:
            unmatched.append(printable(run.name))
            continue
        settings = {key: as_setting(value) for key, value in match.groupdict().items()}
        named.append(replace(run, config=run.config | settings, is_arm_in_name=ARM in settings))
    if unmatched:
        raise UserError(
            f"--run-name {pattern!r}: does not match {some(unmatched, MAX_NAMES)}; * stands for any text, "
            "{key} for the value of a setting"
        )
    return named


def _match(run: RunRecord, expression: re.Pattern[str], in_paths: re.Pattern[str]) -> re.Match[str] | None:
    """Return the match of a run's name; of a run that is named by its path, of a part or of all of it."""
    if run.is_of_chart or not run.paths or run.paths[0].suffix == ".wandb":
        return expression.fullmatch(run.name)
    names = [PurePath(run.name).name, *(text for path in run.paths for text in (path.name, path.as_posix()))]
    return next(filter(None, map(in_paths.fullmatch, names)), None)


def _compile(pattern: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return the pattern for a name, and for a path, in which no setting has a slash."""
    keys = KEY.findall(pattern)
    if not keys or len({*keys}) < len(keys) or any(key[0].isdigit() for key in keys):
        raise UserError(
            f"--run-name {pattern!r}: expected a pattern with each {{key}} once, such as "
            "'{arm}_lr_{lr}' or '*_seed{seed}.csv'"
        )
    pieces = re.split(r"(\{\w+\}|\*)", pattern)
    texts = ("".join(_expression_of(piece, value) for piece in pieces) for value in (".+", "[^/]+"))
    name, path = (re.compile(text, re.S) for text in texts)
    return name, path


def _expression_of(piece: str, value: str) -> str:
    if piece == "*":
        return ".*"
    key = KEY.fullmatch(piece)
    return f"(?P<{key[1]}>{value})" if key else re.escape(piece)
