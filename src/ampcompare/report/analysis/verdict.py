"""The answer in words, from the data and from nothing else: what was gained, and whether it can be told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ampcompare.report import words
from ampcompare.report.analysis.comparison import Comparison
from ampcompare.report.analysis.groups import BACKEND, Group
from ampcompare.report.analysis.metric import ComparedMetric

NBSP = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True)
class Verdict:
    """`headline`: a sentence; `lines`: a (label, sentence) per group; `cautions`: the reasons for doubt."""

    headline: str
    lines: tuple[tuple[str, str], ...]
    cautions: tuple[str, ...]


def headline(groups: Sequence[Group], comparisons: Sequence[Comparison], key: str, wanted: str) -> str:
    """The answer in one sentence: the fastest group against the baseline, the value `wanted` of `key`."""
    if not (bases := [g for g in groups if g.value == wanted]):
        others = words.listed(dict.fromkeys(g.value for g in groups))
        return f"There is no run of the baseline {wanted!r} here, only of {others}: nothing to compare with."
    if not comparisons:
        ran = words.listed(b.label for b in bases)
        return f"Only {ran} was run: there is nothing to compare it with yet."
    if all(c.refusal for c in comparisons):
        return f"Nothing is compared: {comparisons[0].group.label} is not, because {comparisons[0].refusal}."
    if not (known := [c for c in comparisons if c.speed is not None]):
        if any(not c.same_device for c in comparisons):
            return "The backends ran on different devices: no speed-up can be given."
        return "Throughput is not recorded on both sides: no speed-up can be given."
    known = [c for c in known if not c.group.is_unfinished] or known
    fastest = max(known, key=lambda c: c.speedup or 0)
    if (fastest.speedup or 0) <= 1:
        what = key if key == BACKEND else f"value of {key}"
        return f"No {what} trained faster than the baseline ({wanted})."
    return f"{fastest.group.label} {_gains(fastest)}."


def line(group: Group, comparison: Comparison | None, metric: ComparedMetric) -> str:
    """What is to be said of one group, None its comparison where it is a baseline or there is none."""
    if not group.counted:
        return f"{_runs(group)}, without a single logged row."
    is_compared = comparison is not None and (comparison.speed or comparison.quality or comparison.memory)
    if comparison and is_compared:
        sentence = words.capital(_gains(comparison))
    else:
        sentence = ", ".join(_absolute(group, metric)) or "no throughput, memory or accuracy was recorded"
        sentence += f" ({_runs(group)})"
    skipped, median = group.values("skipped_steps"), group.medians["skipped_steps"]
    if any(skipped):
        each = "" if len(skipped) == 1 else " per run in the median"
        sentence += f"; {words.count(median)} skipped {'step' if median == 1 else 'steps'}{each}"
    if comparison and comparison.refusal:
        sentence += f". Not compared: {comparison.refusal}"
    return f"{sentence}."


def _absolute(group: Group, metric: ComparedMetric) -> list[str]:
    parts = []
    if speed := group.means["images_per_second"]:
        parts.append(f"{words.number(speed.value)} images/s")
    if memory := group.means["peak_mib"]:
        parts.append(f"{words.mib(memory.value)} MiB peak memory")
    if quality := group.means["quality"]:
        so_far = " so far" if group.is_unfinished else ""
        parts.append(f"{metric.name} {metric.show(quality.value)}{so_far}")
    return parts


def _gains(comparison: Comparison) -> str:
    """`trains 1.90× as fast as none (1.88 to 1.92), needs 41 % less memory (...), and its accuracy ...`."""
    parts = list(filter(None, (_speed(comparison), _memory(comparison), _quality(comparison))))
    basis = _basis(comparison)
    if not comparison.enough_seeds:
        return f"{words.listed(parts)}: not enough seeds to tell what of this is chance ({basis})"
    start = f"{', '.join(parts[:-1])}, and " if len(parts) > 1 else ""
    return f"{start}{parts[-1]} ({basis})"


def _speed(comparison: Comparison) -> str:
    speed = comparison.speed
    if speed is None or comparison.baseline is None:
        return ""
    span = words.between(speed.low, speed.high, words.number)
    text = f"trains {words.ratio(speed.value)} as fast as {comparison.baseline.label}{span}"
    if speed.low is not None and speed.high is not None and speed.low <= 1 <= speed.high:
        text += ", which may be no difference,"
    return text


def _memory(comparison: Comparison) -> str:
    if (memory := comparison.memory) is None:
        return ""
    share = (1 - memory.value) * 100
    digits = 0 if abs(share) >= 9.95 else 1
    if words.amount(share, digits) == words.amount(0, digits):
        return "needs the same memory"
    low, high = (None if e is None else (1 - e) * 100 for e in (memory.high, memory.low))
    less = "less" if share > 0 else "more"
    if low is None or high is None:
        return f"needs {words.amount(share, digits)} % {less} memory"
    if low <= 0 <= high:
        return f"needs {words.amount(share, digits)} % {less} memory, which may be no difference"
    ends = sorted((abs(low), abs(high)))
    span = words.interval(ends[0], ends[1], lambda end: words.amount(end, digits))
    return f"needs {words.amount(share, digits)} % {less} memory ({span}{' %' if span[0].isdigit() else ''})"


def _quality(comparison: Comparison) -> str:
    quality, metric = comparison.quality, comparison.metric
    if quality is None:
        return ""
    unit = f" {metric.unit}" if metric.unit else ""
    value = f"{words.signed(quality.value)}{unit}"
    if quality.low is None or quality.high is None:
        return f"its {metric.name} differs by {value}"
    span = words.interval(quality.low, quality.high, words.signed)
    if comparison.is_equivalent:
        return f"its {metric.name} is equivalent within {metric.tolerance} ({value}, {span})"
    if quality.low <= 0 <= quality.high:
        margin = f" or called equal within {metric.tolerance}" if metric.tolerance else ""
        return f"its {metric.name} cannot be told apart{margin} yet ({value}, {span})"
    side = "higher" if quality.value > 0 else "lower"
    return f"its {metric.name} is {words.amount(quality.value, 2)}{unit} {side} ({span})"


def _basis(comparison: Comparison) -> str:
    estimate = comparison.speed or comparison.quality or comparison.memory
    text = f"n{NBSP}={NBSP}{comparison.n}"
    if estimate is not None and estimate.has_interval:
        text += ", paired by seed" if estimate.paired else ", not paired"
    return f"{text}, not finished" if comparison.group.is_unfinished else text


def _runs(group: Group) -> str:
    if not group.counted:
        return words.plural(len(group.runs), "run")
    text = f"n{NBSP}={NBSP}{group.n}"
    if group.n > 1:
        text += f", {words.plural(group.seeds, 'seed')}"
    return f"{text}, not finished" if group.is_unfinished else text
