"""What a sweep shows: a line per event and, in a terminal, one line beneath them of how it stands."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

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
from ampcompare.sweeps.worker import Job


def in_words(parameters: Mapping[str, Any], arm: str | None = None) -> str:
    """Parameters as they would be typed, `backend=native seed=223`, and whether the run is the control's.

    Without the plan, which is the same for all.
    """
    said = [f"{key}={value}" for key, value in flatten(dict(parameters)) if not key.startswith("plan.")]
    return " ".join([*said, f"(control, {arm})"] if arm else said)


class SweepDisplay:
    """Follows the jobs of this process; safe to call from its workers."""

    def __init__(self, console: Console, queue: Queue, progress: Progress) -> None:
        self.console, self.queue, self.progress = console, queue, progress
        self.workers = 1
        metric = queue.sweep.metric
        self._metric = metric.name if metric else ""
        self._jobs: list[Job] = []
        self._lock = threading.RLock()
        self._waiting_for = 0
        self._said = progress.done
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
        row = job.row
        if job.state == "running":
            with self._lock:
                self._jobs.append(job)
                self._waiting_for = 0
            again = f", attempt {row.attempt}" if row.attempt > 1 else ""
            where = f" on GPU {job.gpu}" if job.gpu else ""
            self.say(
                f"run {row.place} started{where}{again}: {in_words(row.parameters, row.plan.get('arm'))}"
            )
            return
        with contextlib.suppress(Away):  # what was known before stands
            self.update(self.queue.progress())
        self._said = self.progress.done
        parts = [self._counted(), *([f"{left} left"] if (left := self._time_left()) else [])]
        self.say(
            f"run {row.place} {job.state} after {_time(job.seconds)}{self._value(job)} ({', '.join(parts)})"
        )
        if job.state == "finished" and self._metric and job.value is None:
            self.say(f"run {row.place} never logged {self._metric}: the sweep learns nothing from it")
        if job.state == "failed":
            exit_code = "" if job.exit_code is None else f"exit code {job.exit_code}: "
            why = f"{exit_code}{last_words(job.log) or 'it said nothing'}"
            self.say(f"run {row.place} failed ({why}); its output: {job.log}")

    def update(self, progress: Progress) -> None:
        """How the runs of all workers stand by now, as far as they go on."""
        with self._lock:
            self.progress = max(progress, self.progress, key=lambda known: known.done)

    def close(self) -> None:
        """All is done: say so where the last line, of a run of this process, could not know it."""
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

    def _counted(self) -> str:
        total = self.queue.sweep.total()
        return f"{self.progress.done} of {total} done" if total else f"{self.progress.done} done"

    def _value(self, job: Job) -> str:
        return f", {self._metric} {job.value:.6g}" if job.value is not None else ""

    def _time_left(self) -> str:
        """An estimate from the median time of the runs that ended, nothing while none has."""
        with self._lock:
            times = [job.seconds for job in self._jobs if job.state in ("finished", "stopped")]
        left = (self.queue.sweep.total() or 0) - self.progress.done
        return (
            _time(left * median(times) / max(self.workers, self.progress.running))
            if times and left > 0
            else ""
        )

    def _status(self) -> Text:
        with self._lock:
            going_on = [job for job in self._jobs if job.state == "running"]
        parts = [self._counted(), *([f"about {left} left"] if (left := self._time_left()) else [])]
        for job in going_on:
            parts.append(f"run {job.row.place} {_time(time.monotonic() - job.began)}{self._value(job)}")
        return Text(one_line(" · ".join(parts)), style="dim", no_wrap=True, overflow="ellipsis")


def print_best(console: Console, queue: Queue, rows: Sequence[Row]) -> None:
    """The best run of the sweep by its metric."""
    metric = queue.sweep.metric
    ranked = [row for row in rows if row.state == "finished" and row.value is not None]
    if metric is None or not ranked:
        return
    best = (max if metric.maximize else min)(ranked, key=lambda row: row.value or 0.0)
    said = in_words(best.parameters, best.plan.get("arm"))
    print_line(console, one_line(f"best run: {best.run_id}, {metric.name} {best.value:.6g}: {said}"))


def _time(seconds: float) -> str:
    """As `clock`; under ten seconds with a decimal."""
    return f"{seconds:.1f} s" if seconds < 10 else clock(seconds)
