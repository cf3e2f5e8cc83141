"""Shows the progress of a run: a bar in a terminal, elsewhere a line every log interval."""

import contextlib
import time
from collections.abc import Mapping
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ampcompare import metrics
from ampcompare.metrics import Metric
from ampcompare.runtime.console import clock, is_plain, print_line
from ampcompare.training.loop import Display
from ampcompare.training.task import Score

ACCURACY = metrics.METRICS[metrics.EVAL_ACCURACY]
ESTIMATE_AFTER_SECONDS = 5.0  # of steps; then a run without a bar prints the time left


class TrainingDisplay(Display):
    """Shows rows and steps of one run on the console."""

    def __init__(
        self, console: Console, total_steps: int, name: str, compared: Score | Metric = ACCURACY
    ) -> None:
        self.console = console
        self.total = total_steps
        self._compared = compared
        self._latest: dict[str, Any] = {}
        self._first: tuple[int, float] | None = None  # the first step and its time
        self._said_time = False
        self._plain = is_plain(console)
        self._progress: Progress | None = None
        if console.is_terminal and not console.is_dumb_terminal:  # Rich draws no bar on one
            self._progress = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[metrics]}", markup=False),
                TimeRemainingColumn(compact=True),
                TextColumn("left"),
                console=console,
            )
            self._task = self._progress.add_task(name, total=total_steps, metrics="")

    def __enter__(self) -> Self:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._progress:
            with contextlib.suppress(OSError):  # the terminal is closed
                self._progress.stop()

    def step(self, step: int) -> None:
        """Show that a step was queued; the device may not have run it yet."""
        if self._progress:
            self._progress.update(self._task, completed=step)
        elif not self._said_time:
            at, began = self._first = self._first or (step, time.monotonic())
            seconds = time.monotonic() - began
            if step > at and seconds >= ESTIMATE_AFTER_SECONDS:
                self._said_time = True
                left = seconds / (step - at) * (self.total - step)
                self.say(f"step {step}/{self.total}  about {clock(left)} left, by the first steps")

    def row(self, row: Mapping[str, Any]) -> None:
        """Show a row."""
        self._latest |= row
        if self._progress:
            self._progress.update(self._task, metrics=self._metrics(self._latest))
        elif metrics.LOSS in row:
            self._said_time = True
            step = row[metrics.STEP]
            left = row[metrics.ELAPSED] / step * (self.total - step)
            epoch = row[metrics.EPOCH]
            self.say(f"step {step}/{self.total}  epoch {epoch:.2f}  {self._metrics(row)}  {clock(left)} left")
        elif metrics.EVAL_LOSS in row:
            parts = [f"epoch {row[metrics.EPOCH]:.2f}", f"eval loss {shown(row[metrics.EVAL_LOSS])}"]
            if self._compared.key != metrics.EVAL_LOSS:
                parts += self._evaluated(row)
            self.say("  ".join(parts))

    def say(self, line: str) -> None:
        """Print one line for the user, above the progress bar if there is one."""
        print_line(self.console, line, plain=self._plain)

    def _metrics(self, row: Mapping[str, Any]) -> str:
        parts = []
        if metrics.LOSS in row:
            parts.append(f"loss {shown(row[metrics.LOSS])}")
        if metrics.ACCURACY in row:
            parts.append(f"acc {row[metrics.ACCURACY]:.1%}")
        parts += self._evaluated(row)
        if metrics.THROUGHPUT in row:
            parts.append(f"{row[metrics.THROUGHPUT]:,.1f} samples/s")
        if metrics.SCALE in row:
            parts.append(f"scale {row[metrics.SCALE]:g}")
        return "  ".join(parts)

    def _evaluated(self, row: Mapping[str, Any]) -> list[str]:
        """Return the compared metric as text, in a list, if the row has it."""
        key = self._compared.key
        if key not in row:
            return []
        if key == metrics.EVAL_ACCURACY:
            return [f"eval acc {row[key]:.2%}"]
        return [f"{self._compared.label} {row[key]:.4g}"]


def shown(loss: float) -> str:
    """Return a loss with four decimals, or four digits if it is 100,000 or more."""
    return f"{loss:.4f}" if abs(loss) < 1e5 else f"{loss:.4g}"
