"""Hugging Face's `trainer_state.json` as runs."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from ampcompare import metrics
from ampcompare.errors import reason
from ampcompare.runs.run_record import RunRecord, build_columns
from ampcompare.runs.run_state import RunState
from ampcompare.runs.settings_files import read_settings_in, read_settings_of

STATE_FILE = "trainer_state.json"
EARLY_STOPPING = "EarlyStoppingCallback"  # Hugging Face's callback
OPTIONS = ("train_batch_size", "num_train_epochs", "max_steps", "logging_steps", "eval_steps")


def read_trainer_states(paths: Iterable[Path]) -> list[RunRecord]:
    """Return a run for each output folder, from the most advanced of its state and its checkpoints."""
    runs: dict[Path, RunRecord] = {}
    for path in sorted(paths):
        if path.name != STATE_FILE:  # downloaded states have other names in one folder: each is a run
            folder = path.with_suffix("")
        elif path.parent.name.startswith("checkpoint-"):
            folder = path.parent.parent
        else:
            folder = path.parent
        new = _read_state(path, folder)
        if folder not in runs or _last_step(new) >= _last_step(runs[folder]):
            runs[folder] = new
    return list(runs.values())


def _last_step(run: RunRecord) -> float:
    return run.summary_number(metrics.STEP) or -1.0


def _read_state(path: Path, folder: Path) -> RunRecord:
    config, problems = read_settings_of(path)
    name = folder.as_posix()
    run = RunRecord(
        id=name, name=name, state=RunState.FINISHED, paths=(path,), config=config, problems=problems
    )
    if folder.is_dir() and folder != path.parent:  # the state is that of a checkpoint in the folder
        settings, problems = read_settings_in(folder)
        run.config |= settings
        run.problems += problems
    try:
        if not path.is_file():
            raise OSError("it is not a plain file")
        run.last_write = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        state = json.loads(path.read_bytes())
        log = [row for row in state["log_history"] if isinstance(row, dict)]
    except (OSError, ValueError, RecursionError, LookupError, TypeError) as problem:
        run.problems.append(f"{path.name} cannot be read, or has no log_history: {reason(problem)}.")
        return run
    rows = ({metrics.STEP if key == "step" else key: value for key, value in row.items()} for row in log)
    run.rows, run.logged = build_columns(rows)
    run.config |= {key: state[key] for key in OPTIONS if isinstance(state.get(key), int | float | str)}
    callbacks = state.get("stateful_callbacks")
    run.is_early_stopped = isinstance(callbacks, dict) and EARLY_STOPPING in callbacks
    step = state.get(metrics.STEP)
    if isinstance(step, int | float):
        run.summary[metrics.STEP] = step
    return run
