"""The process of one training in a benchmark, seen from the process that compares: start it, ask it, end it.

Free of torch, which only the started processes load. What they run is `bench.worker`.
"""

from __future__ import annotations

import multiprocessing
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from typing import Any, Self, TypeVar

from ampcompare.runtime.startup import let_threads_sleep
from ampcompare.system.interleaved_timing import count_steps

POLL_SECONDS = 1.0  # between updates of the progress line while a training prepares
# One process loads torch; the process of each training is forked from it.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["ampcompare.bench.worker"])

T = TypeVar("T")
Progress = Callable[[str], None]
Serve = Callable[[Any, Sequence[str]], None]  # gets the connection to the runner, and the overrides


def run_with_torch(function: Callable[..., T], *args: Any) -> T:
    """Call a function in a process that has torch loaded, so that this one need not load it.

    Raises:
        Exception: What the function raises.
    """
    let_threads_sleep()
    with ProcessPoolExecutor(1, mp_context=CONTEXT) as pool:
        return pool.submit(function, *args).result()


def serve_training(connection: Any, overrides: Sequence[str]) -> None:
    """Build the training of a run with these options, and answer the runner."""
    from ampcompare.bench.worker import serve  # It loads torch, which this process does not need.

    serve(connection, overrides)


class TrainingProcess:
    """The process of a training, the connection to it, and what it has measured.

    Args:
        overrides: All options of the training, as on the command line of a run.
        serve: What the process runs.

    Attributes:
        rates: Samples per second, one per round.
        seconds: Seconds of a step, one per round.
        facts: What the process reports of dtype, settings and machine; empty until the training is built.
        first: The answer to the warm-up; empty before it.
        last: The last answer with a measurement.
        failed: Why it cannot go on; empty while it can.
        is_full: Whether it failed for lack of memory.
        is_slow: Whether a step takes too long for rounds.
    """

    def __init__(self, overrides: Sequence[str], serve: Serve = serve_training) -> None:
        self.rates: list[float] = []
        self.seconds: list[float] = []
        self.facts: dict[str, Any] = {}
        self.first: dict[str, Any] = {}
        self.last: dict[str, Any] = {}

        self.failed = ""
        self.is_full = False
        self.is_slow = False

        self._connection, worker_end = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=serve, args=(worker_end, overrides))
        self._process.start()
        worker_end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.join()
        self._connection.close()

    def build(self, limit: TimeLimit) -> None:
        """Wait until the training is built."""
        self.facts = self._receive(limit)

    def warm_up(self, limit: TimeLimit, slow_seconds: float) -> None:
        """Take its first steps, in which it compiles and captures.

        Args:
            limit: Limit of these steps.
            slow_seconds: A training with longer steps takes no turns.
        """
        self.first = self.last = self._ask(None, limit)
        self.is_slow = bool(self.first) and self.first["seconds"] > slow_seconds

    @property
    def is_active(self) -> bool:
        """Return whether the training can take a turn."""
        return not (self.failed or self.is_slow)

    @property
    def rate(self) -> float:
        """Samples per second: the median over rounds, or that of the first steps."""
        return statistics.median(self.rates or [self.first["rate"]])

    @property
    def step_seconds(self) -> float:
        """Seconds of a step: the median over rounds, or that of the first steps."""
        return statistics.median(self.seconds or [self.first["seconds"]])

    def take_turn(self, seconds: float) -> None:
        """Take its steps of a round, for about so many seconds."""
        answer = self._ask(count_steps(seconds, self.first["seconds"]))
        if answer:
            self.last = answer
            self.rates.append(answer["rate"])
            self.seconds.append(answer["seconds"])

    def _ask(self, steps: int | None, limit: TimeLimit | None = None) -> dict[str, Any]:
        """Ask for the warm-up (None) or for timed steps; return the answer as `_receive` does."""
        with suppress(OSError):  # The process has ended; its last message says why.
            self._connection.send(steps)
        return self._receive(limit)

    def _receive(self, limit: TimeLimit | None) -> dict[str, Any]:
        """Return the next answer; an empty one, with `failed` set, where there is none."""
        try:
            if limit is not None and not self._wait(limit):
                self._process.kill()
                self.failed = limit.message()
                return {}
            answer = self._connection.recv()
        except (EOFError, OSError):
            self._note_end()
            return {}
        if "failed" in answer:
            self.failed = answer["failed"]
            self.is_full = answer["full"]
            return {}
        return answer

    def _wait(self, limit: TimeLimit) -> bool:
        """Wait for the next answer; return whether there is one within the limit."""
        while not self._connection.poll(limit.next_wait()):
            if limit.is_over():
                return False
        return True

    def _note_end(self) -> None:
        """Note how the process ended."""
        self._process.join()
        code = self._process.exitcode or 0
        if code < 0:
            self.failed = f"its process was killed by signal {-code}"
        else:
            self.failed = f"its process exited with code {code}"
        self.is_full = code == -signal.SIGKILL  # as when the machine is out of memory


class TimeLimit:
    """A time limit of the preparation, which reports what is being prepared while it runs.

    Args:
        minutes: The limit.
        activity: What is being prepared.
        report: Receives the progress line.
        owner: Whose preparation it is, for the progress line: ` of training 2/5, native`.
    """

    def __init__(self, minutes: float, activity: str, report: Progress, owner: str = "") -> None:
        self._seconds = 60 * minutes
        self._began = time.monotonic()
        self._activity = activity
        self._owner = owner
        self._report = report

    def next_wait(self) -> float:
        """Report progress; return the seconds to wait until the next report."""
        spent = time.monotonic() - self._began
        # What is prepared comes first: a narrow terminal may have no room for the rest.
        self._report(f"{self._activity}{self._owner}: {spent:.0f} s (limit {self._seconds:.0f} s)")
        return max(0.0, min(POLL_SECONDS, self._seconds - spent))

    def is_over(self) -> bool:
        """Return whether no time is left."""
        return time.monotonic() - self._began >= self._seconds

    def message(self) -> str:
        """Return why a training that has met the limit is not measured."""
        return f"{self._activity} did not finish within {self._seconds:.0f} s; raise --prepare-minutes"
