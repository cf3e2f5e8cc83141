"""The queue of a sweep: a table of its runs in a database that any number of workers may share.

A row is a run. Whoever takes it writes a token of its own into `owner`, and what it writes later counts where
the token is still there: each point is counted once, whoever dies when. Workers count `beat` up; a row whose
owner and beat stay the same for the grace time, by the clock of who looks, goes back to the queue. Rows are
made as they are begun: a sweep can get longer, and a grid may be as long as it likes.

One writes at a time: each transaction first locks the sweep's own row (SQLite: the file), so that what it
read is still so when it writes.
"""

import dataclasses
import hashlib
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Connection, func, select
from sqlalchemy.exc import IntegrityError

from ampcompare.sweeps.definition import Added, agreed, definition, seed_of
from ampcompare.sweeps.search import row_at
from ampcompare.sweeps.storage import Address, Database, shown
from ampcompare.sweeps.sweep import Sweep
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
    rows_of,
)

ATTEMPTS = 2  # of a run whose worker died
ENDED = ("finished", "stopped", "failed", "lost")
ELSEWHERE = "elsewhere"  # of a run that somebody else had begun when the holes of a sweep were filled
T = TypeVar("T")


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
    database has it, with all seeds so far, `added` the groups of seeds that came since it began. All wait for
    a database that is away, and say so (`database`); but `beat` and `report` raise Away at once. Raises
    UserError where the database cannot be used or holds another sweep under the same name.
    """

    def __init__(
        self,
        sweep: Sweep,
        storage: Address,
        name: str,
        grace_seconds: float = 60.0,
        words: Sequence[str] = (),
        plan: Mapping[str, Any] | None = None,
    ) -> None:
        self.sweep, self.name, self.url, self.plan = sweep, name, storage, plan
        self.grace_seconds = grace_seconds
        self.heartbeat_seconds = min(2.0, grace_seconds / 3)
        self.added: list[Added] = []
        self._own, self._rows = SWEEPS.c.name == name, R.sweep == name
        self._seen: dict[tuple[str, int], float] = {}  # of others' rows: owner and beat, since when
        self._looked = time.monotonic()
        self.database = Database(storage, TABLES)
        made = {"format": FORMAT, "sweep": definition(sweep, words), "groups": []}

        def begin(connection: Connection) -> Any:
            if find_definition(connection, name, storage) is None:
                with suppress(IntegrityError), connection.begin_nested():  # another begins it just now
                    connection.execute(SWEEPS.insert().values(name=name, definition=made))
            found = find_definition(connection, name, storage)
            assert found
            return found["sweep"]

        began = self.database.wait(begin)
        self._seed = seed_of(sweep, began)
        is_agreed = False
        while not is_agreed:  # another may add seeds just now
            groups = [group.seeds for group in self.read_added()]
            self.sweep, more = agreed(sweep, words, began, groups, shown(storage))
            is_agreed = not more or self.add(Added(more))

    def _locked(self, connection: Connection) -> dict[str, Any]:
        """What is written of the sweep; until the end of this transaction nobody else is at it."""
        query = select(SWEEPS.c.definition).where(self._own).with_for_update()
        return dict(connection.execute(query).scalar_one())

    def _alone(self, act: Callable[[Connection], T]) -> T:
        """What `act` does with the database, with nobody else at it, when it answers. The seeds that others
        have added are known by then.
        """

        def transaction(connection: Connection) -> T:
            self._hear(self._locked(connection)["groups"])
            return act(connection)

        return self.database.wait(transaction)

    def _hear(self, groups: Sequence[Any]) -> None:
        if len(groups) > len(self.added):
            self.added = [Added(tuple(seeds), look, tuple(said)) for seeds, look, said in groups]
            seeds = tuple(group.seeds for group in self.added if group.seeds)
            self.sweep = dataclasses.replace(self.sweep, added=seeds)

    def _change(self, connection: Connection, *conditions: Any, **values: Any) -> int:
        """Change the rows that meet these conditions; how many there were."""
        return connection.execute(RUNS.update().where(self._rows, *conditions).values(**values)).rowcount

    def add(self, group: Added) -> bool:
        """Add a group of seeds behind all those there are. False: another worker has added one since."""
        number, mine = len(self.added), [[*group.seeds], group.look, [*group.said]]

        def write(connection: Connection) -> list[Any]:
            written = self._locked(connection)
            groups: list[Any] = written["groups"]
            if len(groups) == number:
                groups.append(mine)
                connection.execute(SWEEPS.update().where(self._own).values(definition=written))
            return groups

        groups = self.database.wait(write)
        self._hear(groups)
        return bool(groups[number] == mine)  # written just now, or before the connection broke

    def read_added(self) -> list[Added]:
        """The groups of seeds that were added, those of other workers too."""
        self._alone(lambda connection: None)
        return self.added

    def claim(self) -> Row | None:
        """A run to be made, None when nothing is left to start (runs of other workers may still go on)."""
        owner = secrets.token_hex(8)

        def take(connection: Connection) -> Row | None:
            if mine := rows_of(connection, self._rows, R.state == RUNNING, R.owner == owner):
                return mine[0]  # taken before the connection broke
            first = select(func.min(R.place)).where(self._rows, R.state == QUEUED)
            if (place := connection.execute(first).scalar()) is not None:
                taken = {"state": RUNNING, "owner": owner, "starts": R.starts + 1}
                self._change(connection, R.place == place, **taken)
                return rows_of(connection, self._rows, R.place == place)[0]
            if (place := self._next(connection)) is None:
                return None
            # A sampler goes by what was tried; other draws are a function of sweep and place.
            tried = rows_of(connection, self._rows) if self.sweep.learns else []
            row = row_at(self.sweep, self._seed, self.plan, place, tried)
            row = dataclasses.replace(row, run_id=secrets.token_hex(4), owner=owner)
            connection.execute(RUNS.insert().values(sweep=self.name, **vars(row)))
            return row

        return self._alone(take)

    def _next(self, connection: Connection) -> int | None:
        """The place behind the last that was begun; None where that was all, or the target is reached."""
        last = connection.execute(select(func.max(R.place)).where(self._rows)).scalar()
        place = 0 if last is None else int(last) + 1
        total, metric = self.sweep.total(), self.sweep.metric
        if total is not None and place >= total:
            return None
        if metric is not None and metric.target is not None:
            best = (func.max if metric.maximize else func.min)(R.value)
            ended = select(best).where(self._rows, R.state == "finished")
            if (value := connection.execute(ended).scalar()) is not None and metric.is_reached(value):
                return None
        return place

    def beat(self, mine: Sequence[Row] = ()) -> Progress:
        """A sign of life for one's own rows, and a look at others': the silent go back to the queue.

        It hears of no new seeds: the pulse goes on while a look is taken, which goes by those before it.
        """
        owners, now = {row.owner for row in mine}, time.monotonic()
        # Who has not looked for a while, as a process that was stopped, knows of no silence in it; nor does
        # who was cut off: what is seen is kept when all of it is written.
        before = {} if now - self._looked > self.grace_seconds / 2 else self._seen
        self._looked, self._seen = now, {}

        def tell(connection: Connection) -> tuple[Progress, dict[tuple[str, int], float]]:
            self._locked(connection)
            self._change(connection, R.state == RUNNING, R.owner.in_(owners), beat=R.beat + 1)
            running = rows_of(connection, self._rows, R.state == RUNNING)
            others = [row for row in running if row.owner not in owners]
            seen = {(row.owner, row.beat): before.get((row.owner, row.beat), now) for row in others}
            for row in others:
                if now - seen[row.owner, row.beat] > self.grace_seconds:
                    self._change(connection, R.place == row.place, owner="", **_after_loss(row))
            lost = frozenset(owners - {row.owner for row in running})
            return dataclasses.replace(self._counted(connection), lost=lost), seen

        progress, self._seen = self.database.once(tell)
        return progress

    def report(self, row: Row, band: int, value: float) -> list[float]:
        """Keep the metric of a run at a band, once; returns that of all runs that came so far."""

        def write(connection: Connection) -> list[float]:
            self._locked(connection)
            own, key = R.place == row.place, str(band)
            told = {key: value, **connection.execute(select(R.bands).where(self._rows, own)).scalar_one()}
            self._change(connection, own, R.owner == row.owner, bands=told)
            every = connection.execute(select(R.bands).where(self._rows)).scalars()
            return [bands[key] for bands in every if key in bands]

        return self.database.once(write)

    def end(self, row: Row, state: str, value: float | None = None) -> bool:
        """Record how a row ended: finished, stopped (by early termination), failed; interrupted or lost, and
        it is queued again, after a loss once. False if it was taken over. May be repeated.
        """
        to: dict[str, Any] = {"state": QUEUED if state == "interrupted" else state, "value": value}
        to |= _after_loss(row) if state == "lost" else {}
        # The owner stays: a commit whose answer was lost is found again.
        mine = (R.place == row.place, R.owner == row.owner, R.state.in_((RUNNING, to["state"])))
        return self._alone(lambda connection: self._change(connection, *mine, **to) == 1)

    def requeue(self, rows: Iterable[Row]) -> int:
        """Queue these rows, which have ended, once more as new runs; how many of them nobody had yet."""
        new = vars(Row(0, state=QUEUED, starts=0))
        new = {name: new[name] for name in ("state", "owner", "value", "bands", "attempt", "starts")}

        def write(connection: Connection) -> int:
            count = 0
            for row in rows:
                as_seen = (R.place == row.place, R.run_id == row.run_id, R.state == row.state)
                # Two who fill a hole at once give its run the same id.
                again = hashlib.sha256(row.run_id.encode()).hexdigest()[:8]
                count += self._change(connection, *as_seen, run_id=again, **new)
            return count

        return self._alone(write)

    def adopt(self, rows: Iterable[Row]) -> None:
        """Write down what others have run, or is still to be, where nobody has begun its place."""
        named = [row if row.run_id else dataclasses.replace(row, run_id=secrets.token_hex(4)) for row in rows]

        def write(connection: Connection) -> None:
            there = {*connection.execute(select(R.place).where(self._rows)).scalars()}
            if new := [{"sweep": self.name, **vars(row)} for row in named if row.place not in there]:
                connection.execute(RUNS.insert(), new)

        self._alone(write)

    def rows(self) -> list[Row]:
        """Every run that was begun so far, by its place."""
        return self.database.wait(lambda connection: rows_of(connection, self._rows))

    def progress(self) -> Progress:
        """How the runs of all workers stand; cheap, to be asked often."""
        return self.database.wait(self._counted)

    def _counted(self, connection: Connection) -> Progress:
        query = select(R.state, func.count()).where(self._rows).group_by(R.state)
        states = {found[0]: found[1] for found in connection.execute(query)}
        done = sum(states.get(state, 0) for state in ENDED)
        return Progress(done, states.get(RUNNING, 0), states.get(QUEUED, 0))

    def is_all_done(self) -> bool:
        """Whether every run has ended, of any worker, with the seeds that were added."""
        return self._alone(
            lambda connection: self._next(connection) is None and not self._counted(connection).open
        )


def _after_loss(row: Row) -> dict[str, Any]:
    if row.attempt < ATTEMPTS:
        return {"state": QUEUED, "attempt": row.attempt + 1}
    return {"state": "lost"}
