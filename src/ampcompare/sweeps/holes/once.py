"""A point of a sweep on W&B's server that is no run of its own: the same as another, or one that cannot run.

The server hands out every point of a grid. Which of the points that come to one run is that run follows from
the sweep's configuration alone, the same for all of them: so exactly one trains, in whatever order they come
and on whatever machines, and nobody has to ask what the others did. Where the configuration cannot be had, or
not every point is run (run_cap, a search), all of them train.

A process of its own (tracking/once.py) that prints its answer as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from ampcompare.config.sweep_choice import chosen
from ampcompare.errors import UserError, one_line
from ampcompare.records.server import API_PREFIX, read_sweep_config, usual_place
from ampcompare.records.tree import lookup
from ampcompare.report.runs.grid import typed
from ampcompare.sweeps.holes.note import of_server
from ampcompare.sweeps.same import Chosen, Same, same_runs

SECONDS = 15  # for the server to answer
_ABSENT = object()


def again(mine: Mapping[str, Any], same: Same) -> str:
    """Why another point stands for the one with these values; nothing where none does."""
    for first, *others in same.alike:
        if not _is(mine, first) and any(_is(mine, other) for other in others):
            return f"{_words(mine, first)} is the same run as {_words(first, first)}; the sweep has both"
    return ""


def cannot_run(mine: Mapping[str, Any], same: Same) -> bool:
    """Whether the point is one of those that cannot run, in a sweep in which others can."""
    return any(_is(mine, refused) for refused in same.refused)


def _same() -> Same:
    """What the points of this run's sweep come to; nothing where that cannot be told."""
    given = os.environ.get
    entity, project, name = (given(f"WANDB_{part}") or "" for part in ("ENTITY", "PROJECT", "SWEEP_ID"))
    try:
        if not (entity and project):  # an agent that was given an id alone hands no more on
            usual = usual_place(seconds=SECONDS)
            entity, project = entity or usual[0], project or usual[1]
        source = f"{API_PREFIX}{entity}/{project}/{name}"
        sweep = of_server(read_sweep_config(source, seconds=SECONDS), name, source)
        return Same() if sweep.run_cap is not None else same_runs(sweep, ())
    except UserError as problem:
        why = one_line(problem)
        sys.stderr.write(f"warning: whether another point of the sweep is this run is not known: {why}\n")
        return Same()


def _is(mine: Mapping[str, Any], values: Chosen) -> bool:
    """Whether the sweep chose these values for this run."""
    return all(typed(lookup(mine, key, _ABSENT)) == typed(value) for key, value in values.items())


def _words(mine: Mapping[str, Any], values: Chosen) -> str:
    return " ".join(f"{key}={lookup(mine, key)}" for key in values)


if __name__ == "__main__":
    found, point = _same(), chosen()
    print(json.dumps({"again": again(point, found), "cannot_run": cannot_run(point, found)}))
