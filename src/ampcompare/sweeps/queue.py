"""The queue of a sweep: a table of its runs in a database that any number of workers may share.

A row is a run. Whoever takes it writes a token of its own into `owner`; each change is made where the row is
still as it was seen (compare and swap), so that each point is counted once, whoever dies when. Workers count
`beat` up; a row whose owner and beat stay the same for the grace time, by the clock of who looks, goes back
to the queue. Rows are made as they are begun: a sweep can get longer, and a grid may be as long as it likes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, select

from ampcompare.sweeps.definition import Added, agreed, definition, seed_of
from ampcompare.sweeps.file import Sweep
from ampcompare.sweeps.search import row_at
from ampcompare.sweeps.storage import Database, shown
from ampcompare.sweeps.table import (
    FORMAT,
    QUEUED,
    RUNNING,
    RUNS,
    SWEEPS,
    TABLES,
    R,
    Row,
    find_definition,
    read_definition,
    rows_of,
)

ATTEMPTS = 2  # of a run whose worker died
ENDED = ("finished", "stopped", "failed", "lost")
ELSEWHERE = "elsewhere"  # of a run that somebody else had begun when the holes of a sweep were filled


@dataclass(frozen=True)
class Progress:
    """How many runs of all workers have ended for good, go on and wait; which of one's own are lost."""

    done: int
    running: int
    queued: int
    lost: frozenset[str] = frozenset()  # their owners

    @property
    def open(self) -> int:
        return self.running + self.queued


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
        self.name, self.url, self.plan = name, storage, plan
        self.grace_seconds = grace_seconds
        self.heartbeat_seconds = min(2.0, grace_seconds / 3)
        self.added: list[Added] = []
        self._mine = R.sweep == name
        self._seen: dict[int, tuple[str, int, float]] = {}  # of others' rows: owner, beat, since when
        self._looked = time.monotonic()
        self.database = Database(storage, TABLES)
        ours = definition(sweep, words)

        def begin(connection: Connection) -> dict[str, Any]:
            if (found := find_definition(connection, name, storage)) is None:
                found = {"format": FORMAT, "sweep": ours, "groups": []}
                connection.execute(SWEEPS.insert().values(name=name, definition=found, revision=0))
            return found

        began = self.database.wait(begin)["sweep"]
        self._seed = seed_of(sweep, began)
        while True:
            self.sweep = sweep
            groups = [group.seeds for group in self.read_added()]
            self.sweep, more = agreed(sweep, words, began, groups, shown(storage))
            if not more:
                return
            self.add(Added(more))

    def add(self, group: Added) -> bool:
        """Add a group of seeds behind all those there are. False: another worker has added one since."""
        number = len(self.added)
        mine = [[*group.seeds], group.look, [*group.said]]

        def write(connection: Connection) -> bool:
            found = read_definition(connection, self.name)
            assert found
            written, revision = found
            if len(written["groups"]) != number:  # written by another, or before the connection broke
                return bool(written["groups"][number] == mine)
            content = {**written, "groups": [*written["groups"], mine]}
            change = SWEEPS.update().where(SWEEPS.c.name == self.name, SWEEPS.c.revision == revision)
            return connection.execute(change.values(definition=content, revision=revision + 1)).rowcount == 1

        is_mine = self.database.wait(write)
        self.read_added()
        return is_mine

    def read_added(self) -> list[Added]:
        """The groups of seeds that were added, those of other workers too."""
        found = self.database.wait(lambda connection: read_definition(connection, self.name))
        assert found
        groups = [Added(tuple(seeds), look, tuple(said)) for seeds, look, said in found[0]["groups"]]
        if len(groups) > len(self.added):
            self.added = groups
            seeds = tuple(group.seeds for group in groups if group.seeds)
            self.sweep = dataclasses.replace(self.sweep, added=seeds)
        return self.added

    def claim(self) -> Row | None:
        """A run to be made, None when nothing is left to start (runs of other workers may still go on)."""
        owner = secrets.token_hex(8)
        self.read_added()

        def take(connection: Connection) -> Row | None:
            for row in rows_of(connection, self._mine, R.state == RUNNING, R.owner == owner):
                return row  # taken before the connection broke
            queued = select(func.min(R.place)).where(self._mine, R.state == QUEUED)
            while (place := connection.execute(queued).scalar()) is not None:
                if self._swap(connection, owner, place):
                    return rows_of(connection, self._mine, R.place == place)[0]
            place = self._next(connection)
            if self._has_all(connection, place):
                return None
            # A sampler goes by what was tried; other draws are a function of sweep and place.
            tried = rows_of(connection, self._mine) if self.sweep.method == "bayes" else []
            row = row_at(self.sweep, self._seed, self.plan, place, tried)
            row = dataclasses.replace(row, run_id=secrets.token_hex(4), owner=owner)
            self._insert(connection, [row])
            return row

        return self.database.wait(take)

    def _swap(self, connection: Connection, owner: str, place: int) -> bool:
        """Take a queued row. In PostgreSQL the loser of two waits for the other and finds it taken."""
        change = RUNS.update().where(self._mine, R.place == place, R.state == QUEUED)
        taken = change.values(state=RUNNING, owner=owner, starts=R.starts + 1)
        return connection.execute(taken).rowcount == 1

    def _insert(self, connection: Connection, rows: Sequence[Row]) -> None:
        """Raises IntegrityError where another has written one of these places."""
        if rows:
            connection.execute(RUNS.insert(), [{"sweep": self.name, **vars(row)} for row in rows])

    def _next(self, connection: Connection) -> int:
        """The place behind the last that was begun."""
        return (
            int(
                connection.execute(
                    select(func.coalesce(func.max(R.place), -1)).where(self._mine)
                ).scalar_one()
            )
            + 1
        )

    def _has_all(self, connection: Connection, place: int) -> bool:
        """Whether every place before this one is all there is, or the target of the metric is reached."""
        total, metric = self.sweep.total(), self.sweep.metric
        if total is not None and place >= total:
            return True
        if metric is None or metric.target is None:
            return False
        best = (func.max if metric.maximize else func.min)(R.value)
        value = connection.execute(select(best).where(self._mine, R.state == "finished")).scalar()
        return value is not None and metric.is_reached(value)

    def beat(self, mine: Sequence[Row] = ()) -> Progress:
        """A sign of life for one's own rows, and a look at those of others: the silent go back to the queue.

        Raises Away at once where the database does not answer.
        """
        owners, now = [row.owner for row in mine], time.monotonic()
        # Who has not looked for a while, as a process that was stopped, knows of no silence in it; nor does
        # who was cut off: what is seen is kept when all of it is written.
        before = {} if now - self._looked > self.grace_seconds / 2 else self._seen
        self._looked, self._seen = now, {}

        def tell(connection: Connection) -> tuple[Progress, dict[int, tuple[str, int, float]]]:
            running, seen = (self._mine, R.state == RUNNING), {}
            if owners:
                own = RUNS.update().where(*running, R.owner.in_(owners))
                connection.execute(own.values(beat=R.beat + 1))
            there = rows_of(connection, *running)
            for row in there:
                if row.owner in owners:
                    continue
                owner, beat, since = before.get(row.place, ("", 0, now))
                since = since if (owner, beat) == (row.owner, row.beat) else now
                seen[row.place] = (row.owner, row.beat, since)
                if now - since > self.grace_seconds:
                    self._take_away(connection, row)
            lost = frozenset(owners) - {row.owner for row in there}
            return dataclasses.replace(self._counted(connection), lost=lost), seen

        progress, self._seen = self.database.once(tell)
        return progress

    def _take_away(self, connection: Connection, row: Row) -> None:
        queued = {"state": QUEUED, "attempt": row.attempt + 1}
        over = queued if row.attempt < ATTEMPTS else {"state": "lost"}
        as_seen = (self._mine, R.place == row.place, R.state == RUNNING)
        change = RUNS.update().where(*as_seen, R.owner == row.owner, R.beat == row.beat)
        connection.execute(change.values(owner="", **over))

    def report(self, row: Row, band: int, value: float) -> list[float]:
        """Keep the metric of a run at a band, once; returns that of all runs that came so far.

        Raises Away at once where the database does not answer.
        """

        def write(connection: Connection) -> list[float]:
            own = (self._mine, R.place == row.place)
            told = {str(band): value, **connection.execute(select(R.bands).where(*own)).scalar_one()}
            connection.execute(RUNS.update().where(*own, R.owner == row.owner).values(bands=told))
            every = connection.execute(select(R.bands).where(self._mine)).scalars()
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
        own = (self._mine, R.place == row.place, R.owner == row.owner)
        change = RUNS.update().where(*own, R.state.in_((RUNNING, to["state"]))).values(**to)
        return self.database.wait(lambda connection: connection.execute(change).rowcount == 1)

    def requeue(self, rows: Iterable[Row]) -> int:
        """Queue these rows, which have ended, once more as new runs; how many of them nobody had yet."""
        new = vars(Row(0, state=QUEUED, starts=0))
        new = {name: new[name] for name in ("state", "owner", "value", "bands", "attempt", "starts")}

        def write(connection: Connection) -> int:
            count = 0
            for row in rows:
                as_seen = (self._mine, R.place == row.place, R.run_id == row.run_id)
                # Two who fill a hole at once give its run the same id.
                again = hashlib.sha256(row.run_id.encode()).hexdigest()[:8]
                change = RUNS.update().where(*as_seen, R.state == row.state).values(run_id=again, **new)
                count += connection.execute(change).rowcount
            return count

        return self.database.wait(write)

    def adopt(self, rows: Iterable[Row]) -> None:
        """Write down what others have run, or is still to be, where nobody has begun its place."""
        named = [row if row.run_id else dataclasses.replace(row, run_id=secrets.token_hex(4)) for row in rows]

        def write(connection: Connection) -> None:
            there = {*connection.execute(select(R.place).where(self._mine)).scalars()}
            self._insert(connection, [row for row in named if row.place not in there])

        self.database.wait(write)

    def rows(self) -> list[Row]:
        """Every run that was begun so far, by its place."""
        return self.database.wait(lambda connection: rows_of(connection, self._mine))

    def progress(self, *, patient: bool = False) -> Progress:
        """How the runs of all workers stand; cheap, to be asked often.

        Unless `patient`, raises Away at once where the database does not answer.
        """
        return (self.database.wait if patient else self.database.once)(self._counted)

    def _counted(self, connection: Connection) -> Progress:
        query = select(R.state, func.count()).where(self._mine).group_by(R.state)
        states = {found[0]: found[1] for found in connection.execute(query)}
        done = sum(states.get(state, 0) for state in ENDED)
        return Progress(done, states.get(RUNNING, 0), states.get(QUEUED, 0))

    def is_all_done(self) -> bool:
        """Whether every run has ended, of any worker, with the seeds that were added."""
        self.read_added()
        has_all = self.database.wait(lambda connection: self._has_all(connection, self._next(connection)))
        return has_all and not self.progress(patient=True).open
