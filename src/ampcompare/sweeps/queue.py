"""The queue of a sweep: a table of its runs in a database that any number of workers may share.

A row is a run. Whoever takes it writes a token of its own into `owner`; each change is made where the row is
still as it was seen (compare and swap), so that each point is counted once, whoever dies when. Workers count
`beat` up; a row whose owner and beat stay the same for the grace time, by the clock of who looks, goes back
to the queue. Rows are made as they are begun: a sweep can get longer, and a grid may be as long as it likes.
A look of `--until-decided` is a row like any other, at a place below zero.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Connection, func, select
from sqlalchemy.exc import IntegrityError

from ampcompare.errors import UserError
from ampcompare.sweeps import definition
from ampcompare.sweeps.definition import Added
from ampcompare.sweeps.file import Sweep
from ampcompare.sweeps.row import LOOK, RUN, RUNNING, Row
from ampcompare.sweeps.search import row_at
from ampcompare.sweeps.storage import Database, shown
from ampcompare.sweeps.table import (
    FORMAT,
    JSON,
    QUEUED,
    RUNS,
    SWEEPS,
    TABLES,
    R,
    groups_of,
    read_definition,
    refuse_former,
    row_of,
    rows_of,
)

ATTEMPTS = 2  # of a run whose worker died
ENDED = ("finished", "stopped", "failed", "lost")
ELSEWHERE = "elsewhere"  # of a run that somebody else had begun when the holes of a sweep were filled


@dataclass(frozen=True)
class Progress:
    """How many runs of all workers have ended for good and how many go on; which of one's own are lost."""

    done: int
    running: int
    lost: frozenset[str] = frozenset()  # their owners


