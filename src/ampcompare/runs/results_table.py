"""A table of results, one row per run: W&B's table of runs, Optuna's trials, a hand-made table of seeds."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ampcompare.runs.load_options import RUNS
from ampcompare.runs.missing_input import MissingInput
from ampcompare.runs.nested import is_number
from ampcompare.runs.row_order import SEED
from ampcompare.runs.run_record import RunRecord
from ampcompare.runs.run_state import RunState
from ampcompare.runs.table_format import UNNAMED
from ampcompare.runs.values import as_setting
from ampcompare.runs.wandb_api import STATES

SETTINGS = ("params_", "params.")  # how Optuna and MLflow begin the columns of settings
# The columns of these programs for the name and the state of a run.
TABLES_OF_PROGRAMS = (
    ("Name", "the runs of a W&B project", "State"),
    ("number", "Optuna's trials", "state"),
    ("run_id", "the runs of an MLflow experiment", "status"),
    ("Name", "the runs of an MLflow experiment", "Status"),
)
OPTUNA_STATES = {
    "COMPLETE": RunState.FINISHED,
    "FAIL": RunState.FAILED,
    "PRUNED": RunState.STOPPED,
    "RUNNING": RunState.RUNNING,
    "WAITING": RunState.QUEUED,
}
MLFLOW_STATES = {
    "FINISHED": RunState.FINISHED,
    "FAILED": RunState.FAILED,
    "KILLED": RunState.STOPPED,
    "SCHEDULED": RunState.QUEUED,
}
ENDS = STATES | OPTUNA_STATES | MLFLOW_STATES
MAX_COLUMNS = 8


def read_results(table: RunRecord, setting_columns: Sequence[str]) -> list[RunRecord]:
    """Return a run for each row of a table.

    Numbers are the values of the run; other cells, the seed and the parameters of Optuna and MLflow are its
    settings.

    Args:
        table: The rows.
        setting_columns: Further columns of numbers that are settings.
    """
    rows: list[dict[str, Any]] = [{} for _ in range(table.rows)]
    for column, (numbers, values) in table.logged.items():
        for row, value in zip(numbers, values.tolist(), strict=True):
            rows[row][column] = value
    programs = (own for own in TABLES_OF_PROGRAMS if _has_states(table, own[2]))
    name_column, _, state = next(programs, ("Name", "", ""))
    runs = []
    for number, row in enumerate(rows, 1):
        settings = {key: value for key, value in row.items() if _is_setting(key, value, setting_columns)}
        scores = {key: value for key, value in row.items() if key not in settings}
        ended = settings.pop(state, None)
        name = as_setting(row.get(name_column, number))
        settings.pop(name_column, None)
        scores.pop(name_column, None)
        config = table.config | {column: as_setting(value) for column, value in settings.items()}
        logged = {column: (np.array([0]), np.array([value])) for column, value in scores.items()}
        runs.append(
            replace(
                table,
                id=f"{table.id}[{number}]",
                name=f"{table.name}[{name}]",
                state=ENDS.get(str(ended), table.state),
                config=config,
                summary=scores,
                rows=1,
                logged=logged,
            )
        )
    return runs


def check_no_results(table: RunRecord) -> None:
    """Ask about the tables of runs or trials of these programs, whose epochs are no steps of one run.

    Raises:
        MissingInput: The columns are those of such a table.
    """
    for name, program, state in TABLES_OF_PROGRAMS:
        if name in table.logged and _has_states(table, state):
            question = (
                f"rows: {table.paths[0]} has {program}, and no log of one run: add --rows {RUNS} to read "
                "each row as a run, or --step COLUMN for the rows of one run"
            )
            raise MissingInput([question], ["--rows", RUNS])


def _has_states(table: RunRecord, column: str) -> bool:
    return column in table.logged and all(str(value) in ENDS for value in table.logged[column][1])


def _is_setting(column: str, value: Any, setting_columns: Sequence[str]) -> bool:
    if column == SEED or column in setting_columns or column.startswith(SETTINGS):
        return True
    return not is_number(value)


def describe_missing_step(names: Sequence[str], step: str | None) -> str:
    """Return what is missing in a table without a step column, and what the user can say about it."""
    missing = f"none of its columns is called {step!r}" if step else "none of its columns is a step"
    columns = ", ".join(names[:MAX_COLUMNS])
    index = f"; {UNNAMED}0 is the column without a name" if f"{UNNAMED}0" in names else ""
    return (
        f"{missing}; --step COLUMN names it (columns: {columns}{index}), --step none takes the order of the "
        f"rows, --rows {RUNS} reads each row as a run"
    )
