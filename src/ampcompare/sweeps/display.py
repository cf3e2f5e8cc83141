"""What a sweep shows: a line per event and, in a terminal, one line beneath them of how it stands."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ampcompare import metrics
from ampcompare.errors import one_line
from ampcompare.program.console import clock, print_line
from ampcompare.records.tree import flatten
from ampcompare.sweeps.file import Sweep
from ampcompare.sweeps.process import last_words
from ampcompare.sweeps.queue import Progress
from ampcompare.sweeps.row import Row
from ampcompare.sweeps.worker import Job


def in_words(parameters: Mapping[str, Any], arm: str | None = None) -> str:
    """Parameters as they would be typed, `backend=native seed=223`, and whether the run is the control's.

    Without the plan, which is the same for all.
    """
    said = [f"{key}={value}" for key, value in flatten(dict(parameters)) if not key.startswith("plan.")]
    return " ".join([*said, f"(control, {arm})"] if arm else said)


class SweepDisplay:
    """Follows the jobs of this process; safe to call from its workers.

    `total` is how many runs there are by now, `ended` how many have come to their end, of any worker.
    """

    def __init__(
        self,
        console: Console,
        sweep: Sweep,
        done: int,
        total: Callable[[], int | None],
        ended: Callable[[], int],
    ) -> None:
        self.console, self.sweep, self.done = console, sweep, done
        self.workers = 1
        self._metric = sweep.metric.name if sweep.metric else ""
        self._total, self._ended = total, ended
        self._jobs: dict[tuple[str, int], Job] = {}
        self._lock = threading.RLock()
        self._waiting_for = 0
        self._running = 0  # with any worker, as far as known
        self._said = done
        live = Live(console=console, get_renderable=self._status, refresh_per_second=2, transient=True)
        self._live = live if console.is_terminal else None

    def __enter__(self) -> SweepDisplay:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *raised: object) -> None:
        if self._live:
            with contextlib.suppress(OSError):  # the terminal has gone
                self._live.stop()

    def change(self, job: Job) -> None:
        """A run began or ended."""
        known = self._ended() if job.state != "running" else 0
        with self._lock:
            self._jobs[job.run_id, job.attempt] = job
            self._waiting_for = 0
            self.done = max(known, self.done)
        self.say(self._line(job))
        if job.state == "finished" and self._metric and job.value is None:
            listed = metrics.find(self._metric)
            why = f", which needs {listed.needs}" if listed and listed.needs else ""
            self.say(f"run {job.number} never logged {self._metric}{why}: the sweep learns nothing from it")
        if job.state == "failed":
            exit_code = "" if job.exit_code is None else f"exit code {job.exit_code}: "
            why = f"{exit_code}{last_words(job.log) or 'it said nothing'}"
            self.say(f"run {job.number} failed ({why}); its output: {job.log}")

    def update(self, progress: Progress) -> None:
        """How many runs of all workers have ended by now, and how many go on."""
        with self._lock:
            self.done = max(progress.done, self.done)
            self._running = progress.running

    def close(self) -> None:
        """All is done: say so where the last line, of a run of this process, could not know it."""
        if (total := self._total()) and self.done != self._said:
            self.say(f"{self.done} of {total} done")

    def waiting(self, running: int) -> None:
        """Nothing is left to start; runs of other workers go on."""
        if running != self._waiting_for:
            self._waiting_for = running
            self.say(f"waiting for {running} {'run' if running == 1 else 'runs'} of other workers")

    def say(self, line: str) -> None:
        """One line for the user."""
        print_line(self.console, one_line(line))

    def _seconds_left(self) -> float | None:
        """An estimate from the median time of the runs that ended, None while none has."""
        with self._lock:
            jobs = [*self._jobs.values()]
        times = [job.seconds for job in jobs if job.state in ("finished", "stopped")]
        total = self._total()
        if not times or total is None:
            return None
        gone = sum(min(job.seconds, median(times)) for job in jobs if job.state == "running")
        return max(0.0, ((total - self.done) * median(times) - gone) / max(self.workers, self._running))

    def _line(self, job: Job) -> str:
        if job.state == "running":
            again = f", attempt {job.attempt}" if job.attempt > 1 else ""
            where = f" on GPU {job.gpu}" if job.gpu else ""
            return f"run {job.number} started{where}{again}: {in_words(job.parameters, job.arm)}"
        value = f", {self._metric} {job.value:.6g}" if job.value is not None else ""
        total, left = self._total(), self._seconds_left()
        self._said = self.done
        ended = f"{self.done} of {total} done" if total else f"{self.done} done"
        tail = f", {_time(left)} left" if left else ""
        return f"run {job.number} {job.state} after {_time(job.seconds)}{value} ({ended}{tail})"

    def _status(self) -> Text:
        total, left = self._total(), self._seconds_left()
        parts = [f"{self.done} of {total} done" if total else f"{self.done} done, Ctrl-C ends the sweep"]
        with self._lock:
            going_on = [job for job in self._jobs.values() if job.state == "running"]
        if left:
            parts.append(f"about {_time(left)} left")
        for job in going_on:
            value = f", {self._metric} {job.value:.6g}" if job.value is not None else ""
            parts.append(f"run {job.number} {_time(time.monotonic() - job.began)}{value}")
        return Text(one_line(" · ".join(parts)), style="dim", no_wrap=True, overflow="ellipsis")


def print_best(console: Console, sweep: Sweep, rows: Sequence[Row]) -> None:
    """The best run of the sweep by its metric."""
    metric = sweep.metric
    ranked = [row for row in rows if row.state == "finished" and row.value is not None]
    if metric is None or not ranked:
        return
    best = (max if metric.maximize else min)(ranked, key=lambda row: row.value or 0.0)
    said = in_words(best.parameters, best.plan.get("arm"))
    line = f"best run: {best.run_id}, {metric.name} {best.value:.6g}: {said}"
    print_line(console, one_line(line))


def _time(seconds: float) -> str:
    """As `clock`; under ten seconds with a decimal."""
    return f"{seconds:.1f} s" if seconds < 10 else clock(seconds)
