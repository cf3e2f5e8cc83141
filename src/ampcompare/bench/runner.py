"""Interleave several trainings, each in its own process, and compare their speed within rounds.

The protocol is that of `system.interleaved_timing`. The baseline runs twice: the second copy is an A/A
control. Processes of one training differ, too, for example by where their memory lies. So all processes may
be started several times. Free of torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ampcompare import __version__
from ampcompare.analysis.bench_file import (
    BenchArm,
    BenchControl,
    BenchFile,
    BenchStart,
    is_precise,
    speed_up,
)
from ampcompare.analysis.statistics.median_interval import MIN_STARTS
from ampcompare.bench.training_process import Progress, Serve, TimeLimit, TrainingProcess, serve_training
from ampcompare.errors import UserError
from ampcompare.runtime.formatting import plural
from ampcompare.runtime.paths import shell_command
from ampcompare.runtime.startup import let_threads_sleep
from ampcompare.system.interleaved_timing import MAX_ROUNDS, SLOW_FRACTION, run_rounds, seconds_per_turn

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


@dataclass
class _Training:
    """A training and what its starts have measured so far.

    Attributes:
        arm: The training.
        starts: The rounds of each complete start.
        facts: What its process reports of dtype, settings and machine; empty until it is built.
        failed: Why it cannot be started again; empty while it can.
    """

    arm: BenchmarkArm
    starts: list[BenchStart] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    failed: str = ""

    def add(self, process: TrainingProcess, baseline: TrainingProcess) -> None:
        """Add what a process measured, or why it did not."""
        self.facts = self.facts or process.facts
        self.failed = process.failed
        if not self.failed and not (process.first and baseline.first):
            self.failed = "interrupted before its first steps"
        if not self.failed:
            self.starts.append(_rounds_of(process, baseline))

    def about(self, starts: int) -> dict[str, Any]:
        """Return its label, options and facts for the file.

        Args:
            starts: Number of starts of the benchmark.
        """
        start = f"in start {len(self.starts) + 1} of {starts}: " if self.starts else ""
        return {
            "label": self.arm.label,
            "options": self.arm.options | self.facts.get("settings", {}),
            "requested": self.arm.options,
            "failed": f"{start}{self.failed}" if self.failed else None,
            "backend_source": self.facts.get("backend_source"),
            "dtype": self.facts.get("dtype"),
            "is_computed_in_fp32": self.facts.get("is_computed_in_fp32", False),
        }


def run_benchmark(arms: Sequence[BenchmarkArm], schedule: Schedule, report: Progress) -> BenchFile:
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
        UserError: The baseline was not measured.
    """
    let_threads_sleep()
    level = schedule.level(len(arms))
    control = dataclasses.replace(arms[0], label=CONTROL)
    trainings = [_Training(arm) for arm in (arms[0], control, *arms[1:])]
    complete = 0
    while complete < schedule.starts:
        prefix = f"start {complete + 1}/{schedule.starts}: " if schedule.starts > 1 else ""
        remaining = [training for training in trainings if not training.failed]
        try:
            start = _measure_start(
                [training.arm for training in remaining], schedule, level, _prefixed(report, prefix)
            )
        except KeyboardInterrupt:
            if complete == 0:
                raise
            break
        if start.is_interrupted and complete > 0:
            break
        complete += 1
        for training, (process, baseline) in zip(remaining, start.pairs, strict=True):
            training.add(process, baseline)
        if start.is_interrupted or trainings[0].failed:
            break
    return _make_file(trainings, schedule, complete)


