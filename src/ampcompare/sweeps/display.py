"""What a sweep shows: a live table in a terminal, a line per event elsewhere."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ampcompare import metrics
from ampcompare.errors import one_line
from ampcompare.program.console import clock, print_line
from ampcompare.records.tree import flatten
from ampcompare.sweeps.attempts import SweepRow
from ampcompare.sweeps.file import Sweep
from ampcompare.sweeps.worker import Job

STYLES = {"finished": "green", "failed": "red", "lost": "red", "stopped": "yellow", "running": "cyan"}
SHOWN = 15  # rows of the live table: those going on and the newest that ended


def in_words(parameters: Mapping[str, Any], arm: str | None = None) -> str:
    """Parameters as they would be typed, `backend=native seed=223`, and whether the run is the control's.

    Without the plan, which is the same for all.
    """
    said = [f"{key}={value}" for key, value in flatten(dict(parameters)) if not key.startswith("plan.")]
    return " ".join([*said, f"(control, {arm})"] if arm else said)


class SweepDisplay:
    """Follows the jobs of this process; safe to call from its workers."""

    def __init__(
        self,
        console: Console,
        sweep: Sweep,
        workers: int,
        done_before: int,
        total: Callable[[], int | None] | None = None,
        ended: Callable[[], int] | None = None,
    ) -> None:
        self.console, self.sweep, self.workers = console, sweep, workers
        self._total = total or sweep.total  # a sweep can get longer as it goes
        self._ended = ended  # runs of other workers end as well
        self.done = done_before
        self.jobs: dict[tuple[str, int], Job] = {}
        self._lock = threading.RLock()
        self._waiting_for = 0
        self._running = 0  # with any worker, as far as known
        self._said = done_before
        live = Live(console=console, get_renderable=self._table, refresh_per_second=4)
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
        has_ended = job.state != "running"
        known = self._ended() if self._ended and has_ended else 0
        with self._lock:
            self.jobs[job.run_id, job.number] = job
            self._waiting_for = 0
            if self._ended:
                self.done = max(known, self.done)
            elif job.state in ("finished", "failed", "stopped"):
                self.done += 1
        if self._live is None:
            self.say(self._line(job))
        if job.state == "finished" and self.sweep.metric and job.value is None:
            listed = metrics.find(self._metric)
            why = f", which needs {listed.needs}" if listed and listed.needs else ""
            self.say(f"run {job.number} never logged {self._metric}{why}: the sweep learns nothing from it")
        if job.state == "failed":
            self.say(f"run {job.number} failed ({_last_line(job)}); its output: {job.log}")

    def update(self, done: int, running: int) -> None:
        """How many runs of all workers have ended by now, and how many go on."""
        with self._lock:
            self.done = max(done, self.done)
            self._running = running

    @property
    def is_live(self) -> bool:
        """Whether there is a table that shows an `update`; lines say what they find."""
        return self._live is not None

    def close(self) -> None:
        """All is done: say so where the last line, of a run of this process, could not know it."""
        total = self._total()
        if self._live is None and total and self.done != self._said:
            self.say(f"{self.done} of {total} done")

    def waiting(self, running: int) -> None:
        """Nothing is left to start; runs of other workers go on."""
        if running != self._waiting_for:
            self._waiting_for = running
            self.say(f"waiting for {running} {'run' if running == 1 else 'runs'} of other workers")

    def say(self, line: str) -> None:
        """One line for the user, above the table where there is one."""
        print_line(self.console, one_line(line))

    def seconds_left(self) -> float | None:
        """An estimate from the median time of the runs that ended, None while none has."""
        times = [job.seconds for job in self.jobs.values() if job.state in ("finished", "stopped")]
        total = self._total()
        if not times or total is None:
            return None
        gone = sum(min(job.seconds, median(times)) for job in self.jobs.values() if job.state == "running")
        return max(0.0, ((total - self.done) * median(times) - gone) / max(self.workers, self._running))

    def _line(self, job: Job) -> str:
        if job.state == "running":
            again = f", attempt {job.attempt}" if job.attempt > 1 else ""
            where = f" on GPU {job.gpu}" if job.gpu else ""
            return f"run {job.number} started{where}{again}: {in_words(job.parameters, job.arm)}"
        value = f", {self._metric} {job.value:.6g}" if job.value is not None else ""
        total, left = self._total(), self.seconds_left()
        self._said = self.done
        ended = f"{self.done} of {total} done" if total else f"{self.done} done"
        tail = f", {_time(left)} left" if left else ""
        return f"run {job.number} {job.state} after {_time(job.seconds)}{value} ({ended}{tail})"

    @property
    def _metric(self) -> str:
        return self.sweep.metric.name if self.sweep.metric else ""

    def _table(self) -> Group:
        with self._lock:
            jobs = sorted(self.jobs.values(), key=lambda job: (job.state == "running", job.began))[-SHOWN:]
        table = Table(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False)
        table.add_column("run", justify="right")
        table.add_column("parameters", overflow="fold")
        table.add_column("state")
        table.add_column(Text(self._metric), justify="right")
        table.add_column("time", justify="right")
        if any(job.gpu for job in jobs):
            table.add_column("GPU")
        for job in jobs:
            what = Text(one_line(in_words(job.parameters, job.arm)))
            state = Text(job.state, style=STYLES.get(job.state, ""))
            value = "" if job.value is None else f"{job.value:.6g}"
            seconds = time.monotonic() - job.began if job.state == "running" else job.seconds
            cells = (str(job.number), what, state, value, _time(seconds), Text(job.gpu or ""))
            table.add_row(*cells[: len(table.columns)])
        return Group(table, Text(self._foot(), style="dim"))

    def _foot(self) -> str:
        total, left = self._total(), self.seconds_left()
        of_all = f"of {total} done" if total else "done, no run_cap: Ctrl-C ends the sweep"
        parts = [f"{self.done} {of_all}"]
        finished = [job for job in self.jobs.values() if job.state == "finished"]
        values = [job.value for job in finished if job.value is not None]
        if values and self.sweep.metric:
            best = (max if self.sweep.metric.maximize else min)(values)
            parts.append(f"best {self._metric} {best:.6g}")
        if left:
            parts.append(f"about {_time(left)} left")
        return " · ".join(parts)


def print_best(console: Console, sweep: Sweep, rows: list[SweepRow]) -> None:
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


def _last_line(job: Job) -> str:
    try:
        with job.log.open("rb") as file:
            file.seek(max(0, job.log.stat().st_size - 4096))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    said = lines[-1].strip()[:200] if lines else "it said nothing"
    return f"exit code {job.exit_code}: {said}" if job.exit_code is not None else said
