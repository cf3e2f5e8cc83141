"""What else than W&B's records is read as runs, each kind by a file of its own, in order of preference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ampcompare.records import csv_file, events, trainer_state
from ampcompare.records.run import Fragment


@dataclass(frozen=True)
class Reader:
    """How files of a kind are known and read. `is_one` asks the name, `is_run` looks inside where the name
    tells too little (and is told the step column); `read` gives a fragment a run.
    """

    is_one: Callable[[str], bool]
    read: Callable[[list[Path], str | None], list[Fragment]]
    is_run: Callable[[Path, str | None], bool] = lambda path, step: True


def _is_table(path: Path, step: str | None) -> bool:
    """Of a trainer's file the reader says what is wrong with it; any other may be anything."""
    return path.name in csv_file.KNOWN or csv_file.has_steps(path, step)


READERS: dict[str, Reader] = {
    "TensorBoard event files": Reader(
        events.is_event_file, lambda paths, step: events.read_event_files(paths)
    ),
    "CSV files with a step column": Reader(
        csv_file.is_csv_file,
        lambda paths, step: [csv_file.read_csv_file(path, step) for path in paths],
        _is_table,
    ),
    "trainer_state.json": Reader(
        trainer_state.is_trainer_state, lambda paths, step: trainer_state.read_trainer_states(paths)
    ),
}
