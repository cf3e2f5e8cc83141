"""Trainings that take turns, each in a process of its own, and how many times as fast as the first each is.

Other work on a machine, its clock and its heat change from minute to minute, for all that run in the same
seconds alike: so a round is a few steps of each training, in an order drawn anew, and what is compared are
the rates of one round. The first training is there twice. Free of torch.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Self

from ampcompare.bench.interval import ratio_of
from ampcompare.program.threads import let_threads_sleep

LOOKS = (12, 24, 48)  # rounds behind which it may be enough; the last ends it
PRECISE = 0.05  # half of an interval, as a share of its ratio: then it is known well enough
TURN = 0.25  # seconds that a turn takes about
LONG = 0.1  # of all the time: a training whose step takes longer is told from one
CONTROL = "control"
ENDED = "its process ended without a word, as it does where memory is out"
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

    def is_known(self) -> bool:
        """Whether the ratio is known within 5 %."""
        known = self.ratio and self.low and self.high
        return bool(known) and (self.high - self.low) / 2 <= PRECISE * self.ratio  # type: ignore[operator]


@dataclass(frozen=True)
class Benchmark:
    """What was measured, the baseline as the first of the arms; `about` is what the process of each says."""

    level: float
    minutes: float
    control: Row
    arms: list[Row]
    about: list[dict[str, Any]]


class Child:
    """The process of an arm, its line, and what came of it: rates in samples/s, round by round."""

    def __init__(self, arm: Arm) -> None:
        self.arm = arm
        self.rates: list[float] = []
        self.about: dict[str, Any] = {}
        self.last: dict[str, Any] = {}
        self.seconds = 0.0  # of a step, before the rounds
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

    def hear(self, until: float | None = None) -> dict[str, Any]:
        """Its next answer; empty where it failed, which is noted."""
        if until is not None and not self.line.poll(max(0.0, until - time.monotonic())):
            answer: dict[str, Any] = {
                "failed": "not ready when the time was over; give it more --minutes",
                "full": False,
            }
        else:
            try:
                answer = self.line.recv()
            except (EOFError, ConnectionResetError):
                answer = {"failed": ENDED, "full": True}
        if "failed" in answer:
            self.failed, self.is_full = answer["failed"], answer["full"]
            return {}
        return answer

    def warm_up(self, ends: float, longest: float) -> None:
        """Its first steps. One that takes longer than `longest` seconds is all that is asked for."""
        self.line.send(None)
        if answer := self.hear(ends):
            self.last, self.seconds = answer, answer["seconds"]
            if self.seconds > longest:
                self.rates, self.is_slow = [answer["rate"]], True

    def turn(self) -> None:
        """Its steps of a round."""
        self.line.send(max(1, round(TURN / self.seconds)))
        if answer := self.hear():
            self.last = answer
            self.rates.append(answer["rate"])

    def beside(self, base: Child, level: float) -> Row:
        """What came of it beside the baseline in the same rounds."""
        row = Row(self.arm.label, self.arm.options)
        if self.failed or not self.rates:
            return dataclasses.replace(row, failed=self.failed or "not begun when the time was over")
        rate = statistics.median(self.rates)
        ratio, low, high = ratio_of(self.rates, base.rates, level)
        if self is base:
            ratio = low = high = 1.0
        elif self.is_slow or base.is_slow:
            ratio, low, high = rate / statistics.median(base.rates), None, None
        return dataclasses.replace(
            row,
            ratio=ratio,
            low=low,
            high=high,
            step_ms=1e3 * self.last["samples"] / rate,
            images_per_second=rate,
            peak_mib=self.last["peak_mib"],
            rounds=len(self.rates),
        )


def _serve(line: Any, words: Sequence[str]) -> None:
    from ampcompare.bench.turn import serve  # torch is loaded there, not here

    serve(line, words)


def compare(arms: Sequence[Arm], minutes: float, say: Callable[[str], None]) -> Benchmark:
    """Have them take turns until each ratio is known within 5 % or the minutes are over; Ctrl-C ends it with
    what there is. The level of an interval is that of all of them together, looked at three times. `say` is
    told again and again how far it is.

    One without memory beside the others takes turns with the baseline alone afterwards, as long again.
    """
    level = 1 - 0.05 / (max(1, len(arms) - 1) * len(LOOKS))
    control = dataclasses.replace(arms[0], label=CONTROL)
    began = time.monotonic()
    base, *others = _in_turns([arms[0], control, *arms[1:]], minutes, level, say)
    rows = []
    for child in others:
        if child.is_full and not base.failed:
            say(
                f"{child.arm.label} in turn with {base.arm.label} alone: there is no memory beside the others"
            )
            alone, again = _in_turns([arms[0], child.arm], minutes, level, say)
            rows.append(again.beside(alone, level))
        else:
            rows.append(child.beside(base, level))
    about = [child.about for child in (base, *others[1:])]
    spent = (time.monotonic() - began) / 60
    return Benchmark(level, spent, rows[0], [base.beside(base, level), *rows[1:]], about)


def _in_turns(arms: Sequence[Arm], minutes: float, level: float, say: Callable[[str], None]) -> list[Child]:
    ends = time.monotonic() + 60 * minutes
    let_threads_sleep()
    with ExitStack() as stack:
        children = [stack.enter_context(Child(arm)) for arm in arms]
        try:
            say(f"{len(children)} trainings are built")
            for child in children:
                child.about = child.hear(ends)
            for child in children:
                if not child.failed:
                    say(f"{child.arm.label}: the first steps")
                    child.warm_up(ends, LONG * 60 * minutes)
            _rounds(children, ends, level, say)
        except KeyboardInterrupt:
            say("interrupted")
    return children


def _rounds(children: list[Child], ends: float, level: float, say: Callable[[str], None]) -> None:
    base, draw = children[0], random.Random()  # noqa: S311
    for number in range(1, LOOKS[-1] + 1):
        quick = [child for child in children if not (child.failed or child.is_slow)]
        if base not in quick or len(quick) == 1 or (number > 1 and time.monotonic() > ends):
            return
        for child in draw.sample(quick, len(quick)):
            child.turn()
        rows = [child.beside(base, level) for child in quick[1:]]
        told = ", ".join(f"{row.label} {row.ratio:.2f}x" for row in rows if row.ratio)
        say(f"round {number}, {max(0.0, ends - time.monotonic()):.0f} s left: {told}")
        if number in LOOKS and all(row.is_known() for row in rows):
            return
