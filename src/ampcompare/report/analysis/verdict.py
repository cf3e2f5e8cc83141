"""The answer in words, built from the data and from nothing else: what was gained, and whether it can be
told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ampcompare.report.analysis.cautions import cautions
from ampcompare.report.analysis.comparison import Comparison, compare_all
from ampcompare.report.analysis.figures import RunFigures, words_of
from ampcompare.report.analysis.groups import BACKEND, Group, group_runs
from ampcompare.report.analysis.metric import Metric
from ampcompare.report.analysis.settings import Setting
from ampcompare.report.analysis.statistics import Estimate
from ampcompare.report.palette import Style, styles
from ampcompare.report.words import (
    amount,
    count,
    interval,
    listed,
    mib,
    number,
    percent,
    plural,
    ratio,
    signed,
)

NBSP = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True)
class Verdict:
    """`headline`: a sentence; `lines`: a (label, sentence) per group; `cautions`: the reasons for doubt."""

    headline: str
    lines: tuple[tuple[str, str], ...]
    cautions: tuple[str, ...]


@dataclass(frozen=True)
class Analysis:
    """Everything that page, tables and terminal show: groups, comparisons with the baseline, and the words
    for them.
    """

    figures: tuple[RunFigures, ...]
    setting: Setting
    groups: tuple[Group, ...]
    baseline: Group | None
    comparisons: tuple[Comparison, ...]
    verdict: Verdict
    metric: Metric
    keys: tuple[str, ...]
    looks: dict[str, Style]

    def comparison(self, label: str) -> Comparison | None:
        """The comparison of one group, None for a baseline or without one."""
        return next((c for c in self.comparisons if c.group.label == label), None)

    def baseline_is(self, value: str) -> bool:
        """Whether the comparisons are with this value of the compared key."""
        return self.baseline is not None and self.baseline.value == value

    def group_of(self, figures: RunFigures) -> Group:
        """The group that a run is in."""
        return next(g for g in self.groups if any(f is figures for f in g.runs))


def analyse(
    figures: Sequence[RunFigures],
    setting: Setting,
    baseline: str,
    metric: Metric | None = None,
    keys: Sequence[str] = (BACKEND,),
    ignored: frozenset[str] = frozenset(),
) -> Analysis:
    """Group the runs and compare each group with the baseline whose setting is its own."""
    metric = metric or Metric()
    groups = group_runs(figures, keys, ignored)
    bases = [g for g in groups if g.value == baseline]
    comparisons = compare_all(groups, baseline, keys[0], metric)
    verdict = Verdict(
        _headline(groups, bases, comparisons, baseline, metric),
        tuple((g.label, _line(g, comparisons, metric)) for g in groups),
        tuple(cautions(figures, setting, groups, comparisons, metric, ignored, keys)),
    )
    words = {g.value: words_of(run.run) for g in groups for run in g.runs}
    looks = {style.label: style for style in styles(((g.label, g.value) for g in groups), words)}
    return Analysis(
        tuple(figures),
        setting,
        tuple(groups),
        bases[0] if bases else None,
        tuple(comparisons),
        verdict,
        metric,
        tuple(keys),
        looks,
    )


def _headline(
    groups: Sequence[Group],
    bases: Sequence[Group],
    comparisons: Sequence[Comparison],
    wanted: str,
    metric: Metric,
) -> str:
    if not bases:
        others = listed(dict.fromkeys(g.value for g in groups))
        return f"There is no run of the baseline {wanted!r} here, only of {others}: nothing to compare with."
    if not comparisons:
        return f"Only {listed(b.label for b in bases)} was run: there is nothing to compare it with yet."
    if all(c.refusal for c in comparisons):
        return f"Nothing is compared: {comparisons[0].group.label} is not, because {comparisons[0].refusal}."
    known = [c for c in comparisons if c.speed is not None]
    if not known:
        if any(not c.same_device for c in comparisons):
            return "The backends ran on different devices: no speed-up can be given."
        return "Throughput is not recorded on both sides: no speed-up can be given."
    known = [c for c in known if not c.group.is_unfinished] or known
    fastest = max(known, key=lambda c: c.speedup or 0)
    if (fastest.speedup or 0) <= 1:
        return f"Nothing trained faster than {wanted} here."
    return f"{fastest.group.label} {_gains(fastest, metric)}."


def _line(group: Group, comparisons: Sequence[Comparison], metric: Metric) -> str:
    if not group.counted:
        return f"{_runs(group)}, without a single logged row."
    comparison = next((c for c in comparisons if c.group is group), None)
    is_compared = comparison is not None and (comparison.speed or comparison.quality or comparison.memory)
    if comparison and is_compared:
        sentence = _gains(comparison, metric)
        sentence = sentence[0].upper() + sentence[1:]
    else:
        sentence = ", ".join(_absolute(group, metric)) or "no throughput, memory or accuracy was recorded"
        sentence += f" ({_runs(group)})"
    skipped = group.figure("skipped_steps")
    if skipped and skipped.high:
        each = "" if skipped.n == 1 else " per run in the median"
        sentence += f"; {count(skipped.median)} skipped {'step' if skipped.median == 1 else 'steps'}{each}"
    if comparison and comparison.refusal:
        sentence += f". Not compared: {comparison.refusal}"
    return f"{sentence}."


def _absolute(group: Group, metric: Metric) -> list[str]:
    parts = []
    if speed := group.figure("images_per_second"):
        parts.append(f"{number(speed.mean)} images/s")
    if memory := group.figure("peak_mib"):
        parts.append(f"{mib(memory.mean)} MiB peak memory")
    if quality := group.figure("quality"):
        value = percent(quality.mean) if metric.is_fraction else number(quality.mean)
        parts.append(f"{metric.name} {value}{' so far' if group.is_unfinished else ''}")
    return parts


def _gains(comparison: Comparison, metric: Metric) -> str:
    """`trains 1.90× as fast as none (1.88 to 1.92), needs 41 % less memory (...), and its accuracy ...`."""
    parts = [part for part in (_speed(comparison), _memory(comparison), _quality(comparison, metric)) if part]
    basis = _basis(comparison)
    if not comparison.enough_seeds:
        return f"{listed(parts)}: not enough seeds to tell what of this is chance ({basis})"
    return (
        f"{', '.join(parts[:-1])}, and {parts[-1]} ({basis})" if len(parts) > 1 else f"{parts[0]} ({basis})"
    )


def _speed(comparison: Comparison) -> str:
    speed = comparison.speed
    if speed is None or comparison.baseline is None:
        return ""
    words = f"trains {ratio(speed.value)} as fast as {comparison.baseline.label}{between(speed, number)}"
    if speed.low is not None and speed.high is not None and speed.low <= 1 <= speed.high:
        words += ", which may be no difference,"
    return words


def _memory(comparison: Comparison) -> str:
    memory = comparison.memory
    if memory is None:
        return ""
    share = (1 - memory.value) * 100
    digits = 0 if abs(share) >= 9.95 else 1
    if amount(share, digits) == amount(0, digits):
        return "needs the same memory"
    low, high = (None if e is None else (1 - e) * 100 for e in (memory.high, memory.low))
    less = "less" if share > 0 else "more"
    if low is None or high is None:
        return f"needs {amount(share, digits)} % {less} memory"
    if low <= 0 <= high:
        return f"needs {amount(share, digits)} % {less} memory, which may be no difference"
    ends = sorted((abs(low), abs(high)))
    span = interval(ends[0], ends[1], lambda end: amount(end, digits))
    return f"needs {amount(share, digits)} % {less} memory ({span}{' %' if span[0].isdigit() else ''})"


def _quality(comparison: Comparison, metric: Metric) -> str:
    quality, test = comparison.quality, comparison.equivalence
    if quality is None:
        return ""
    unit = f" {metric.unit}" if metric.unit else ""
    value = f"{signed(quality.value)}{unit}"
    if quality.low is None or quality.high is None:
        return f"its {metric.name} differs by {value}"
    span = interval(quality.low, quality.high, signed)
    if test is not None and test.holds:
        return f"its {metric.name} is equivalent within {metric.margin:g}{unit} ({value}, {span})"
    if quality.low <= 0 <= quality.high:
        margin = f" or called equal within {metric.margin:g}{unit}" if metric.margin is not None else ""
        return f"its {metric.name} cannot be told apart{margin} yet ({value}, {span})"
    side = "higher" if quality.value > 0 else "lower"
    return f"its {metric.name} is {amount(quality.value, 2)}{unit} {side} ({span})"


def between(estimate: Estimate, show: Callable[[float], str]) -> str:
    """` (1.88 to 1.92)`, or nothing without an interval."""
    span = interval(estimate.low, estimate.high, show)
    return f" ({span})" if span else ""


def _basis(comparison: Comparison) -> str:
    estimate = comparison.speed or comparison.quality or comparison.memory
    text = f"n{NBSP}={NBSP}{comparison.n}"
    if estimate is not None and estimate.has_interval:
        text += ", paired by seed" if estimate.method.startswith("paired") else ", not paired"
    return f"{text}, not finished" if comparison.group.is_unfinished else text


def _runs(group: Group) -> str:
    n = len(group.counted)
    if not n:
        return plural(len(group.runs), "run")
    text = f"n{NBSP}={NBSP}{n}"
    if n > 1:
        text += f", {plural(group.seeds, 'seed')}"
    return f"{text}, not finished" if group.is_unfinished else text
