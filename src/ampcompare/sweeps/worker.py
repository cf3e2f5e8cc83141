"""A worker: takes runs from the queue one after the other and sees each through to its end."""

import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Self

from ampcompare.sweeps.display import Job, SweepDisplay
from ampcompare.sweeps.follow import Follower
from ampcompare.sweeps.process import ENDS, STOP_SECONDS, Guard, Launch, Run, ended, note_end
from ampcompare.sweeps.queue import Queue
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
    watch: Callable[[Run], bool] = lambda run: False,
) -> tuple[str, int | None]:
    """Start a run and wait for its end, and `watch` it several times a second: whether it falls behind.

    Returns how it ended and its exit code: finished, failed, stopped (it fell behind), interrupted (it was
    asked to end before its end), or lost (by a signal that nobody here knows of: once more).
    """
    run = launch.start(row, guard, gpu)
    if run is None:
        return "failed", None
    kill_at, early, asked = math.inf, False, False
    while (code := run.wait(POLL_SECONDS)) is None:
        now = time.monotonic()
        early = (watch(run) and not asked) or early
        if (early or stop.asked.is_set()) and kill_at == math.inf:
            # What has ended by itself just now was not interrupted.
            asked = run.tell(signal.SIGTERM if early else stop.number) and not early
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


class Workers:
    """The workers of one process: each has one run at a time, until there are no more.

    From `with` to its end a thread of its own gives signs of life for their runs: a worker may be waiting for
    the database, or reading a long record, and neither is silence.
    """

    def __init__(self, queue: Queue, launch: Launch, stop: Stop, display: SweepDisplay) -> None:
        self._queue, self._launch, self._stop, self._display = queue, launch, stop, display
        self._held: dict[str, Row] = {}  # by their owners
        self._lost: frozenset[str] = frozenset()  # owners whose runs others have taken over
        self._problem: Exception | None = None  # what ended the signs of life
        self._ended = threading.Event()
        self._pulse = threading.Thread(target=self._beat, name="pulse", daemon=True)

    def __enter__(self) -> Self:
        self._guard = Guard()
        self._pulse.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._ended.set()
        self._pulse.join()
        self._guard.close()

    def see_round(self, count: int, gpus: Sequence[str]) -> None:
        """So many workers, until nothing is left to do; each has one of the GPUs, if there are any. Raises
        Away where the database stays away.
        """
        self._display.workers = count
        with ThreadPoolExecutor(count) as pool:
            going_on = [pool.submit(self._work, gpus[i % len(gpus)] if gpus else None) for i in range(count)]
            while wait(going_on, 0.2).not_done:  # without a limit signals would wait
                pass
        for worker in going_on:
            worker.result()

    def _beat(self) -> None:
        try:
            while not self._ended.wait(self._queue.heartbeat_seconds):
                with suppress(Away):  # it was said; a beat later
                    progress = self._queue.beat([*self._held.values()])
                    self._lost |= progress.lost
                    self._display.update(progress)
        except Exception as problem:  # of whatever kind: told by the worker whose run goes on unheard
            self._problem = problem

    def _is_lost(self, row: Row) -> bool:
        """Whether another worker has taken it over. Raises what ended the signs of life, as a UserError for a
        database that cannot be used: a run without them is taken over.
        """
        if self._problem:
            raise self._problem
        return row.owner in self._lost

    def _work(self, gpu: str | None) -> None:
        """What it raises stops all of them, but for Away: the runs of the others go on."""
        try:
            while not self._stop.asked.is_set():
                try:
                    row = self._queue.claim()
                    there = 0 if row else self._queue.progress().open
                except Away:
                    if self._stop.asked.is_set():
                        return
                    raise
                if row:
                    self._held[row.owner] = row
                    try:
                        self._see_through(row, gpu)
                    finally:
                        del self._held[row.owner]
                elif there:  # runs of other workers: should one of them die, its run has to be taken over
                    self._display.waiting(there)
                    self._stop.asked.wait(WAIT_FOR_OTHERS_SECONDS)
                else:
                    return
        except Away:
            raise
        except BaseException:
            self._stop.asked.set()
            raise

    def _see_through(self, row: Row, gpu: str | None) -> None:
        launch, metric = self._launch, self._launch.sweep.metric
        job = Job(row, time.monotonic(), gpu, launch.log(row.run_id))
        self._display.change(job)
        follower = Follower(launch.folder, row.run_id, metric.name if metric else None)
        state = self._before(row) if row.attempt > 1 else None
        if state is None:
            watch = partial(self._watch, job, follower, {*row.bands})
            state, job.exit_code = see_through(row, launch, self._guard, self._stop, gpu, watch)
            job.seconds = time.monotonic() - job.began
        if state in ENDS:
            with suppress(OSError):
                note_end(launch.folder, row.run_id, state)
            job.value = follower.last(now=True)
        value = job.value if job.value is not None and math.isfinite(job.value) else None
        job.state = state if self._queue.end(row, state, value) else "taken over"
        self._display.change(job)

    def _before(self, row: Row) -> str | None:
        """How a run ended whose worker was silent, and may be dead or not, where it did: it may have died, or
        the database been away, before it could say so. Done twice would be once too many.
        """
        while self._launch.is_going_on(row.run_id):
            if self._stop.asked.wait(POLL_SECONDS) or self._is_lost(row):
                return "interrupted"
        return ended(self._launch.folder, row.run_id)

    def _watch(self, job: Job, follower: Follower, judged: set[str], run: Run) -> bool:
        """How far a run is, whether it is still ours, and whether it falls behind at a band that it has not
        been `judged` at.
        """
        job.seconds = time.monotonic() - job.began
        if self._is_lost(job.row):  # we were silent too long: another worker repeats it
            run.kill()
        values, job.value = follower.values(), follower.last()
        metric, early = self._launch.sweep.metric, self._launch.sweep.hyperband
        if metric is None or early is None:
            return False
        # What is not finite is the worst that a database's JSON can hold.
        best, worst = (max, -sys.float_info.max) if metric.maximize else (min, sys.float_info.max)
        for band in (band for band in early.bands if band <= len(values) and str(band) not in judged):
            reached = [value if math.isfinite(value) else worst for value in values[:band]]
            value = reached[-1] if early.strict else best(reached)
            try:
                known = self._queue.report(job.row, band, value)
            except Away:  # when the database is back
                return False
            judged.add(str(band))
            if falls_behind(value, known, early.eta, maximize=metric.maximize):
                return True
        return False
