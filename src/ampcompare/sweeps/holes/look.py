"""A sweep looked at: every point by what its database, its records and W&B's server say."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ampcompare.errors import UserError
from ampcompare.records import RunRecord, load_runs
from ampcompare.report.words import plural
from ampcompare.sweeps.answer import has_records
from ampcompare.sweeps.check import config_of
from ampcompare.sweeps.cluster.noted import Noted, noted_runs
from ampcompare.sweeps.file import Objective, Sweep
from ampcompare.sweeps.holes.database import Known, joined, read_database
from ampcompare.sweeps.holes.expected import grid_of
from ampcompare.sweeps.holes.note import folder_of
from ampcompare.sweeps.holes.standing import Attempt, Holes, Standing, State, attempt_of, holes_of, is_of
from ampcompare.sweeps.holes.target import Target
from ampcompare.sweeps.process import last_words


@dataclass(frozen=True)
class Seen:
    """A sweep as it stands: as it began where a database knows (`is_known`), else as its file says.
    `unasked`: why nobody knows which runs of its array still wait or run.
    """

    target: Target
    sweep: Sweep
    holes: Holes
    is_known: bool
    in_database: frozenset[str] = frozenset()  # the ids of runs that a worker of the sweep has or had
    remarks: tuple[str, ...] = ()
    unasked: str = ""

    def log(self, attempt: Attempt) -> Path | None:
        """What the run printed, where it is on this disk."""
        path = self.target.folder / "logs" / f"{attempt.run_id}.log"
        return path if attempt.run_id and path.is_file() else None


def look(target: Target) -> Seen:
    """Read everything there is of the sweep's runs; writes and starts nothing. Raises UserError."""
    known = read_database(target)
    sweep = target.sweep if known is None else known.sweep
    grid = grid_of(sweep, target.same)
    metric = sweep.metric.name if sweep.metric else None
    recorded = [attempt_of(run, prunes=grid.prunes, metric=metric) for run in _records(target)]
    jobs = noted_runs(target.sweep, target.words, target.told, target.folder)
    attempts = joined(_told(known, jobs), recorded)
    attempts = [_with_last_words(attempt, target) for attempt in attempts]
    holes = holes_of(grid, attempts)
    holes, remarks = _without_needless(target, sweep, holes)
    ids = frozenset(attempt.run_id for attempt in (known.attempts if known else ()))
    unasked = "" if holes.is_whole else jobs.unasked
    said = (*_said(holes), *remarks, *([f"{unasked}: some of them may run"] if unasked else []))
    return Seen(target, sweep, holes, known is not None, ids, said, unasked)


def _told(known: Known | None, jobs: Noted) -> list[Attempt]:
    """What is known beside the records: by the database, and by the jobs of an array."""
    found = list(known.attempts if known else ())
    ids = {attempt.run_id for attempt in found}
    return [*found, *(attempt for attempt in jobs.attempts if attempt.run_id not in ids)]


def _records(target: Target) -> list[RunRecord]:
    """The runs of the sweep that left a record, here or on the server."""
    found = {run.id: run for run in target.on_server or ()}
    if has_records(target.folder):
        own = folder_of(target.folder, target.sweep.name)
        for run in load_runs([target.folder / "wandb"]):
            mine = is_of(run, target.sweep.name) or (own / f"config-{run.id}.yaml").is_file()
            if mine and run.id not in found:
                found[run.id] = run
    return [*found.values()]


def _with_last_words(attempt: Attempt, target: Target) -> Attempt:
    """A failed run of which nothing else is known, with the last line that it printed."""
    if attempt.state is not State.FAILED or (attempt.why and not attempt.why.startswith("exit code")):
        return attempt
    line = last_words(target.folder / "logs" / f"{attempt.run_id}.log")
    return dataclasses.replace(attempt, why=": ".join(filter(None, (attempt.why, line))))


def _said(holes: Holes) -> Iterable[str]:
    if holes.grid.points is None and holes.not_begun is None:
        yield "a search without run_cap has no end, so that no point of it is missing"
    strays = [attempt for attempt in holes.strays if attempt.state is not State.REFUSED]
    if strays:
        first = strays[0].run_id
        yield f"{plural(len(strays), 'run')} of this sweep at none of its points ({first})"


def _without_needless(target: Target, sweep: Sweep, holes: Holes) -> tuple[Holes, list[str]]:
    """The same without points that nobody needs: what cannot run, what a target or a cap left out."""
    remarks = []
    standings, not_begun = list(holes.standings), holes.not_begun
    begun = [s for s in standings if s.state is not State.MISSING or s.attempt is not None]
    if target.is_capped_by_server:
        cap = sweep.run_cap or 0
        standings, not_begun = begun, max(0, cap - len(begun))
        remarks.append(f"run_cap={cap}: which points the server would hand out is not known before it does")
    if sweep.metric and _is_reached(sweep.metric, standings) and (len(begun) < len(standings) or not_begun):
        standings, not_begun = begun, 0
        remarks.append(
            f"metric.target={sweep.metric.target:g} is reached: what had not begun then is not needed"
        )
    refused = [s for s in standings if s.state is State.REFUSED and _cannot_run(target, sweep, s)]
    if refused:
        standings = [s for s in standings if s not in refused]
        why = refused[0].attempt.why if refused[0].attempt else ""
        remarks.append(f"{plural(len(refused), 'point')} left out, as they cannot run: {why}")
    return dataclasses.replace(holes, standings=tuple(standings), not_begun=not_begun), remarks


def _is_reached(metric: Objective, standings: Sequence[Standing]) -> bool:
    if metric.target is None:
        return False
    values = [
        a.value for s in standings for a in s.attempts if a.state is State.FINISHED and a.value is not None
    ]
    return any(v >= metric.target if metric.maximize else v <= metric.target for v in values)


def _cannot_run(target: Target, sweep: Sweep, standing: Standing) -> bool:
    """Whether our training refuses the values of the point, so that to run it again would change nothing."""
    if not target.here:
        return False
    try:
        config_of(sweep, target.words, standing.point.values)
    except UserError:
        return True
    return False
