"""Trainings that take turns, each in a process of its own, and how many times as fast as the first each is.

Other work on a machine, its clock and its heat change from minute to minute, for all that run in the same
seconds alike: so a round is a few steps of each training, in an order drawn anew, and what is compared are
the rates of one round. The first training is there twice. Free of torch.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import random
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Self

from ampcompare.bench.interval import Ratio, ratio_of
from ampcompare.program.starting import let_threads_sleep

LOOKS = (12, 24, 48)  # rounds behind which it may be enough; the last ends it
PRECISE = 0.05  # half of an interval, as a share of its ratio: then it is known well enough
TURN = 0.25  # seconds that a turn takes at least
LONG = 0.1  # of the time: a training whose step takes longer is told from one
FIRST_STEPS = 0.2  # of the time, that these may take of each
LOADING, BUILDING = 30.0, 0.5  # seconds until PyTorch is there, and of the time, for all to be built
CONTROL = "control"
# One process loads torch; each arm's begins as a copy of it.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["ampcompare.bench.turn"])


@dataclass(frozen=True)
class Arm:
    """One of the trainings: the options in which it differs from the others, and all of its words. `serve` is
    what its process does with them: a run's own training, or another program's.
    """

    options: dict[str, str]
    words: tuple[str, ...]
    label: str
    serve: Callable[[Any, Sequence[str]], None] | None = None


@dataclass(frozen=True)
class Row:
    """An arm beside the baseline. `ratio` is its median over the rounds, above 1: faster; `low` and `high`
    are its interval, None below twelve rounds. None of one that `failed`, by its reason, has any figure.
    """

    label: str
    options: dict[str, str]
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    step_ms: float | None = None
    images_per_second: float | None = None
    peak_mib: float | None = None
    rounds: int = 0
    failed: str | None = None
    about: dict[str, Any] = field(default_factory=dict)  # what its process says of type and machine

    def is_known(self) -> bool:
        """Whether the ratio is known within 5 %."""
        if self.ratio is None or self.low is None or self.high is None:
            return False
        return (self.high - self.low) / 2 <= PRECISE * self.ratio


@dataclass(frozen=True)
class Benchmark:
    """What was measured within the `minutes` that were given, the baseline as the first of the arms."""

    level: float
    minutes: float
    control: Row
    arms: list[Row]


class Child:
    """The process of an arm, its line, and what came of it: rates in samples/s, round by round."""

    def __init__(self, arm: Arm) -> None:
        self.arm = arm
        self.rates: list[float] = []
        self.seconds: list[float] = []  # of a step
        self.about: dict[str, Any] = {}
        self.first: dict[str, Any] = {}  # of the warm-up
        self.last: dict[str, Any] = {}
        self.failed = ""
        self.is_full, self.is_slow = False, False
        self.line, theirs = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=arm.serve or _serve, args=(theirs, arm.words))
        self.process.start()
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.join()
        self.line.close()

    def build(self, ends: float) -> None:
        """Wait until it is built."""
        self.about = self._hear(ends, "not built in {:.0f} s")

    def warm_up(self, minutes: float) -> None:
        """Its first steps. A long one is all that is asked for."""
        limit = time.monotonic() + FIRST_STEPS * 60 * minutes
        self.first = self.last = self._ask(None, limit, "its first steps take more than {:.0f} s")
        self.is_slow = bool(self.first) and self.first["seconds"] > LONG * 60 * minutes

    def turn(self, seconds: float) -> None:
        """Its steps of a round."""
        if answer := self._ask(max(1, round(seconds / self.first["seconds"]))):
            self.last = answer
            self.rates.append(answer["rate"])
            self.seconds.append(answer["seconds"])

    def _ask(self, steps: int | None, until: float | None = None, late: str = "") -> dict[str, Any]:
        with suppress(OSError):  # it has ended, which is told by what it said last
            self.line.send(steps)
        return self._hear(until, late)

    def _hear(self, until: float | None, late: str) -> dict[str, Any]:
        """Its next answer; empty where it failed, which is noted."""
        began = time.monotonic()
        try:
            if until is not None and not self.line.poll(max(0.0, until - began)):
                self.process.kill()
                self.failed = late.format(time.monotonic() - began) + "; give it more --minutes"
                return {}
            answer = self.line.recv()
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode or 0
            self.is_full = code == -signal.SIGKILL  # as where the memory of the machine is out
            self.failed = f"its process ended by {f'signal {-code}' if code < 0 else f'exit code {code}'}"
            return {}
        if "failed" in answer:
            self.failed, self.is_full = answer["failed"], answer["full"]
            return {}
        return answer

    @property
    def rate(self) -> float:
        """Samples a second: the median of the rounds, else of the first steps."""
        return statistics.median(self.rates or [self.first["rate"]])

    def beside(self, base: Child, level: float) -> Row:
        """What came of it beside the baseline in the same rounds; from one step where there are none."""
        row = Row(self.arm.label, self.arm.options, about=self.about)
        if self.failed or not self.first or not base.first:
            return dataclasses.replace(row, failed=self.failed or "not begun")
        ratio: Ratio = self.rate / base.rate, None, None
        if self is base:
            ratio = 1.0, 1.0, 1.0
        elif self.rates and base.rates:
            ratio = ratio_of(self.rates, base.rates, level)
        return dataclasses.replace(
            row,
            ratio=ratio[0],
            low=ratio[1],
            high=ratio[2],
            step_ms=1e3 * statistics.median(self.seconds or [self.first["seconds"]]),
            images_per_second=self.rate,
            peak_mib=self.last["peak_mib"],
            rounds=len(self.rates) or 1,
        )


def _serve(line: Any, words: Sequence[str]) -> None:
    from ampcompare.bench.turn import serve  # torch is loaded there, not here

    serve(line, words)


def compare(arms: Sequence[Arm], minutes: float, say: Callable[[str], None]) -> Benchmark:
    """Have them take turns until each ratio is known within 5 % or the minutes are over, which begin when all
    are ready; Ctrl-C ends it with what there is. The level of an interval is that of all of them together,
    the control's too, looked at three times. `say` is told again and again how far it is.

    One without memory beside the others takes turns with the baseline alone afterwards, as long again.
    """
    let_threads_sleep()
    level = 1 - 0.05 / (len(arms) * len(LOOKS))
    control = dataclasses.replace(arms[0], label=CONTROL)
    is_over = False
    children: list[Child] = []
    try:
        _in_turns([arms[0], control, *arms[1:]], children, minutes, level, say)
    except KeyboardInterrupt:
        is_over = True
        if not children or not children[0].first:
            raise
    base, *others = children
    rows = [base.beside(base, level)]
    for child in others:
        pair: list[Child] = []
        if child.is_full and not base.failed and not is_over:
            say(f"{child.arm.label}: no memory beside the others, so with {base.arm.label} alone")
            try:
                _in_turns([arms[0], child.arm], pair, minutes, level, say)
            except KeyboardInterrupt:
                is_over = True
        alone, again = pair if len(pair) == 2 and pair[0].first else (base, child)
        rows.append(again.beside(alone, level))
    return Benchmark(level, minutes, rows[1], [rows[0], *rows[2:]])


def _in_turns(
    arms: Sequence[Arm], children: list[Child], minutes: float, level: float, say: Callable[[str], None]
) -> None:
    """Fills `children` in the order of the arms."""
    with ExitStack() as stack:
        children += [stack.enter_context(Child(arm)) for arm in arms]
        say(f"{len(children)} trainings are built")
        ends = time.monotonic() + LOADING + BUILDING * 60 * minutes
        for child in children:
            child.build(ends)
        for child in children:
            if not child.failed:
                say(f"{child.arm.label}: the first steps")
                child.warm_up(minutes)
        _rounds(children, minutes, level, say)


def _turn(minutes: float, count: int) -> float:
    """Seconds of a turn, so that the minutes hold all rounds."""
    return max(TURN, 60 * minutes / LOOKS[-1] / count)


def _rounds(children: list[Child], minutes: float, level: float, say: Callable[[str], None]) -> None:
    base, draw = children[0], random.Random()  # noqa: S311
    ends, seconds = time.monotonic() + 60 * minutes, _turn(minutes, len(children))
    for number in range(1, LOOKS[-1] + 1):
        quick = [child for child in children if not (child.failed or child.is_slow)]
        if base not in quick or len(quick) == 1 or (number > 1 and time.monotonic() > ends):
            return
        for child in draw.sample(quick, len(quick)):
            child.turn(seconds)
        rows = [child.beside(base, level) for child in quick[1:]]
        told = ", ".join(f"{row.label} {row.ratio:.2f}x" for row in rows if row.ratio)
        say(f"round {number}, {max(0.0, ends - time.monotonic()):.0f} s left: {told}")
        if number in LOOKS and all(row.is_known() for row in rows):
            return
