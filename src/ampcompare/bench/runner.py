"""Interleave several trainings, each in its own process, and compare their speed within rounds.

The protocol is that of `system.interleaved_timing`. The baseline runs twice: the second copy is an A/A
control. Processes of one training differ, too, for example by where their memory lies. So all processes may
be started several times. Free of torch.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import signal
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from ampcompare.analysis.statistics.median_interval import (
    MIN_STARTS,
    Ratio,
    interval,
    ratio_of,
    ratio_of_starts,
)
from ampcompare.runtime.startup import let_threads_sleep
from ampcompare.system.interleaved_timing import (
    MAX_ROUNDS,
    SLOW_FRACTION,
    count_steps,
    run_rounds,
    seconds_per_turn,
)

PRECISE = 0.05  # A ratio is precise enough when half its interval is at most this fraction of it.
POLL_SECONDS = 1.0  # between updates of the progress line while a training prepares
CONTROL = "control"
# One process loads torch; the process of each training is forked from it.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["ampcompare.bench.worker"])

T = TypeVar("T")
Progress = Callable[[str], None]


def run_with_torch(function: Callable[..., T], *args: Any) -> T:
    """Call a function in a process that has torch loaded, so that this one need not load it.

    Raises:
        Exception: What the function raises.
    """
    let_threads_sleep()
    with ProcessPoolExecutor(1, mp_context=CONTEXT) as pool:
        return pool.submit(function, *args).result()


@dataclass(frozen=True)
class BenchmarkArm:
    """One of the trainings.

    Attributes:
        options: Options in which the trainings may differ, as given.
        overrides: All options of the training, as on the command line of a run.
        label: Unique name.
        serve: What its process runs: by default the training of a run with these options.
    """

    options: dict[str, str]
    overrides: tuple[str, ...]
    label: str
    serve: Callable[[Any, Sequence[str]], None] | None = None


@dataclass(frozen=True)
class Schedule:
    """The times of a benchmark: preparation and interleaved rounds.

    Attributes:
        minutes: Limit for the rounds of a start; preparation does not count.
        preparation_minutes: Limit for building all trainings, and again for the first steps of each one, in
            which it compiles, lets cuDNN choose its algorithms and captures.
        looks: Numbers of rounds after which the benchmark may end because every ratio is precise enough. The
            last one always ends it.
        turn_seconds: Seconds of a turn; None divides `minutes` among all rounds.
        slow_fraction: A training whose step takes longer than this fraction of `minutes` is measured by one
            step, without an interval.
        starts: How often the process of each training is started.
    """

    minutes: float = 1.0
    preparation_minutes: float = 10.0
    looks: tuple[int, ...] = (12, 24, MAX_ROUNDS)
    turn_seconds: float | None = None
    slow_fraction: float = SLOW_FRACTION
    starts: int = 1

    def level(self, arms: int, starts: int = 1) -> float:
        """Return the level of each interval, so that those of all arms and looks hold together at 95%.

        Args:
            arms: Number of trainings, without the control. Each has an interval but the baseline, and so has
                the control.
            starts: Number of starts that were measured. Intervals over starts have no looks.
        """
        looks = len(self.looks) if starts < MIN_STARTS else 1
        return 1 - 0.05 / (arms * looks)

    def seconds_per_turn(self, trainings: int) -> float:
        """Return the seconds of a turn when so many trainings take turns."""
        if self.turn_seconds is not None:
            return self.turn_seconds
        return seconds_per_turn(60 * self.minutes, trainings, self.looks[-1])


@dataclass(frozen=True)
class ArmResult:
    """Speed and memory of a training, and its speed relative to the baseline.

    Attributes:
        label: Name of the training.
        options: Options in which the trainings may differ, as given.
        ratio: Median speed-up over the baseline within rounds; above 1 is faster. From three starts on the
            geometric mean of the starts.
        low: Lower end of its interval; None for fewer than 12 rounds and fewer than three starts.
        high: Upper end of its interval.
        step_ms: Median milliseconds of a step.
        images_per_second: Median samples per second.
        peak_mib: Peak memory in MiB; None where the device does not report it.
        rounds: Rounds in which it was measured, of all starts together.
        start_ratios: The speed-up in each start.
        round_ratios: The speed-up in each round of all starts.
        failed: Why it was not measured; None where it was.
        facts: What its process reports of dtype, settings and machine.
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
    start_ratios: tuple[float, ...] = ()
    round_ratios: tuple[float, ...] = ()
    failed: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def is_precise(self) -> bool:
        """Return whether the interval is within 5% of the ratio."""
        if self.ratio is None or self.low is None or self.high is None:
            return False
        return (self.high - self.low) / 2 <= PRECISE * self.ratio


