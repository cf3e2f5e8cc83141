"""Our rows in somebody else's W&B run: when they are committed and what waits."""

from __future__ import annotations

from typing import Any

from ampcompare import metrics
from ampcompare.tracking.lent_rows import LentRows


class Run:
    """The steps of W&B's client: a row that is committed moves them on."""

    def __init__(self) -> None:
        self.step = 0
        self.open: dict[str, Any] = {}
        self.rows: list[dict[str, Any]] = []

    def log(self, row: dict[str, Any], commit: bool) -> None:
        self.open |= row
        if commit:
            self.rows.append(self.open)
            self.open, self.step = {}, self.step + 1


def row(step: int, **values: float) -> dict[str, Any]:
    return {metrics.STEP: step, metrics.ELAPSED: 1.0, **values}


def test_where_the_owner_logs_nothing_each_row_is_committed_with_the_next():
    run = Run()
    rows = LentRows(run, run.log)
    for step in range(5, 30, 5):
        rows.put(row(step, loss=1.0))
        rows.put(row(step, accuracy=0.5))
    assert run.rows == [row(step, loss=1.0, accuracy=0.5) for step in range(5, 25, 5)]
    rows.close()
    assert run.open == row(25, loss=1.0, accuracy=0.5)


def test_no_row_is_committed_that_would_bring_the_run_before_the_training():
    run = Run()
    rows = LentRows(run, run.log)
    rows.go_on(0)
    for step in range(1, 30):
        rows.put(row(step, loss=1.0))
        assert run.step < step
