"""What `ampcompare bench` prints: table and sentences."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from ampcompare.analysis.bench_file import BenchArm, BenchFile
from ampcompare.analysis.statistics.median_interval import (
    MIN_DIFFERENCE,
    MIN_ROUNDS,
    is_even,
    smallest_difference,
)
from ampcompare.bench.runner import CONTROL, BenchmarkArm, Schedule
from ampcompare.errors import one_line
from ampcompare.precision.registry import PLAIN, REGISTRY
from ampcompare.runtime import formatting
from ampcompare.runtime.paths import shell_command

MAX_WIDTH = 10_000  # characters of a line in the table
# Milliseconds. On two shared cores, processes of the same training differed by up to 1.4 times when a step
# took 3 ms, and did not when a step took 12 ms.
SHORT_STEP = 10
CLEARLY_SLOWER = 0.5  # times the other's speed
MORE_STARTS = 5  # that are proposed
MAX_NAMES = 3  # of trainings in a sentence
# What all trainings have in common is named in this order.
COMMON = ("model.name", "backend", "batch_size", "execution", "memory_format")


def describe_plan(arms: Sequence[BenchmarkArm], schedule: Schedule) -> str:
    """Return what is about to be measured: the values of each listed option, and the limit."""
    values: dict[str, list[str]] = {}
    for arm in arms:
        for option, value in arm.options.items():
            values.setdefault(option, []).append(value)
    listed = " ".join(f"{option}={','.join(dict.fromkeys(each))}" for option, each in values.items())
    limit = f"{schedule.minutes:g} minute{'s' * (schedule.minutes != 1)}"
    count = formatting.plural(len(arms), "training")
    restarts = f" in each of {schedule.starts} starts" if schedule.starts > 1 else ""
    return f"Measuring {count} and an A/A control, interleaved, for up to {limit}{restarts}: {listed}"


def print_table(result: BenchFile, console: Console) -> None:
    """Print one row per training, the control last."""
    options = result.varied or [*result.arms[0].requested][:1]
    table = Table(*options, box=None, header_style="bold", pad_edge=False)
    for heading in (f"{result.unit}/s", "ms/step", "speed-up", "95% CI", "peak MiB", "rounds"):
        table.add_column(heading, justify="right")
    for arm in (*result.arms, result.control):
        values = [one_line(arm.requested.get(option, "")) for option in options]
        if arm is result.control:
            values[0] = CONTROL
        table.add_row(*values, *(["failed"] if arm.failed else _cells(arm, result)))
    # A console of its own: Rich would break values to fit them into the width of a terminal.
    Console(file=console.file, width=MAX_WIDTH, force_terminal=console.is_terminal).print(table)


def _cells(arm: BenchArm, result: BenchFile) -> list[str]:
    """Return the figures of a training, in the order of the columns."""
    return [
        formatting.number(arm.images_per_second),
        formatting.number(arm.step_ms),
        _speed_up(arm),
        "" if arm is result.arms[0] else _interval(arm),
        "" if arm.peak_mib is None else f"{arm.peak_mib:,.0f}",
        str(arm.rounds),
    ]


def _decimals(arm: BenchArm) -> int:
    """Return the decimals of a speed-up and of its interval: two, or as many as tell the ends from 1."""
    if arm.low is None or arm.high is None:
        return 2
    return formatting.digits_to_distinguish((arm.low, arm.high), (1.0,), lambda x, n: f"{x:.{n}f}", 2)


def _speed_up(arm: BenchArm) -> str:
    return f"{arm.ratio:.{_decimals(arm)}f}x"


def _interval(arm: BenchArm) -> str:
    if arm.low is None or arm.high is None:
        return "-"
    decimals = _decimals(arm)
    return f"{arm.low:.{decimals}f} to {arm.high:.{decimals}f}"


def sentences(result: BenchFile) -> Iterator[str]:
    """Yield what a reader has to know about the table."""
    baseline, *others = result.arms
    setting = "; ".join(part for part in (common_settings(result), result.machine) if part)
    yield f"Measured: {setting}. Data loading is not part of a step."
    measured = [arm for arm in (*others, result.control) if not arm.failed]
    yield _describe_speed_up(result)
    has_intervals = any(arm.high is not None for arm in measured)
    if has_intervals and result.is_of_starts:
        yield (
            f"Each training was started {result.starts} times. All intervals of the table hold together with "
            "95% confidence, for other starts, too."
        )
    elif has_intervals:
        yield (
            "All intervals of the table hold together with 95% confidence, for these processes only: another "
            f"start of a training can differ. Differences below {100 * MIN_DIFFERENCE:g}% mean nothing; to "
            f"measure them: --restarts {MORE_STARTS}"
        )
    if not result.control.failed:
        yield _describe_control(result, baseline)
    for arm in (*result.arms, result.control):
        if arm.failed:
            yield f"{arm.label} failed: {arm.failed}"
    has_short_steps = any(arm.step_ms and arm.step_ms < SHORT_STEP for arm in result.arms)
    if result.device_type == "cpu" and has_short_steps and not result.is_of_starts:
        yield (
            f"Some steps take less than {SHORT_STEP} ms. On a CPU, two processes of the same training have "
            "differed by up to 1.4x in such steps, more than the intervals show. "
            "A larger batch_size makes steps longer."
        )
    in_fp32 = [arm for arm in result.arms if arm.is_computed_in_fp32]
    if in_fp32:
        dtypes = formatting.listed(dict.fromkeys(arm.dtype or "" for arm in in_fp32))
        names = formatting.listed(dict.fromkeys(_backend(arm) or arm.label for arm in in_fp32))
        yield f"This CPU computes {dtypes} operations in fp32: the speed of {names} says nothing about a GPU."
    yield from _describe_precision(result, measured)


def _describe_speed_up(result: BenchFile) -> str:
    """Return what a speed-up is, and its difference from the quotient of two rates."""
    if result.is_of_starts:
        return (
            "Speed-up: relative to the first row, the geometric mean over starts of the median of the ratios "
            "within rounds. It can differ from the quotient of two rates in the table."
        )
    return (
        "Speed-up: relative to the first row, the median of the ratios within rounds. It can differ from the "
        "quotient of two rates in the table."
    )


def _describe_precision(result: BenchFile, measured: Sequence[BenchArm]) -> Iterator[str]:
    """Yield which speed-ups are not known to within 5%, and what would help."""
    vague = [arm.label for arm in measured if not arm.is_precise]
    if not vague:
        return
    rounds = result.arms[0].rounds
    limit = result.looks[-1] * result.starts
    if len(vague) == len(measured) > 1:
        text = "No speed-up is known to within 5%"
    else:
        names = formatting.some(vague, MAX_NAMES)
        text = (
            f"{len(vague)} of {formatting.plural(len(measured), 'speed-up')} not known to within 5%: {names}"
        )
    if result.is_of_starts:
        yield f"{text}. For narrower intervals, start more often: --restarts {2 * result.starts}"
    elif rounds < limit:
        yield f"{text}. For narrower intervals, measure longer: --minutes {_longer(result.minutes or 1)}"
    else:
        yield f"{text}, after all {rounds} rounds. Other programs on the machine are the usual cause."


def _longer(minutes: float) -> int:
    """Return the minutes to try next."""
    return max(2, round(4 * minutes))


def next_command(result: BenchFile, arms: Sequence[BenchmarkArm]) -> str:
    """Return the command that explains why mixed precision is slower than the baseline, if it is.

    A training counts only if it is shown to be slower than the baseline's backend with the same other
    options: another execution or layout is not a question of precision.
    """
    baseline, *others = result.arms
    references = {_other_options(arm): arm for arm in result.arms if _backend(arm) == _backend(baseline)}
    margin = result.resolution
    slower = []
    for arm in others:
        reference = references.get(_other_options(arm))
        if reference is None or arm.is_computed_in_fp32 or not _is_mixed(_backend(arm)):
            continue
        if _is_slower(arm, reference, margin):
            slower.append((arm, reference))
    if not slower:
        return ""
    arm, reference = min(slower, key=lambda pair: (pair[0].ratio or 0.0) / (pair[1].ratio or 1.0))
    overrides = next(own.overrides for own in arms if own.label == arm.label)
    against = () if _backend(reference) == PLAIN else ("--against", _backend(reference))
    command = shell_command("ampcompare", "why", "explain", *overrides, *against)
    return f"To see why {arm.label} is slower than {reference.label}: {command}"


def _backend(arm: BenchArm) -> str:
    return arm.requested.get("backend", "")


def _other_options(arm: BenchArm) -> frozenset[tuple[str, str]]:
    return frozenset((key, value) for key, value in arm.requested.items() if key != "backend")


def _is_mixed(backend: str) -> bool:
    """Return whether the backend computes in another dtype than fp32; a plug-in's is taken to."""
    return backend not in REGISTRY or not REGISTRY[backend].is_fp32


