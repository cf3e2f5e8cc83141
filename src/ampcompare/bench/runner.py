"""Interleave several trainings, each in its own process, and compare their speed within rounds.

The protocol is that of `system.interleaved_timing`. The baseline runs twice: the second copy is an A/A
control. Processes of one training differ, too, for example by where their memory lies. So all processes may
be started several times. Free of torch.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ampcompare.analysis.statistics.median_interval import (
    MIN_STARTS,
    Ratio,
    interval,
    ratio_of,
    ratio_of_starts,
)
from ampcompare.bench.training_process import Progress, Serve, TimeLimit, TrainingProcess, serve_training
from ampcompare.runtime.startup import let_threads_sleep
from ampcompare.system.interleaved_timing import MAX_ROUNDS, SLOW_FRACTION, run_rounds, seconds_per_turn

PRECISE = 0.05  # A ratio is precise enough when half its interval is at most this fraction of it.
CONTROL = "control"


@dataclass(frozen=True)
class BenchmarkArm:
    """One of the trainings.

    Attributes:
        options: Options in which the trainings may differ, as given.
        overrides: All options of the training, as on the command line of a run.
        label: Unique name.
        serve: What its process runs.
    """

    options: dict[str, str]
    overrides: tuple[str, ...]
    label: str
    serve: Serve = serve_training


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


class StartResults(NamedTuple):
    """What one start of all trainings has measured.

    Attributes:
        results: One result per training, in the order of the arms.
        is_interrupted: Whether Ctrl-C ended the rounds.
    """

    results: list[ArmResult]
    is_interrupted: bool


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
    by_label: dict[str, list[ArmResult]] = {arm.label: [] for arm in remaining}
    complete = 0
    while complete < schedule.starts:
        prefix = f"start {complete + 1}/{schedule.starts}: " if schedule.starts > 1 else ""
        try:
            start = _measure_start(remaining, schedule, level, _prefixed(report, prefix))
        except KeyboardInterrupt:
            if complete == 0:
                raise
            break
        if start.is_interrupted and complete > 0:
            break
        complete += 1
        for result in start.results:
            by_label[result.label].append(result)
        if start.is_interrupted or start.results[0].failed:
            break
        failed = {result.label for result in start.results if result.failed}
        remaining = [arm for arm in remaining if arm.label not in failed]
    level = schedule.level(len(arms), complete)
    baseline, control, *others = (_combine(results, level, complete) for results in by_label.values())
    if not baseline.failed:
        baseline = dataclasses.replace(baseline, ratio=1.0, low=1.0, high=1.0)
    return Benchmark(level, schedule, control, [baseline, *others], complete)


def _prefixed(report: Progress, prefix: str) -> Progress:
    return lambda line: report(f"{prefix}{line}")


def _measure_start(
    arms: Sequence[BenchmarkArm], schedule: Schedule, level: float, report: Progress
) -> StartResults:
    """Start and measure all trainings once.

    Raises:
        KeyboardInterrupt: Ctrl-C before the baseline has taken its first steps.
    """
    processes: list[TrainingProcess] = []
    is_interrupted = _measure(arms, processes, schedule, level, report)
    if is_interrupted and not (processes and processes[0].first):
        raise KeyboardInterrupt
    baseline = processes[0]
    results = [_make_result(arms[0], baseline, baseline, level)]
    for arm, process in zip(arms[1:], processes[1:], strict=True):
        if process.is_full and not baseline.failed and not is_interrupted:
            report(f"{arm.label} ran out of memory beside the others: again, with the baseline alone")
            pair: list[TrainingProcess] = []
            is_interrupted = _measure([arms[0], arm], pair, schedule, level, report)
            if len(pair) == 2 and pair[0].first:
                results.append(_make_result(arm, pair[1], pair[0], level))
                continue
        results.append(_make_result(arm, process, baseline, level))
    return StartResults(results, is_interrupted)


def _measure(
    arms: Sequence[BenchmarkArm],
    processes: list[TrainingProcess],
    schedule: Schedule,
    level: float,
    report: Progress,
) -> bool:
    """Start, prepare and measure the trainings; return whether Ctrl-C ended this.

    Args:
        processes: Receives the processes in the order of the arms, so that Ctrl-C loses no measurement.
    """
    try:
        with ExitStack() as stack:
            for arm in arms:
                processes.append(stack.enter_context(TrainingProcess(arm.overrides, arm.serve)))
            _prepare(arms, processes, schedule, report)
            _run_rounds(arms, processes, schedule, level, report)
    except KeyboardInterrupt:
        return True
    return False


def _prepare(
    arms: Sequence[BenchmarkArm], processes: Sequence[TrainingProcess], schedule: Schedule, report: Progress
) -> None:
    """Build all trainings, and let each take its first steps."""
    count = len(processes)
    limit = TimeLimit(
        schedule.preparation_minutes, "loading PyTorch, network and data", report, f" of {count} trainings"
    )
    for process in processes:
        process.build(limit)
    # One at a time: compiling beside the steps of another training would slow both down.
    for number, (arm, process) in enumerate(zip(arms, processes, strict=True), 1):
        if process.failed:
            continue
        preparation = process.facts["preparation"]
        limit = TimeLimit(
            schedule.preparation_minutes,
            f"first steps ({preparation})" if preparation else "first steps",
            report,
            f" of training {number}/{count}, {arm.label}",
        )
        process.warm_up(limit, schedule.slow_fraction * 60 * schedule.minutes)


def _run_rounds(
    arms: Sequence[BenchmarkArm],
    processes: Sequence[TrainingProcess],
    schedule: Schedule,
    level: float,
    report: Progress,
) -> None:
    """Let the trainings take turns until each ratio is precise enough, or the minutes are over."""
    baseline = processes[0]

    def is_enough(number: int, seconds_left: float) -> bool:
        pairs = zip(arms[1:], processes[1:], strict=True)
        results = [_make_result(arm, own, baseline, level) for arm, own in pairs if own.is_active]
        ratios = ", ".join(f"{result.label} {result.ratio:.2f}x" for result in results if result.ratio)
        report(f"round {number}, at most {seconds_left:.0f} s left: {ratios}")
        return number in schedule.looks and all(result.is_precise() for result in results)

    run_rounds(
        processes,
        60 * schedule.minutes,
        schedule.seconds_per_turn(len(processes)),
        max_rounds=schedule.looks[-1],
        is_enough=is_enough,
    )


def _make_result(
    arm: BenchmarkArm, process: TrainingProcess, baseline: TrainingProcess, level: float
) -> ArmResult:
    """Return what a process measured, relative to the baseline in the same rounds.

    Without rounds the ratio is that of one step each and has no interval.
    """
    result = ArmResult(arm.label, arm.options, facts=process.facts)
    if process.failed:
        return dataclasses.replace(result, failed=process.failed)
    if not process.first or not baseline.first:
        return dataclasses.replace(result, failed="interrupted before its first steps")
    ratio: Ratio = process.rate / baseline.rate, None, None
    if process is baseline:
        ratio = 1.0, 1.0, 1.0
    elif process.rates and baseline.rates:
        ratio = ratio_of(process.rates, baseline.rates, level)
    rounds = zip(process.rates, baseline.rates, strict=False)
    return dataclasses.replace(
        result,
        ratio=ratio[0],
        low=ratio[1],
        high=ratio[2],
        step_ms=1e3 * process.step_seconds,
        images_per_second=process.rate,
        peak_mib=process.last["peak_mib"],
        rounds=len(process.rates) or 1,
        start_ratios=(ratio[0],),
        round_ratios=tuple(own / base for own, base in rounds),
    )


def _combine(results: Sequence[ArmResult], level: float, starts: int) -> ArmResult:
    """Return the result of a training over all starts.

    Below three starts the unit is the round, of all starts together. Then it is the start.

    Args:
        results: Its result in each start, up to the first in which it failed.
        level: Level of the interval.
        starts: Number of starts.
    """
    first = results[0]
    last = results[-1]
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
