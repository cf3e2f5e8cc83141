"""What a sweep shows: a line per event and, in a terminal, one line beneath them of how it stands."""

import contextlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ampcompare.errors import one_line
from ampcompare.program.console import clock, print_line
from ampcompare.records.tree import flatten
from ampcompare.report.words import plural
from ampcompare.sweeps.process import last_words
from ampcompare.sweeps.queue import Progress, Queue
from ampcompare.sweeps.storage import Away
from ampcompare.sweeps.table import Row


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


class SweepDisplay:
    """Follows the jobs of this process; safe to call from its workers. `progress` is that of all workers."""

    def __init__(self, console: Console, queue: Queue, progress: Progress) -> None:
        self.console, self.queue, self.progress = console, queue, progress
        self.workers = 1
        self._jobs: list[Job] = []
        self._counting, self._saying = threading.Lock(), threading.Lock()
        self._waiting_for = 0
        self._said = progress.done
        live = Live(console=console, get_renderable=self._status, refresh_per_second=2, transient=True)
        self._live = live if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *raised: object) -> None:
        if self._live:
            with contextlib.suppress(OSError):  # the terminal has gone
                self._live.stop()

    def change(self, job: Job) -> None:
        """A run began or ended."""
        row, metric, run = job.row, self.queue.sweep.metric, f"run {job.row.place}"
        if job.state == "running":
            self._jobs.append(job)
            self._waiting_for = 0
            again = f", attempt {row.attempt}" if row.attempt > 1 else ""
            where = f" on GPU {job.gpu}" if job.gpu else ""
            self.say(f"{run} started{where}{again}: {in_words(row)}")
            return
        with contextlib.suppress(Away):  # what was known before stands
            self.update(self.queue.progress())
        with self._saying:  # a later count is said later
            self._said = self.progress.done
            self.say(
                f"{run} {job.state} after {_time(job.seconds)}{self._value(job)} ({self._counted(', ')})"
            )
        if job.state == "finished" and metric and job.value is None:
            self.say(f"{run} never logged {metric.name}: the sweep learns nothing from it")
        if job.state == "failed":
            exit_code = "" if job.exit_code is None else f"exit code {job.exit_code}: "
            why = f"{exit_code}{last_words(job.log) or 'it said nothing'}"
            self.say(f"{run} failed ({why}); its output: {job.log}")

    def update(self, progress: Progress) -> None:
        """How the runs of all workers stand by now, as far as they go on."""
        with self._counting:
            self.progress = max(progress, self.progress, key=lambda known: known.done)

    def close(self) -> None:
        """All is done: say so where the last line, of a run of this process, could not know it."""
        self.update(self.queue.progress())
        if self.queue.sweep.total() and self.progress.done != self._said:
            self.say(self._counted())

    def waiting(self, running: int) -> None:
        """Nothing is left to start; runs of other workers go on."""
        if running != self._waiting_for:
            self._waiting_for = running
            self.say(f"waiting for {plural(running, 'run')} of other workers")

    def say(self, line: str) -> None:
        """One line for the user."""
        print_line(self.console, one_line(line))

    def _counted(self, between: str = "") -> str:
        """How many are done; behind `between` the time that is left, by the median of the runs that ended."""
        total, done = self.queue.sweep.total(), self.progress.done
        counted = f"{done} of {total} done" if total else f"{done} done"
        times = [job.seconds for job in self._jobs if job.state in ("finished", "stopped")]
        left = (total or 0) - done
        if between and times and left > 0:
            workers = max(self.workers, self.progress.running)
            counted += f"{between}{_time(left * median(times) / workers)} left"
        return counted

    def _value(self, job: Job) -> str:
        metric = self.queue.sweep.metric
        return f", {metric.name} {job.value:.6g}" if metric and job.value is not None else ""

    def _status(self) -> Text:
        now = time.monotonic()
        going_on = [job for job in self._jobs if job.state == "running"]
        said = [f"run {job.row.place} {_time(now - job.began)}{self._value(job)}" for job in going_on]
        line = one_line(" · ".join([self._counted(" · about "), *said]))
        return Text(line, style="dim", no_wrap=True, overflow="ellipsis")


def in_words(row: Row) -> str:
    """The parameters of a run as they would be typed, `backend=native seed=223`, and whether it is the
    control's. Without the plan, which is the same for all.
    """
    pairs = flatten(dict(row.parameters))
    said = [f"{key}={value}" for key, value in pairs if not key.startswith("plan.")]
    return " ".join([*said, *([f"(control, {row.plan['arm']})"] if "arm" in row.plan else [])])


def print_best(console: Console, queue: Queue, rows: Sequence[Row]) -> None:
    """The best run of the sweep by its metric."""
    metric = queue.sweep.metric
    ranked = [row for row in rows if row.state == "finished" and row.value is not None]
    if metric and ranked:
        best = (max if metric.maximize else min)(ranked, key=lambda row: row.value or 0.0)
        said = f"best run: {best.run_id}, {metric.name} {best.value:.6g}: {in_words(best)}"
        print_line(console, one_line(said))


def _time(seconds: float) -> str:
    """As `clock`; under ten seconds with a decimal."""
    return f"{seconds:.1f} s" if seconds < 10 else clock(seconds)
