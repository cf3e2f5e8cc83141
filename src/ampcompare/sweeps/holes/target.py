"""The sweep whose holes are asked for: one of a file, run here or by a job array, or one on W&B's server."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ampcompare.config.load import split_override
from ampcompare.errors import UserError
from ampcompare.records import RunRecord
from ampcompare.records.server import API_PREFIX, parse_source, read_server_sweep
from ampcompare.sweeps.check import problems_of, trains_here
from ampcompare.sweeps.cluster.words import split
from ampcompare.sweeps.file.sweep import Sweep, read_sweep
from ampcompare.sweeps.holes.note import of_server
from ampcompare.sweeps.plan import plan_of, told_to_runs, with_control
from ampcompare.sweeps.run import Request, check_name, find_sweep
from ampcompare.sweeps.same import Same, same_runs
from ampcompare.sweeps.storage import check_storage, sqlite_url

DATABASE = "sweep.db"


@dataclass(frozen=True)
class Target:
    """What the sweep is to have, and where its runs are.

    `words` go behind every command, `told` is what of the plan each run is told beside its own (None:
    nothing). `on_server` are the runs that W&B's server has, None for a sweep without it.
    """

    sweep: Sweep
    same: Same
    folder: Path
    url: str  # of the database, which need not be there
    has_own_database: bool
    words: tuple[str, ...]
    told: Mapping[str, Any] | None
    given: Mapping[str, Any]
    on_server: tuple[RunRecord, ...] | None = None

    @property
    def here(self) -> bool:
        """Whether it is our own training that runs."""
        return trains_here(self.sweep)

    @property
    def is_capped_by_server(self) -> bool:
        """Whether W&B's server takes some points of a grid only, and nobody knows which."""
        cap = self.sweep.run_cap
        return (
            self.on_server is not None
            and self.sweep.is_grid
            and cap is not None
            and cap < _points(self.sweep)
        )


def _points(sweep: Sweep) -> int:
    return sweep.points.count


def is_on_server(name: str) -> bool:
    """Whether a name is that of a sweep on W&B's server."""
    return name.startswith(API_PREFIX)


def target_of(name: str, words: Sequence[str], request: Request) -> Target:
    """The sweep of this file or `wandb:ENTITY/PROJECT/SWEEP`, asked for with the words that it was run with.

    Those of a batch system are none of its runs'. Raises UserError for bad input; nothing has been written or
    started.
    """
    _, words = split(words)
    return _of_server(name, words, request) if is_on_server(name) else _of_file(name, words, request)


def _of_file(path: str, words: Sequence[str], request: Request) -> Target:
    given = dict(split_override(word) for word in words)
    sweep = read_sweep(find_sweep(path), lambda found, is_whole: problems_of(found, words, is_whole))
    sweep = sweep if request.name is None else dataclasses.replace(sweep, name=request.name)
    check_name(sweep.name)
    plan = plan_of(sweep, words)
    sweep = dataclasses.replace(sweep, control=with_control(plan, sweep, request.control))
    same = same_runs(sweep, words)
    sweep = dataclasses.replace(sweep, cells=same.cells)
    told = told_to_runs(sweep, plan, (), trains_here(sweep))
    return _target(sweep, same, words, given, request, told)


def _of_server(source: str, words: Sequence[str], request: Request) -> Target:
    for option, value in {"--name": request.name, "--control": request.control}.items():
        if value is not None:
            raise UserError(f"{option} {value}: is of a sweep without a server; leave it out")
    given = dict(split_override(word) for word in words)
    entity, project, name = parse_source(source)
    config, runs = read_server_sweep(source, brief=True)
    sweep = of_server(config, name, source)
    check_name(sweep.name)
    if problems := problems_of(sweep, words):
        raise UserError(f"{source}: {problems[0]}")
    same = same_runs(sweep, words)
    sweep = dataclasses.replace(
        sweep, cells=same.cells, entity=entity, project=project, control=False, on_server=True
    )
    return _target(sweep, same, words, given, request, None, tuple(runs))


def _target(
    sweep: Sweep,
    same: Same,
    words: Sequence[str],
    given: Mapping[str, Any],
    request: Request,
    told: Mapping[str, Any] | None,
    on_server: tuple[RunRecord, ...] | None = None,
) -> Target:
    check_storage(request.storage)
    folder = Path(given.get("output_dir") or Path("runs") / sweep.name)
    own = tuple(word for word in words if split_override(word)[0] != "output_dir")
    url = request.storage or sqlite_url(folder)
    return Target(sweep, same, folder, url, request.storage is None, own, told, given, on_server)
