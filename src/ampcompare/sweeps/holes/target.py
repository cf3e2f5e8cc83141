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
from ampcompare.sweeps.check import trains_here
from ampcompare.sweeps.cluster.words import split
from ampcompare.sweeps.file import Sweep
from ampcompare.sweeps.holes.note import of_server
from ampcompare.sweeps.prepare import Prepared, check_name, prepare, prepared
from ampcompare.sweeps.run import Request
from ampcompare.sweeps.same import Same
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
            and cap < len(dataclasses.replace(self.sweep, run_cap=None).points)
        )


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
    return _target(prepare(path, words, request.name, request.control), words, request)


def _of_server(source: str, words: Sequence[str], request: Request) -> Target:
    for option, value in {"--name": request.name, "--control": request.control}.items():
        if value is not None:
            raise UserError(f"{option} {value}: is of a sweep without a server; leave it out")
    entity, project, name = parse_source(source)
    config, runs = read_server_sweep(source, brief=True)
    sweep = of_server(config, name, source)
    check_name(sweep.name)
    sweep = dataclasses.replace(sweep, entity=entity, project=project, control=False, on_server=True)
    return _target(prepared(sweep, words), words, request, tuple(runs))


def _target(
    ready: Prepared,
    words: Sequence[str],
    request: Request,
    on_server: tuple[RunRecord, ...] | None = None,
) -> Target:
    check_storage(request.storage)
    given, folder = dict(split_override(word) for word in words), ready.output
    told = None if ready.sweep.on_server else ready.told
    url = request.storage or sqlite_url(folder)
    has_own = request.storage is None
    return Target(ready.sweep, ready.same, folder, url, has_own, ready.words, told, given, on_server)
