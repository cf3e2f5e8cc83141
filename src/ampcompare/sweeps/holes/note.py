"""What a sweep was to have, noted beside its records, so that `--missing` and `--fill` know.

`wandb/sweep-NAME/sweep.json` under output_dir, where the parameters of each run are, too. W&B's server has a
sweep's configuration itself.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ampcompare.program.files import replacing
from ampcompare.sweeps.file import KEYS, Sweep, sweep_of
from ampcompare.sweeps.same import same_runs

NAME = "sweep.json"
MOST_BYTES = 10_000_000


def folder_of(folder: Path, name: str) -> Path:
    """Where the parameters of a sweep's runs are, as W&B's agent has it."""
    return folder / "wandb" / f"sweep-{name}"


def note(sweep: Sweep, words: Sequence[str], folder: Path) -> None:
    """Write down what the sweep is now, its added seeds among it. What cannot be written is left out:
    `--missing` alone would have read it.
    """
    content = {
        "name": sweep.name,
        "file": sweep.raw,
        "words": [*words],
        "control": sweep.control,
        "added": [[*group] for group in sweep.added],
        "is_merged": sweep.cells is not None,
    }
    try:
        text = json.dumps(content)
        path = folder_of(folder, sweep.name) / NAME
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(text.encode())
    except (OSError, TypeError, ValueError, RecursionError):
        return


def noted(folder: Path, name: str) -> tuple[Sweep, tuple[str, ...]] | None:
    """The sweep of this name under an output_dir, with the words of its command line; None without a note.

    Raises UserError for one that holds something else.
    """
    path = folder_of(folder, name) / NAME
    try:
        if "/" in name or not path.is_file() or path.stat().st_size > MOST_BYTES:
            return None
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(content, Mapping) or not isinstance(content.get("file"), dict):
        return None
    words = content.get("words")
    own = tuple(word for word in words if isinstance(word, str)) if isinstance(words, list) else ()
    sweep = dataclasses.replace(
        sweep_of(path, content["file"]),
        name=name,
        control=content.get("control") is True,
        added=_groups(content.get("added")),
    )
    cells = same_runs(sweep, own).cells if content.get("is_merged") is True else None
    return dataclasses.replace(sweep, cells=cells), own


def _groups(written: Any) -> tuple[tuple[Any, ...], ...]:
    groups = written if isinstance(written, list) else ()
    return tuple(tuple(group) for group in groups if isinstance(group, list) and group)


def of_server(config: Mapping[str, Any], name: str, source: str) -> Sweep:
    """The sweep in a configuration as W&B's server has it, which knows more keys than a file may have.

    Raises UserError for what is no sweep that is understood here.
    """
    known = {key: value for key, value in config.items() if key in KEYS and value is not None}
    return dataclasses.replace(sweep_of(Path(source), known), name=name)