def _is_slower(arm: BenchArm, reference: BenchArm, margin: float) -> bool:
    """Return whether a training is shown to be slower than another one.

    With intervals, these must be further apart than the margin. Without, the ratio must be too small for
    chance.
    """
    if arm.ratio is None or reference.ratio is None:
        return False
    if arm.high is None or reference.low is None:
        return arm.ratio / reference.ratio < CLEARLY_SLOWER
    return arm.high * (1 + margin) < reference.low


def _describe_control(result: BenchFile, baseline: BenchArm) -> str:
    control = result.control
    name = f"Control ({baseline.label}, measured a second time)"
    if control.low is None or control.high is None:
        return (
            f"{name}: {control.ratio:.2f}x. Below {MIN_ROUNDS} rounds there are no intervals: speed-ups near "
            "1 may be chance."
        )
    measured = f"{_speed_up(control)} (95% CI {_interval(control)})"
    if not is_even(control.low, control.high):
        percent = formatting.number(100 * smallest_difference(control.low, control.high), 2)
        return f"{name}: {measured}. The machine is uneven: differences up to {percent}% mean nothing."
    if result.is_of_starts:
        return f"{name}: {measured}. Its true value is 1."
    percent = formatting.number(100 * result.resolution, 2)
    return f"{name}: {measured}. The smallest difference that this measurement resolves is {percent}%."


def common_settings(result: BenchFile) -> str:
    """Return the settings that all trainings share, as `resnet50, native, batch_size 128, eager`."""
    settings = [arm.options for arm in result.arms if not arm.failed]
    shared = []
    for key in COMMON:
        values = {one.get(key) for one in settings}
        # A listed option is not shared, also where only one of its values could be measured.
        if len(values) != 1 or key in result.varied:
            continue
        value = values.pop()
        if value:
            shared.append(f"{key} {value}" if key == "batch_size" else value)
    return ", ".join(shared)
