"""Print the progress of a sweep: a line per event and, in a terminal, a status line below them."""

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ampcompare.errors import one_line
from ampcompare.runs.nested import flatten
from ampcompare.runs.run_state import RunState
from ampcompare.runtime.console import print_line
from ampcompare.runtime.formatting import duration
from ampcompare.sweeps.journal import SweepRun, SweepState
from ampcompare.sweeps.run_records import last_line
from ampcompare.sweeps.sweep import Sweep


@dataclass
class _Running:
    run: SweepRun
    began: float  # by time.monotonic
    value: float | None = None


class SweepProgress:
    """Prints the progress of a sweep.

    Args:
        console: Where to print.
        sweep: The sweep; the driver replaces it when seeds are added.
        state: The sweep's state.
        folder: Output folder of the sweep.
        workers: Number of runs at a time.
        max_signal_ends: After this number of ends by a signal a run has failed; None: never.
    """

    def __init__(
        self,
        console: Console,
        sweep: Sweep,
        state: SweepState,
        folder: Path,
        workers: int,
        max_signal_ends: int | None = None,
    ) -> None:
        self.console, self.sweep, self._state = console, sweep, state
        self._folder, self._workers, self._max_signal_ends = folder, workers, max_signal_ends
        self._running: dict[int, _Running] = {}
        self._seconds: list[float] = []  # of the runs that ended
        live = Live(console=console, get_renderable=self._status, refresh_per_second=2, transient=True)
        self._live = live if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live:
            with contextlib.suppress(OSError):  # the terminal has gone
                self._live.stop()

    @property
    def done(self) -> int:
        """Number of points at which nothing is left to do."""
        return self._state.count(*(state for state in RunState if state.is_final))

    def start(self, run: SweepRun) -> None:
        """Tell that a run was started, or given to Ray, which starts it when it has room."""
        self._running[run.index] = _Running(run, time.monotonic())
        again = f", start {run.starts}" if run.starts > 1 else ""
        if "ray" in run.process:
            begun = f"run {run.index} given to Ray"
        elif "job" in run.process:
            begun = f"run {run.index} started as job {run.process['job']}"
        elif "gpu" in run.process:
            begun = f"run {run.index} started on GPU {run.process['gpu']}"
        else:
            begun = f"run {run.index} started"
        self._print(f"{begun}{again}: {point_text(run)}")

    def follow(self, run: SweepRun, value: float | None) -> None:
        """Take note of the newest value of the metric."""
        if running := self._running.get(run.index):
            running.value = value

    def end(self, run: SweepRun) -> float | None:
        """Tell how a run ended.

        Returns:
            The seconds since its start was told; None if it was not, as another driver had started the run.
        """
        running = self._running.pop(run.index, None)
        seconds = time.monotonic() - running.began if running else None
        if seconds is not None and run.state in (RunState.FINISHED, RunState.STOPPED):
            self._seconds.append(seconds)
        metric, number, count = self.sweep.metric, run.index, self._count(", ")
        after = "" if seconds is None else f" after {duration(seconds)}"
        value = f", {metric.name} {run.value:.6g}" if metric and run.value is not None else ""
        if run.state is RunState.FAILED:
            log = self._folder / "logs" / f"{run.run_id}.log"
            code = "" if run.exit_code is None else f" with exit code {run.exit_code}"
            output = last_line(log) or "no output"
            self._print(f"run {number} failed{code}{after}: {output}; log: {log} ({count})")
        elif run.state is RunState.PREEMPTED and run.signal_ends:
            limit = "" if self._max_signal_ends is None else f" of {self._max_signal_ends}"
            self._print(f"run {number} ended by a signal ({run.signal_ends}{limit}){after} ({count})")
        else:
            self._print(f"run {number} {run.state.value}{after}{value} ({count})")
        if run.state is RunState.FINISHED and metric and run.value is None:
            self._print(f"run {number} never logged {metric.name}, so the search cannot use it")
        return seconds

    def _print(self, line: str) -> None:
        print_line(self.console, one_line(line))

    def _count(self, separator: str) -> str:
        """Return how many points are done and, behind the separator, the time left by the median run."""
        total, done = self.sweep.total(), self.done
        count = f"{done} of {total} done" if total else f"{done} done"
        left = (total or 0) - done
        if self._seconds and left > 0:
            workers = min(self._workers, left)
            count += f"{separator}{duration(left * median(self._seconds) / workers)} left"
        return count

    def _status(self) -> Text:
        now, metric = time.monotonic(), self.sweep.metric
        parts = [self._count(" · about ")]
        for running in [*self._running.values()]:
            value = f" {metric.name} {running.value:.6g}" if metric and running.value is not None else ""
            parts.append(f"run {running.run.index} {duration(now - running.began)}{value}")
        return Text(one_line(" · ".join(parts)), style="dim", no_wrap=True, overflow="ellipsis")


def point_text(run: SweepRun) -> str:
    """Return the parameters of a run as they would be typed: `backend=native seed=223`.

    The plan, which is the same for all runs, is left out; a run of a control is marked.
    """
    pairs = flatten(dict(run.parameters))
    words = [f"{key}={value}" for key, value in pairs if not key.startswith("plan.")]
    return " ".join([*words, *([f"(control, {run.plan['arm']})"] if "arm" in run.plan else [])])


def print_best(console: Console, sweep: Sweep, state: SweepState) -> None:
    """Print the best run of the sweep by its metric."""
    metric = sweep.metric
    ranked = [run for run in state.with_state(RunState.FINISHED) if run.value is not None]
    if metric and ranked:
        best = (max if sweep.is_higher_better else min)(ranked, key=lambda run: run.value or 0.0)
        print_line(
            console,
            one_line(f"best run: {best.run_id}, {metric.name} {best.value:.6g}: {point_text(best)}"),
        )


def print_failed(console: Console, state: SweepState, total: int, folder: Path, rerun: str) -> None:
    """Print how many runs failed, where their output is, and the command `rerun`, if any did."""
    ids = [run.run_id for run in state.with_state(RunState.FAILED)]
    if ids:
        names = ", ".join(ids[:5]) + (", ..." if len(ids) > 5 else "")
        print_line(
            console,
            one_line(f"{len(ids)} of {total} runs failed ({names}); their logs are in {folder / 'logs'}"),
        )
        print_line(console, one_line(f"to repeat failed runs: {rerun}"))