class Queue:
    """The runs of one sweep. Safe to use from several threads, processes and machines at once.

    `storage` is an SQLAlchemy URL; `grace_seconds` is how long a worker may be silent before its run is taken
    over; `words` are the options behind every command, part of what the sweep is; `plan` is what of the plan
    every run is told beside the file, its own place with it; None: nothing of it. `sweep` is the sweep as the
    database has it: with all seeds so far. What waits for a database that is away says so (`database`).
    Raises UserError where the database cannot be used or holds another sweep under the same name.
    """

    def __init__(
        self,
        sweep: Sweep,
        storage: str,
        name: str,
        grace_seconds: float = 60.0,
        words: Sequence[str] = (),
        plan: Mapping[str, Any] | None = None,
    ) -> None:
        self.sweep, self.name, self.url, self.plan = sweep, name, storage, plan
        self.grace_seconds = grace_seconds
        self.heartbeat_seconds = min(2.0, grace_seconds / 3)
        self.added: list[Added] = []
        self._seen: dict[int, tuple[str, int, float]] = {}  # of others' rows: owner, beat, since when
        self._looked = time.monotonic()
        self.database = Database(storage, TABLES)
        self.sweep, self._began, more = self._agree(words)
        self.read_added()
        while unknown := self._unknown(more):
            self.add(Added(unknown))

    def _agree(self, words: Sequence[str]) -> tuple[Sweep, str, tuple[Any, ...]]:
        """The sweep as it began, its definition, and the seeds that the file has beyond: as `agreed`."""
        ours = definition.definition(self.sweep, words)

        def begin(connection: Connection) -> Any:
            if (found := read_definition(connection, self.name)) is not None:
                return found[0]["sweep"]
            refuse_former(connection, self.name, self.url)
            written = json.dumps({"format": FORMAT, "sweep": ours, "groups": []})
            connection.execute(SWEEPS.insert().values(name=self.name, definition=written, revision=0))
            return ours

        began = self._until_written(begin)
        try:
            sweep, more = definition.agreed(self.sweep, began, ours)
        except definition.Changed as changed:
            why = f"a sweep named {self.name!r} is in {shown(self.url)} already and differs in {changed}"
            todo = "set output_dir=... for a new one, or --name with a shared storage"
            raise UserError(f"{self.sweep.path}: {why}; {todo}") from None
        return sweep, json.dumps([sweep.name, began]), more

    def _until_written(self, act: Callable[[Connection], Any]) -> Any:
        while True:
            try:
                return self.database.wait(act)
            except IntegrityError:
                continue  # another wrote the row: `act` finds it

    def _unknown(self, seeds: Iterable[Any]) -> tuple[Any, ...]:
        """Those of the seeds that no group has."""
        known = [seed for group in self.added for seed in group.seeds]
        return tuple(seed for seed in seeds if seed not in known)

    def total(self) -> int | None:
        """How many runs it comes to by now; None where that is open."""
        return self.sweep.total()

    def add(self, group: Added) -> bool:
        """Add a group of seeds behind all those there are. False: another worker has added one since."""
        number = len(self.added)
        mine = [[*group.seeds], group.look, [*group.said]]

        def write(connection: Connection) -> bool:
            found = read_definition(connection, self.name)
            assert found
            written, revision = found
            if len(written["groups"]) != number:  # written by another, or before the connection broke
                return written["groups"][number] == json.loads(json.dumps(mine))
            content = json.dumps({**written, "groups": [*written["groups"], mine]})
            change = SWEEPS.update().where(SWEEPS.c.name == self.name, SWEEPS.c.revision == revision)
            return connection.execute(change.values(definition=content, revision=revision + 1)).rowcount == 1

        is_mine = self.database.wait(write)
        self.read_added()
        return is_mine

    def read_added(self) -> list[Added]:
        """The groups of seeds that were added, those of other workers too."""
        found = self.database.wait(lambda connection: read_definition(connection, self.name))
        groups = groups_of(found[0]) if found else []
        if len(groups) > len(self.added):
            self.added = groups
            seeds = tuple(group.seeds for group in groups if group.seeds)
            self.sweep = dataclasses.replace(self.sweep, added=seeds)
        return self.added

    def claim(self) -> Row | None:
        """A run to be made, None when nothing is left to start (runs of other workers may still go on)."""
        owner = secrets.token_hex(8)
        self.read_added()
        while True:
            found = self.database.wait(lambda connection: self._take(connection, owner))
            if not isinstance(found, int):
                return found
            new = self._new(found, owner)
            try:
                return self.database.wait(partial(self._insert, row=new))
            except IntegrityError:
                continue  # another has begun this place; or this one has, as the connection broke

    def claim_look(self, seeds: int) -> Row | None:
        """The look at so many seeds, None where another has it or has had it."""
        mine = Row(-seeds, kind=LOOK, owner=secrets.token_hex(8))
        place = R.place == mine.place

        def take(connection: Connection) -> Row | None:
            query = select(R.state, R.owner).where(R.sweep == self.name, place)
            there = connection.execute(query).first()
            if there is None:
                return self._insert(connection, mine)
            if there.owner == mine.owner or self._swap(connection, mine.owner, place):
                return mine
            return None

        return self._until_written(take)

    def _take(self, connection: Connection, owner: str) -> Row | int | None:
        """A queued run, now of this owner; else the place of the next to begin, None: there is none."""
        for row in rows_of(connection, self.name, R.state == RUNNING, R.owner == owner):
            return row  # taken before the connection broke
        queued = select(func.min(R.place)).where(R.sweep == self.name, R.state == QUEUED, R.kind == RUN)
        while (place := connection.execute(queued).scalar()) is not None:
            if self._swap(connection, owner, R.place == place):
                return rows_of(connection, self.name, R.place == place)[0]
        last = select(func.max(R.place)).where(R.sweep == self.name, R.kind == RUN)
        found = connection.execute(last).scalar()
        place = 0 if found is None else found + 1
        return None if self._has_all(connection, place) else place

    def _swap(self, connection: Connection, owner: str, place: Any) -> bool:
        """Take a queued row. In PostgreSQL the loser of two waits for the other and finds it taken."""
        change = RUNS.update().where(R.sweep == self.name, place, R.state == QUEUED)
        taken = change.values(state=RUNNING, owner=owner, starts=R.starts + 1)
        return connection.execute(taken).rowcount == 1

    def _insert(self, connection: Connection, row: Row) -> Row:
        connection.execute(RUNS.insert().values(**self._values(row)))
        return row

    def _values(self, row: Row) -> dict[str, Any]:
        values = {key: json.dumps(value) if key in JSON else value for key, value in vars(row).items()}
        return {"sweep": self.name, **values}

    def _new(self, place: int, owner: str) -> Row:
        # A sampler goes by what was tried; other draws are a function of sweep and place.
        tried = self.rows() if self.sweep.method == "bayes" else []
        new = row_at(self.sweep, self._began, self.plan, place, tried)
        return dataclasses.replace(new, run_id=secrets.token_hex(4), owner=owner)

    def _has_all(self, connection: Connection, place: int) -> bool:
        """Whether every place before this one is all there is, or the target of the metric is reached."""
        total, metric = self.sweep.total(), self.sweep.metric
        if total is not None and place >= total:
            return True
        if metric is None or metric.target is None:
            return False
        best = (func.max if metric.maximize else func.min)(R.value)
        finished = (R.sweep == self.name, R.kind == RUN, R.state == "finished")
        value = connection.execute(select(best).where(*finished)).scalar()
        return value is not None and (value >= metric.target if metric.maximize else value <= metric.target)

    def beat(self, mine: Sequence[Row] = ()) -> Progress:
        """A sign of life for one's own rows, and a look at those of others: the silent go back to the queue.

        Raises Away at once where the database does not answer.
        """
        try:
            progress, others = self.database.once(lambda connection: self._tell(connection, mine))
            self._judge(others)
        except UserError:
            self._seen = {}  # who was cut off cannot know who else was
            raise
        return progress

    def _tell(self, connection: Connection, mine: Sequence[Row]) -> tuple[Progress, list[Row]]:
        owners = [row.owner for row in mine]
        running = (R.sweep == self.name, R.state == RUNNING)
        if owners:
            own = RUNS.update().where(*running, R.owner.in_(owners))
            connection.execute(own.values(beat=R.beat + 1))
        going_on = [row_of(found) for found in connection.execute(select(RUNS).where(*running)).mappings()]
        lost = frozenset(owners) - {row.owner for row in going_on}
        others = [row for row in going_on if row.owner not in owners]
        return dataclasses.replace(self._counted(connection), lost=lost), others

    def _judge(self, others: Iterable[Row]) -> None:
        """Take away the rows whose owners have been silent for the grace time."""
        now = time.monotonic()
        # Who has not looked for a while, as a process that was stopped, knows of no silence in it.
        before = {} if now - self._looked > self.grace_seconds / 2 else self._seen
        self._looked, self._seen = now, {}
        for row in others:
            owner, beat, since = before.get(row.place, ("", 0, now))
            if (owner, beat) != (row.owner, row.beat):
                since = now
            self._seen[row.place] = (row.owner, row.beat, since)
            if now - since > self.grace_seconds:
                self.database.once(partial(self._take_away, row=row))

    def _take_away(self, connection: Connection, row: Row) -> None:
        queued = {"state": QUEUED, "attempt": row.attempt + 1}
        over = queued if row.attempt < ATTEMPTS or row.kind == LOOK else {"state": "lost"}
        as_seen = (R.sweep == self.name, R.place == row.place, R.state == RUNNING)
        change = RUNS.update().where(*as_seen, R.owner == row.owner, R.beat == row.beat)
        connection.execute(change.values(owner="", **over))

    def report(self, row: Row, band: int, value: float) -> list[float]:
        """Keep the metric of a run at a band, once; returns that of all runs that came so far.

        Raises Away at once where the database does not answer.
        """

        def write(connection: Connection) -> list[float]:
            own = (R.sweep == self.name, R.place == row.place)
            bands = json.loads(connection.execute(select(R.bands).where(*own)).scalar_one())
            told = json.dumps({str(band): value, **bands})
            connection.execute(RUNS.update().where(*own, R.owner == row.owner).values(bands=told))
            query = select(R.bands).where(R.sweep == self.name, R.bands != "{}")
            every = [json.loads(found) for found in connection.execute(query).scalars()]
            return [bands[str(band)] for bands in every if str(band) in bands]

        return self.database.once(write)

    def end(self, row: Row, state: str, value: float | None = None) -> bool:
        """Record how a row ended: finished, stopped (by early termination), failed; interrupted or lost, and
        it is queued again, after a loss once. False if it was taken over. May be repeated.
        """
        to: dict[str, Any] = {"state": state, "value": value}
        if state == "interrupted":
            to["state"] = QUEUED
        elif state == "lost" and row.attempt < ATTEMPTS:
            to |= {"state": QUEUED, "attempt": row.attempt + 1}
        # The owner stays: a commit whose answer was lost is found again.
        own = (R.sweep == self.name, R.place == row.place, R.owner == row.owner)
        change = RUNS.update().where(*own, R.state.in_((RUNNING, to["state"]))).values(**to)
        return self.database.wait(
            lambda connection: connection.execute(change).rowcount == 1, at_the_end=True
        )

    def requeue(self, rows: Iterable[Row]) -> int:
        """Queue these rows, which have ended, once more as new runs; how many of them nobody had yet."""

        def write(connection: Connection) -> int:
            count = 0
            for row in rows:
                as_seen = (R.sweep == self.name, R.place == row.place, R.run_id == row.run_id)
                new = {
                    "run_id": again(row.run_id),
                    "state": QUEUED,
                    "owner": "",
                    "value": None,
                    "bands": "{}",
                }
                change = RUNS.update().where(*as_seen, R.state == row.state)
                count += connection.execute(change.values(attempt=1, starts=0, **new)).rowcount
            return count

        return self.database.wait(write)

    def adopt(self, rows: Iterable[Row]) -> None:
        """Write down what others have run, or is still to be, where nobody has begun its place."""
        named = [row if row.run_id else dataclasses.replace(row, run_id=secrets.token_hex(4)) for row in rows]

        def write(connection: Connection) -> None:
            there = {*connection.execute(select(R.place).where(R.sweep == self.name)).scalars()}
            if new := [self._values(row) for row in named if row.place not in there]:
                connection.execute(RUNS.insert(), new)

        self._until_written(write)

    def rows(self) -> list[Row]:
        """Every run that was begun so far, by its place."""
        return self.database.wait(lambda connection: rows_of(connection, self.name))

    def progress(self, *, patient: bool = False) -> Progress:
        """How many runs have ended for good and how many go on, with any worker; cheap, to be asked often.

        Unless `patient`, raises Away at once where the database does not answer.
        """
        return (self.database.wait if patient else self.database.once)(self._counted)

    def _counted(self, connection: Connection) -> Progress:
        query = select(R.state, func.count()).where(R.sweep == self.name, R.place >= 0).group_by(R.state)
        states = {found[0]: found[1] for found in connection.execute(query)}
        return Progress(sum(states.get(state, 0) for state in ENDED), states.get(RUNNING, 0))

    def open(self) -> int:
        """How many runs are going on or queued, with any worker."""
        is_open = (R.sweep == self.name, R.kind == RUN, R.state.in_((QUEUED, RUNNING)))
        query = select(func.count()).where(*is_open)
        return self.database.wait(lambda connection: connection.execute(query).scalar_one())

    def is_all_done(self) -> bool:
        """Whether every run has ended, of any worker, with the seeds that were added."""
        self.read_added()
        query = select(func.max(R.place)).where(R.sweep == self.name, R.kind == RUN)

        def look(connection: Connection) -> bool:
            last = connection.execute(query).scalar()
            return self._has_all(connection, 0 if last is None else last + 1)

        return self.database.wait(look) and not self.open()


def again(run_id: str) -> str:
    """The id of the run that takes the place of a failed one: two who fill a hole at once have the same."""
    return hashlib.sha256(run_id.encode()).hexdigest()[:8]
