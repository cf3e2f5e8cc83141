"""Hugging Face's `trainer_state.json`: what a Trainer logged, kept with each checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ampcompare import metrics
from ampcompare.errors import reason
from ampcompare.records.run import Fragment
from ampcompare.records.table import Table, with_floats

NAME = "trainer_state.json"
MOST_BYTES = 500_000_000
MOST_STEPS = 1e15


def is_trainer_state(name: str) -> bool:
    return name == NAME


def read_trainer_states(paths: Iterable[Path]) -> list[Fragment]:
    """A run for each output folder: the state that got furthest, of those of its checkpoints and its own."""
    runs: dict[Path, Fragment] = {}
    for path in sorted(paths):
        folder = path.parent.parent if path.parent.name.startswith("checkpoint-") else path.parent
        new = _read(path, folder)
        old = runs.get(folder)
        if old is None or _reached(new) >= _reached(old):
            runs[folder] = new
    return list(runs.values())


def _reached(fragment: Fragment) -> float:
    return float(fragment.summary.get(metrics.STEP, -1))


def _read(path: Path, folder: Path) -> Fragment:
    name = folder.as_posix()
    fragment = Fragment(path=path, id=name, name=name, state="finished", has_run_record=True)
    try:
        status = path.stat()
        if not path.is_file() or status.st_size > MOST_BYTES:
            fragment.problems.append(f"{NAME} is no plain file of at most {MOST_BYTES:,} bytes: not read.")
            return fragment
        fragment.last_write = datetime.fromtimestamp(status.st_mtime, UTC)
        state = with_floats(json.loads(path.read_bytes()))
    except (OSError, ValueError, RecursionError) as problem:
        fragment.problems.append(f"{NAME} cannot be read: {reason(problem)}.")
        return fragment
    log = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(log, list):
        fragment.problems.append(f"{NAME} has no log_history.")
        return fragment
    table = Table()
    for row in log:
        if isinstance(row, dict):
            table.add_values(((metrics.STEP if k == "step" else k), v) for k, v in row.items())
    fragment.columns, fragment.rows, fragment.nan_rows = table.arrays(), table.rows, table.nan_rows()
    fragment.config = {key: state[key] for key in _OPTIONS if isinstance(state.get(key), int | float | str)}
    step: Any = state.get(metrics.STEP)
    if isinstance(step, int | float) and abs(step) <= MOST_STEPS:
        fragment.summary[metrics.STEP] = step
    return fragment


_OPTIONS = ("train_batch_size", "num_train_epochs", "max_steps", "logging_steps", "eval_steps")