@dataclass(frozen=True)
class Benchmark:
    """The result of a benchmark.

    Attributes:
        level: Confidence level of each interval; together they hold at 95%.
        schedule: How long the trainings took turns at most.
        control: The second copy of the baseline.
        arms: One result per training, the baseline first.
        starts: Number of starts that were measured. From three on, the intervals are over starts.
    """

    level: float
    schedule: Schedule
    control: ArmResult
    arms: list[ArmResult]
    starts: int = 1

    @property
    def varied(self) -> list[str]:
        """The options in which the trainings differ."""
        keys = dict.fromkeys(key for arm in self.arms for key in arm.options)
        return [key for key in keys if len({arm.options.get(key) for arm in self.arms}) > 1]


class Worker:
    """The process of a training, the connection to it, and what it has measured.

    Attributes:
        rates: Samples per second, one per round.
        seconds: Seconds of a step, one per round.
        failed: Why it cannot go on; empty while it can.
        is_full: Whether it failed for lack of memory.
        is_slow: Whether a step takes too long for rounds.
    """

    def __init__(self, arm: BenchmarkArm) -> None:
        self.arm = arm
        self.rates: list[float] = []
        self.seconds: list[float] = []
        self.facts: dict[str, Any] = {}
        self.first: dict[str, Any] = {}
        self.last: dict[str, Any] = {}
        self.failed = ""
        self.is_full, self.is_slow = False, False
        self.connection, worker_end = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=arm.serve or _serve, args=(worker_end, arm.overrides))
        self.process.start()
        worker_end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()

    def build(self, limit: Limit) -> None:
        """Wait until the training is built."""
        self.facts = self._receive(limit)

    def warm_up(self, limit: Limit, slow_seconds: float) -> None:
        """Take its first steps, in which it compiles and captures."""
        self.first = self.last = self._ask(None, limit)
        self.is_slow = bool(self.first) and self.first["seconds"] > slow_seconds

    @property
    def is_active(self) -> bool:
        """Whether the training can take a turn."""
        return not (self.failed or self.is_slow)

    def take_turn(self, seconds: float) -> None:
        """Take its steps of a round, for about so many seconds."""
        if answer := self._ask(count_steps(seconds, self.first["seconds"])):
            self.last = answer
            self.rates.append(answer["rate"])
            self.seconds.append(answer["seconds"])

    def _ask(self, steps: int | None, limit: Limit | None = None) -> dict[str, Any]:
        with suppress(OSError):  # The process has ended; its last message says why.
            self.connection.send(steps)
        return self._receive(limit)

    def _receive(self, limit: Limit | None) -> dict[str, Any]:
        """Return the next answer; an empty one, with `failed` set, where there is none."""
        try:
            while limit is not None and not self.connection.poll(limit.next_wait()):
                if limit.is_over():
                    self.process.kill()
                    self.failed = limit.message()
                    return {}
            answer = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode or 0
            self.is_full = code == -signal.SIGKILL  # as when the machine is out of memory
            how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
            self.failed = f"its process {how}"
            return {}
        if "failed" in answer:
            self.failed, self.is_full = answer["failed"], answer["full"]
            return {}
        return answer

    @property
    def rate(self) -> float:
        """Samples per second: the median over rounds, or that of the first steps."""
        return statistics.median(self.rates or [self.first["rate"]])

    def result(self, baseline: Worker, level: float) -> ArmResult:
        """Return what was measured, relative to the baseline in the same rounds.

        Without rounds the ratio is that of one step each and has no interval.
        """
        arm = ArmResult(self.arm.label, self.arm.options, facts=self.facts)
        if self.failed or not self.first or not baseline.first:
            return dataclasses.replace(arm, failed=self.failed or "interrupted before its first steps")
        ratio: Ratio = self.rate / baseline.rate, None, None
        if self is baseline:
            ratio = 1.0, 1.0, 1.0
        elif self.rates and baseline.rates:
            ratio = ratio_of(self.rates, baseline.rates, level)
        pairs = zip(self.rates, baseline.rates, strict=False)
        return dataclasses.replace(
            arm,
            ratio=ratio[0],
            low=ratio[1],
            high=ratio[2],
            step_ms=1e3 * statistics.median(self.seconds or [self.first["seconds"]]),
            images_per_second=self.rate,
            peak_mib=self.last["peak_mib"],
            rounds=len(self.rates) or 1,
            start_ratios=(ratio[0],),
            round_ratios=tuple(own / base for own, base in pairs),
        )


