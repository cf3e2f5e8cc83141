"""Runs made in memory, as the reader would return them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd

from ampcompare.records import RunRecord
from ampcompare.records.run import columns_of
from support.offline_runs import Plan, plan


def run_of(made: Plan, *, state: str = "finished", problems: tuple[str, ...] = ()) -> RunRecord:
    """The RunRecord of a plan, without a file in between."""
    rows, logged = columns_of(made["rows"])
    given = made["wandb"]
    return RunRecord(
        id=given["id"],
        name=given["name"],
        group=given.get("group", ""),
        state=state,
        config=made["config"],
        summary=made["summary"],
        rows=rows,
        logged=logged,
        problems=list(problems),
        tags=tuple(given.get("tags", ())),
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


def put(run: RunRecord, key: str, values: Any) -> None:
    """Log these values under a key, one for each row or one for all; NaN is nothing."""
    numbers = np.broadcast_to(np.asarray(values, float), run.rows)
    run.logged[key] = run.adding({key: numbers}).logged[key]


def with_history(run: RunRecord, history: pd.DataFrame, **changes: Any) -> RunRecord:
    """The run with other rows; NaN and None are nothing."""
    rows = [{k: v for k, v in row.items() if v == v} for row in history.to_dict("records")]
    count, logged = columns_of(rows)
    empty = {key: (np.empty(0, int), np.empty(0)) for key in history if key not in logged}
    return replace(run, rows=count, logged=logged | empty, **changes)


def full(plan: Plan) -> None:
    """Add what only some runs log: energy, and looks at gradients, activations and updates of two layers."""
    unscaled = {"none": 0.04, "native": 0.05, "apex_o1": 0.06}.get(plan["config"]["backend"], 0.07)
    for row in plan["rows"]:
        if "eval/accuracy" in row:
            row["energy/joules_per_image"] = 8.0 * unscaled
        elif row["global_step"] % 20 == 0:
            for where, factor in (("", 1.0), ("/conv1", 1.5), ("/layer10", 0.5)):
                row[f"grad/underflow_fraction{where}"] = unscaled * factor / 10
                row[f"grad/underflow_fraction_unscaled{where}"] = unscaled * factor
                row[f"update/lost_fraction{where}"] = 0.5 + unscaled * factor
                row[f"update/relative_size{where}"] = unscaled * factor / 100
                row[f"activation/max_abs{where}"] = 1e4 * unscaled * factor
                row[f"activation/subnormal_fraction{where}"] = unscaled * factor
                row[f"activation/zero_fraction{where}"] = unscaled * factor


def make(
    backend: str, seed: int = 1, *, edit: Callable[[Plan], Any] | None = None, **options: Any
) -> RunRecord:
    """One run; `edit` may change its plan."""
    state = options.pop("state", "finished")
    problems = options.pop("problems", ())
    made = plan(backend, seed, **options)
    if edit:
        edit(made)
    return run_of(made, state=state, problems=problems)


__all__ = ["full", "make", "plan", "put", "run_of", "with_history"]
