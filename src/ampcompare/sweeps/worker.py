"""A worker: takes runs from the queue one after the other and sees each through to its end."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from ampcompare.sweeps.follow import Follower
from ampcompare.sweeps.process import ENDS, STOP_SECONDS, Guard, Launch, Run, ended, note_end
from ampcompare.sweeps.queue import Progress, Queue
from ampcompare.sweeps.search import falls_behind
from ampcompare.sweeps.storage import PATIENCE_SECONDS, Away
from ampcompare.sweeps.table import Row

POLL_SECONDS = 0.25
WAIT_FOR_OTHERS_SECONDS = 2.0
SAME_SIGNAL_SECONDS = 2.0  # between a run's end by a signal and this process's hearing of it
# By the machine (no memory left), by a scheduler, by someone's hand; 128 and more is a shell's way to say it.
SIGNALS = [getattr(signal, f"SIG{name}") for name in ("KILL", "TERM", "INT", "HUP", "USR1", "USR2")]
KILLED = tuple(code for number in SIGNALS for code in (-number, 128 + number))


@dataclass
class Job:
    """What a run of this process looks like from outside."""

    row: Row
    began: float
    gpu: str | None = None
    log: Path = field(default_factory=Path)
    state: str = "running"
    value: float | None = None  # the newest of the metric
    seconds: float = 0.0
    exit_code: int | None = None


class Pulse(threading.Thread):
    """Signs of life for the rows of one process, from `with` to its end, from a thread of its own: a worker
    may be waiting for the database, or reading a long record, and neither is silence. `told` gets what all
    workers have done by now.
    """

    def __init__(self, queue: Queue, told: Callable[[Progress], None]) -> None:
        super().__init__(name="pulse", daemon=True)
        self._queue, self._told = queue, told
        self._ended = threading.Event()
        self._held: dict[str, Row] = {}
        self._lost: frozenset[str] = frozenset()
        self._problem: Exception | None = None

    def __enter__(self) -> Pulse:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._ended.set()
        self.join()

    @contextmanager
    def holding(self, row: Row) -> Iterator[None]:
        """Its worker is alive until its end is written, or will not be."""
        self._held[row.owner] = row
        try:
            yield
        finally:
            del self._held[row.owner]

    def is_lost(self, row: Row) -> bool:
        """Whether another worker has taken it over. Raises what ended the signs of life, as a UserError for a
        database that cannot be used: a run without them is taken over.
        """
        if self._problem:
            raise self._problem
        return row.owner in self._lost

    def run(self) -> None:
        try:
            while not self._ended.wait(self._queue.heartbeat_seconds):
                with suppress(Away):  # it was said; a beat later
                    progress = self._queue.beat([*self._held.values()])
                    self._lost |= progress.lost
                    self._told(progress)
        except Exception as problem:  # of whatever kind: told by the worker whose run goes on unheard
            self._problem = problem


@dataclass
class Stop:
    """How the runs of this process are asked to end: none begins then, those going on are sent `number`, and
    are killed when `seconds` have passed, or `at_once`.
    """

    asked: threading.Event = field(default_factory=threading.Event)
    at_once: threading.Event = field(default_factory=threading.Event)
    number: int = signal.SIGTERM
    seconds: float = STOP_SECONDS

    def patience(self) -> float:
        """For how many seconds a database that does not answer is waited for: for what runs ended with in a
        sweep that is being stopped as long as for these.
        """
        return 0.0 if self.at_once.is_set() else STOP_SECONDS if self.asked.is_set() else PATIENCE_SECONDS


def see_through(
    row: Row,
    launch: Launch,
    guard: Guard,
    stop: Stop,
    gpu: str | None = None,
    falls_behind: Callable[[Run], bool] = lambda run: False,
) -> tuple[str, int | None]:
    """Start a run and wait for its end, looking at it several times a second whether it `falls_behind`.

    Returns how it ended and its exit code: finished, failed, stopped (it fell behind), interrupted (it was
    asked to end before its end), or lost (by a signal that nobody here knows of: once more).
    """
    run = launch.start(row, guard, gpu)
    if run is None:
        return "failed", None
    kill_at, early, asked = math.inf, False, False
    while (code := run.wait(POLL_SECONDS)) is None:
        now = time.monotonic()
        early = (falls_behind(run) and not asked) or early
        if (early or stop.asked.is_set()) and kill_at == math.inf:
            asked = not early
            run.tell(stop.number if asked else signal.SIGTERM)
            kill_at = now + stop.seconds
        if stop.at_once.is_set() or now > kill_at:
            run.kill()
    if early:
        return "stopped", code
    # A scheduler's signal may reach the run before this process hears of it.
    if code in KILLED and not asked and not (asked := stop.asked.wait(SAME_SIGNAL_SECONDS)):
        return "lost", code
    # It may have come behind the end of the run's record, before the end of its process.
    if code == 0 or (code in KILLED and Follower(launch.folder, row.run_id, None).exit_code() == 0):
        return ("interrupted" if asked and code == 0 and not launch.here else "finished"), code
    return ("interrupted" if asked else "failed"), code


@dataclass(frozen=True)
class Workers:
    """The workers of one process: each has one run at a time, until there are no more."""

    queue: Queue
    launch: Launch
    guard: Guard
    pulse: Pulse
    stop: Stop
    on_change: Callable[[Job], None]
    on_waiting: Callable[[int], None]

    def work(self, gpu: str | None) -> None:
        """One of them; `gpu` is the only device that its runs see. Raises Away where the database stays away,
        and the runs of others go on; what else it raises stops them all.
        """
        try:
            while not self.stop.asked.is_set():
                try:
                    row = self.queue.claim()
                    there = 0 if row else self.queue.progress(patient=True).open
                except Away:
                    if self.stop.asked.is_set():
                        return
                    raise
                if row:
                    with self.pulse.holding(row):
                        self._see_through(row, gpu)
                elif there:  # runs of other workers: should one of them die, its run has to be taken over
                    self.on_waiting(there)
                    self.stop.asked.wait(WAIT_FOR_OTHERS_SECONDS)
                else:
                    return
        except Away:
            raise
        except BaseException:
            self.stop.asked.set()
            raise

    def _see_through(self, row: Row, gpu: str | None) -> None:
        launch, metric, early = self.launch, self.launch.sweep.metric, self.launch.sweep.hyperband
        job = Job(row, time.monotonic(), gpu, launch.log(row.run_id))
        self.on_change(job)
        follower = Follower(launch.folder, row.run_id, metric.name if metric else None)
        bands = [band for band in early.bands if str(band) not in row.bands] if early else []

        def falls_behind(run: Run) -> bool:
            job.seconds = time.monotonic() - job.began
            if self.pulse.is_lost(row):  # we were silent too long: another worker repeats it
                run.kill()
            values = follower.values()
            job.value = values[-1] if values else None
            is_behind = False
            with suppress(Away):  # the band is compared when the database is back
                while bands and not is_behind and len(values) >= bands[0]:
                    is_behind = self._falls_behind(row, values[: bands[0]], bands[0])
                    del bands[0]
            return is_behind

        state = self._before(row) if row.attempt > 1 else None
        if state is None:
            state, job.exit_code = see_through(row, launch, self.guard, self.stop, gpu, falls_behind)
            job.seconds = time.monotonic() - job.began
        if state in ENDS:
            with suppress(OSError):
                note_end(launch.folder, row.run_id, state)
            values = follower.values(now=True)
            job.value = values[-1] if values else None
        value = job.value if job.value is not None and math.isfinite(job.value) else None
        is_mine = self.queue.end(row, state, value)
        job.state = state if is_mine else "taken over"
        self.on_change(job)

    def _before(self, row: Row) -> str | None:
        """How a run ended whose worker was silent, and may be dead or not, where it did: it may have died, or
        the database been away, before it could say so. Done twice would be once too many.
        """
        while self.launch.is_going_on(row.run_id):
            if self.stop.asked.wait(POLL_SECONDS) or self.pulse.is_lost(row):
                return "interrupted"
        return ended(self.launch.folder, row.run_id)

    def _falls_behind(self, row: Row, values: list[float], band: int) -> bool:
        metric, early = self.launch.sweep.metric, self.launch.sweep.hyperband
        assert metric
        assert early
        worst = -math.inf if metric.maximize else math.inf
        reached = [worst if math.isnan(v) else v for v in values]
        value = reached[-1] if early.strict else (max if metric.maximize else min)(reached)
        known = self.queue.report(row, band, value)
        return falls_behind(value, known, early.eta, maximize=metric.maximize)