class Limit:
    """A time limit of the preparation, which reports what is being prepared while it runs.

    Attributes:
        seconds: The limit.
        activity: What is being prepared.
        report: Receives the progress line.
        owner: Whose preparation it is, for the progress line: ` of training 2/5, native`.
    """

    def __init__(self, minutes: float, activity: str, report: Progress, owner: str = "") -> None:
        self.seconds, self.activity, self.report, self.owner = 60 * minutes, activity, report, owner
        self.began = time.monotonic()

    def next_wait(self) -> float:
        """Report progress; return the seconds to wait until the next report."""
        spent = time.monotonic() - self.began
        # What is prepared comes first: a narrow terminal may have no room for the rest.
        self.report(f"{self.activity}{self.owner}: {spent:.0f} s (limit {self.seconds:.0f} s)")
        return max(0.0, min(POLL_SECONDS, self.seconds - spent))

    def is_over(self) -> bool:
        """Return whether no time is left."""
        return time.monotonic() - self.began >= self.seconds

    def message(self) -> str:
        """Return why a training that has met the limit is not measured."""
        return f"{self.activity} did not finish within {self.seconds:.0f} s; raise --prepare-minutes"


def _serve(connection: Any, overrides: Sequence[str]) -> None:
    from ampcompare.bench.worker import serve  # It loads torch, which this process does not need.

    serve(connection, overrides)


def run_benchmark(arms: Sequence[BenchmarkArm], schedule: Schedule, report: Progress) -> Benchmark:
    """Interleave the trainings until every ratio is precise enough or the minutes are over, in each start.

    Ctrl-C ends the rounds and keeps what was measured; of several starts those that were complete. A training
    that fails in one start is not started again. A training that runs out of memory while the others hold
    theirs is measured afterwards, interleaved with the baseline alone, for as long again.

    Args:
        arms: The trainings, the baseline first. The control is added.
        schedule: Limits of preparation and rounds, and the number of starts.
        report: Receives the progress line again and again.

    Raises:
        KeyboardInterrupt: Ctrl-C before the baseline has taken its first steps.
    """
    let_threads_sleep()
    level = schedule.level(len(arms))
    remaining = [arms[0], dataclasses.replace(arms[0], label=CONTROL), *arms[1:]]
    starts: dict[str, list[ArmResult]] = {arm.label: [] for arm in remaining}
    complete = 0
    while complete < schedule.starts:
        prefix = f"start {complete + 1}/{schedule.starts}: " if schedule.starts > 1 else ""
        try:
            results, is_interrupted = _measure_start(remaining, schedule, level, _prefixed(report, prefix))
        except KeyboardInterrupt:
            if not complete:
                raise
            break
        if is_interrupted and complete:
            break
        complete += 1
        for result in results:
            starts[result.label].append(result)
        if is_interrupted or results[0].failed:
            break
        failed = {result.label for result in results if result.failed}
        remaining = [arm for arm in remaining if arm.label not in failed]
    level = schedule.level(len(arms), complete)
    baseline, control, *others = (_combine(own, level, complete) for own in starts.values())
    if not baseline.failed:
        baseline = dataclasses.replace(baseline, ratio=1.0, low=1.0, high=1.0)
    return Benchmark(level, schedule, control, [baseline, *others], complete)


def _prefixed(report: Progress, prefix: str) -> Progress:
    return lambda line: report(f"{prefix}{line}")