def _make_file(trainings: Sequence[_Training], schedule: Schedule, starts: int) -> BenchFile:
    """Return the result of the trainings: the baseline, the control and the others.

    Raises:
        UserError: The baseline was not measured.
    """
    baseline, control, *others = trainings
    about = baseline.about(starts)
    if about["failed"]:
        command = shell_command("ampcompare", "run", *baseline.arm.overrides)
        raise UserError(
            f"the baseline {about['label']} failed: {about['failed']}; to see it as a run: {command}"
        )
    level = schedule.level(len(trainings) - 1, starts)
    first = BenchArm.from_starts(baseline.starts, level, **about)
    arms = [BenchArm.from_starts(each.starts, level, **each.about(starts)) for each in others]
    options = [each.arm.options for each in (baseline, *others)]
    keys = dict.fromkeys(key for each in options for key in each)
    facts = baseline.facts
    environment = facts["environment"]
    return BenchFile(
        baseline=first.label,
        level=level,
        machine=_describe_machine(environment),
        minutes=schedule.minutes,
        looks=[*schedule.looks],
        varied=[key for key in keys if len({each.get(key) for each in options}) > 1],
        fingerprint=facts.get("fingerprint", {}) | {"package_version": __version__},
        train_samples=facts.get("train_samples"),
        starts=starts,
        control=BenchControl.from_starts(control.starts, level, **control.about(starts)).with_verdict(starts),
        device=environment["device_name"],
        device_type=environment["device_type"],
        unit=facts.get("unit", "images"),
        arms=[first.model_copy(update={"ratio": 1.0, "low": 1.0, "high": 1.0}), *arms],
    )


def _describe_machine(environment: Mapping[str, Any]) -> str:
    """Return the processor or GPU, its threads and PyTorch's version."""
    threads = ""
    if environment["device_type"] == "cpu":
        threads = f", {plural(environment['cpu_threads'], 'thread')}"
    return f"{environment['device_name']}{threads}, torch {environment['torch']}"


def _prefixed(report: Progress, prefix: str) -> Progress:
    return lambda line: report(f"{prefix}{line}")


class StartResults(NamedTuple):
    """What one start of all trainings has measured.

    Attributes:
        pairs: The process of each training, in the order of the arms, and that of its baseline.
        is_interrupted: Whether Ctrl-C ended the rounds.
    """

    pairs: list[tuple[TrainingProcess, TrainingProcess]]
    is_interrupted: bool


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
    pairs = [(process, baseline) for process in processes]
    for position, (arm, process) in enumerate(zip(arms, processes, strict=True)):
        if process.is_full and not baseline.failed and not is_interrupted:
            report(f"{arm.label} ran out of memory beside the others: again, with the baseline alone")
            pair: list[TrainingProcess] = []
            is_interrupted = _measure([arms[0], arm], pair, schedule, level, report)
            if len(pair) == 2 and pair[0].first:
                pairs[position] = pair[1], pair[0]
    return StartResults(pairs, is_interrupted)


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
        ratios = {
            arm.label: speed_up([_rounds_of(process, baseline)], level)
            for arm, process in zip(arms[1:], processes[1:], strict=True)
            if process.is_active
        }
        shown = ", ".join(f"{label} {ratio:.2f}x" for label, (ratio, *_) in ratios.items())
        report(f"round {number}, at most {seconds_left:.0f} s left: {shown}")
        return number in schedule.looks and all(is_precise(*ratio) for ratio in ratios.values())

    run_rounds(
        processes,
        60 * schedule.minutes,
        schedule.seconds_per_turn(len(processes)),
        max_rounds=schedule.looks[-1],
        is_enough=is_enough,
    )


def _rounds_of(process: TrainingProcess, baseline: TrainingProcess) -> BenchStart:
    """Return what a process measured beside the baseline; without rounds, a step of each counts as one."""
    has_rounds = bool(process.rates and baseline.rates)
    return BenchStart(
        images_per_second=process.rates if has_rounds else [process.rate],
        step_ms=[1e3 * seconds for seconds in (process.seconds if has_rounds else [process.step_seconds])],
        baseline_images_per_second=baseline.rates if has_rounds else [baseline.rate],
        peak_mib=process.last["peak_mib"],
    )