def _measure_start(
    arms: Sequence[BenchmarkArm], schedule: Schedule, level: float, report: Progress
) -> tuple[list[ArmResult], bool]:
    """Start and measure all trainings once; return their results, and whether Ctrl-C ended the rounds.

    Raises:
        KeyboardInterrupt: Ctrl-C before the baseline has taken its first steps.
    """
    is_interrupted = False
    workers: list[Worker] = []
    try:
        _measure(arms, workers, schedule, level, report)
    except KeyboardInterrupt:
        is_interrupted = True
        if not workers or not workers[0].first:
            raise
    baseline, *others = workers
    results = [baseline.result(baseline, level)]
    for worker in others:
        pair: list[Worker] = []
        if worker.is_full and not baseline.failed and not is_interrupted:
            report(f"{worker.arm.label} ran out of memory beside the others: again, with the baseline alone")
            try:
                _measure([arms[0], worker.arm], pair, schedule, level, report)
            except KeyboardInterrupt:
                is_interrupted = True
        own_baseline, retried = pair if len(pair) == 2 and pair[0].first else (baseline, worker)
        results.append(retried.result(own_baseline, level))
    return results, is_interrupted


def _combine(results: Sequence[ArmResult], level: float, starts: int) -> ArmResult:
    """Return the result of a training over all starts.

    Below three starts the unit is the round, of all starts together. Then it is the start.

    Args:
        results: Its result in each start, up to the first in which it failed.
        level: Level of the interval.
        starts: Number of starts.
    """
    first, last = results[0], results[-1]
    if len(results) == 1 and (starts == 1 or last.failed):
        return first
    if last.failed:
        return dataclasses.replace(last, failed=f"in start {len(results)} of {starts}: {last.failed}")
    start_ratios = [ratio for result in results for ratio in result.start_ratios]
    round_ratios = [ratio for result in results for ratio in result.round_ratios]
    ratio = ratio_of_starts(start_ratios, level)
    if starts < MIN_STARTS and round_ratios:
        ratio = statistics.median(round_ratios), *(interval(round_ratios, level) or (None, None))
    return dataclasses.replace(
        first,
        ratio=ratio[0],
        low=ratio[1],
        high=ratio[2],
        step_ms=_median(result.step_ms for result in results),
        images_per_second=_median(result.images_per_second for result in results),
        peak_mib=max((result.peak_mib for result in results if result.peak_mib is not None), default=None),
        rounds=sum(result.rounds for result in results),
        start_ratios=tuple(start_ratios),
        round_ratios=tuple(round_ratios),
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _measure(
    arms: Sequence[BenchmarkArm], workers: list[Worker], schedule: Schedule, level: float, report: Progress
) -> None:
    """Start, prepare and measure the trainings; `workers` receives them in the order of the arms."""
    with ExitStack() as stack:
        workers += [stack.enter_context(Worker(arm)) for arm in arms]
        limit = Limit(
            schedule.preparation_minutes,
            "loading PyTorch, network and data",
            report,
            f" of {len(workers)} trainings",
        )
        for worker in workers:
            worker.build(limit)
        for number, worker in enumerate(workers, 1):
            if worker.failed:
                continue
            # One at a time: compiling beside another arm's steps would slow both down.
            preparation = worker.facts["preparation"]
            limit = Limit(
                schedule.preparation_minutes,
                f"first steps ({preparation})" if preparation else "first steps",
                report,
                f" of training {number}/{len(workers)}, {worker.arm.label}",
            )
            worker.warm_up(limit, schedule.slow_fraction * 60 * schedule.minutes)
        _run_rounds(workers, schedule, level, report)


def _run_rounds(workers: Sequence[Worker], schedule: Schedule, level: float, report: Progress) -> None:
    baseline, *others = workers

    def is_enough(number: int, seconds_left: float) -> bool:
        results = [worker.result(baseline, level) for worker in others if worker.is_active]
        ratios = ", ".join(f"{result.label} {result.ratio:.2f}x" for result in results if result.ratio)
        report(f"round {number}, at most {seconds_left:.0f} s left: {ratios}")
        return number in schedule.looks and all(result.is_precise() for result in results)

    run_rounds(
        workers,
        60 * schedule.minutes,
        schedule.seconds_per_turn(len(workers)),
        max_rounds=schedule.looks[-1],
        is_enough=is_enough,
    )
