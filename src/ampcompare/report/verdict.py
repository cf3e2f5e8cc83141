"""The answer in words, built from the data and from nothing else: what was gained, and why not to trust it too far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ampcompare.report.figures import RunFigures
from ampcompare.report.setting import Difference, Setting, differences
from ampcompare.report.statistics import Comparison, Group, compare, group_runs
from ampcompare.report.words import count, listed, mib, number, percent, plural, points, ratio

MAX_KEYS = 8
METRICS = {
    "images_per_second": "throughput",
    "peak_mib": "peak memory",
    "best_accuracy": "eval accuracy",
}


@dataclass(frozen=True)
class Verdict:
    """`headline` is one sentence, `lines` one (label, sentence) per backend, `cautions` the reasons for doubt."""

    headline: str
    lines: tuple[tuple[str, str], ...]
    cautions: tuple[str, ...]


@dataclass(frozen=True)
class Analysis:
    """Everything that page and terminal show: groups, comparisons with the baseline, and the words for them."""

    figures: tuple[RunFigures, ...]
    setting: Setting
    groups: tuple[Group, ...]
    baseline: Group | None
    comparisons: tuple[Comparison, ...]
    differences: tuple[Difference, ...]
    verdict: Verdict

    def comparison(self, label: str) -> Comparison | None:
        """The comparison of one group, None for the baseline or without one."""
        return next((c for c in self.comparisons if c.group.label == label), None)


def analyse(figures: Sequence[RunFigures], setting: Setting, baseline: str) -> Analysis:
    """Group the runs and compare each group with the one labelled `baseline`."""
    groups = group_runs(figures)
    base = next((g for g in groups if g.label == baseline), None)
    comparisons = [compare(g, base) for g in groups if g is not base] if base else []
    differing = tuple(differences(figures))
    verdict = Verdict(
        _headline(groups, base, comparisons, baseline),
        tuple((g.label, _line(g, base)) for g in groups),
        tuple(_cautions(figures, setting, groups, comparisons, differing)),
    )
    return Analysis(tuple(figures), setting, tuple(groups), base, tuple(comparisons), differing, verdict)


def _headline(groups: Sequence[Group], base: Group | None, comparisons: Sequence[Comparison], wanted: str) -> str:
    if base is None:
        others = listed(g.label for g in groups)
        return f"There is no run of the baseline {wanted!r} here, only of {others}: nothing to compare with."
    if not comparisons:
        return f"Only {base.label} was run: there is nothing to compare it with yet."
    known = [c for c in comparisons if c.speedup is not None]
    if not known:
        if any(not c.same_device for c in comparisons):
            return "The backends ran on different devices: no speed-up can be given."
        return "Throughput is not recorded on both sides: no speed-up can be given."
    known = [c for c in known if not c.group.is_unfinished] or known
    fastest = max(known, key=lambda c: c.speedup or 0)
    if (fastest.speedup or 0) <= 1:
        return f"Nothing trained faster than {base.label} here."
    return f"{fastest.group.label} trained fastest here, at {ratio(fastest.speedup)} the throughput of {base.label}."


def _line(group: Group, base: Group | None) -> str:
    if not group.counted:
        return f"{_runs(group)}, without a single logged row."
    parts = _absolute(group) if base is None or group is base else _relative(compare(group, base), base)
    sentence = ", ".join(parts) if parts else "no throughput, memory or accuracy was recorded"
    skipped = group.figure("skipped_steps")
    if skipped and skipped.high:
        each = "" if skipped.n == 1 else " per run in the median"
        sentence += f", {count(skipped.median)} skipped {'step' if skipped.median == 1 else 'steps'}{each}"
    return f"{sentence} ({_runs(group)})."


def _absolute(group: Group) -> list[str]:
    parts = []
    if speed := group.figure("images_per_second"):
        parts.append(f"{number(speed.median)} images/s")
    if memory := group.figure("peak_mib"):
        parts.append(f"{mib(memory.median)} MiB peak memory")
    if accuracy := group.figure("best_accuracy"):
        parts.append(f"best eval accuracy {percent(accuracy.mean)}")
    return parts


def _relative(comparison: Comparison, base: Group) -> list[str]:
    group = comparison.group
    parts = []
    speed, base_speed = group.figure("images_per_second"), base.figure("images_per_second")
    if comparison.speedup is not None and speed and base_speed:
        span = comparison.speedup_range
        between = f"range {ratio(span[0])} to {ratio(span[1])}; " if span else ""
        parts.append(
            f"{ratio(comparison.speedup)} the throughput of {base.label} "
            f"({between}{number(speed.median)} against {number(base_speed.median)} images/s)"
        )
    elif speed:
        parts.append(f"{number(speed.median)} images/s")
    if comparison.memory_change is not None:
        amount = abs(comparison.memory_change) * 100
        digits = 0 if amount >= 9.95 else 1
        more = "more" if comparison.memory_change > 0 else "less"
        same = f"{amount:.{digits}f}" == "0.0"
        parts.append("an equal peak memory" if same else f"{amount:.{digits}f} % {more} peak memory")
    if comparison.accuracy_points is not None:
        better = "higher" if comparison.accuracy_points > 0 else "lower"
        amount_text = f"{abs(comparison.accuracy_points):.2f}"
        parts.append(
            "an equal best eval accuracy"
            if float(amount_text) == 0
            else f"best eval accuracy {amount_text} points {better}"
        )
        last = points(comparison.last_accuracy_points)
        if comparison.last_accuracy_points is not None and last != points(comparison.accuracy_points):
            parts[-1] += f" (last: {last})"
    elif accuracy := group.figure("best_accuracy"):
        parts.append(f"best eval accuracy {percent(accuracy.mean)}{' so far' if group.is_unfinished else ''}")
    return parts


def _runs(group: Group) -> str:
    n = len(group.counted)
    if not n:
        return plural(len(group.runs), "run")
    text = f"n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{n}"
    if n > 1:
        text += f", {plural(group.seeds, 'seed')}"
    return f"{text}, not finished" if group.is_unfinished else text


def _cautions(
    figures: Sequence[RunFigures],
    setting: Setting,
    groups: Sequence[Group],
    comparisons: Sequence[Comparison],
    differing: Sequence[Difference],
) -> list[str]:
    said = []
    if setting.is_synthetic:
        said.append("Synthetic data: accuracies show that training works, not how good a model would be.")
    if setting.is_cpu:
        said.append(
            "Measured on a CPU, where fp16 arithmetic is emulated: these speed figures say nothing about a GPU. "
            "Peak memory is the resident memory of the whole process."
        )
    said += _sample_size(groups)
    if any(not c.same_device for c in comparisons):
        said.append("Backends ran on different devices; speed and memory are not compared across devices.")
    if any(not f.device for f in figures):
        missing = [f.run.name for f in figures if not f.device]
        said.append(f"The device is not recorded for {_some(missing)}.")
    said += _not_controlled(differing)
    said += _missing(groups)
    said += _unsound(figures, groups)
    return said


def _not_controlled(differing: Sequence[Difference]) -> list[str]:
    if not differing:
        return []
    keys = _some([d.key for d in differing], MAX_KEYS)
    said = [f"The runs differ in more than backend and seed ({keys}): what differs here may come from that."]
    mixed = list(dict.fromkeys(label for d in differing for label in d.mixed))
    if mixed:
        inside = _some([d.key for d in differing if d.mixed], MAX_KEYS)
        said.append(f"Runs that differ in {inside} are put together under {listed(mixed)}.")
    return said


def _sample_size(groups: Sequence[Group]) -> list[str]:
    counted = [g for g in groups if g.counted]
    single = [g.label for g in counted if g.seeds == 1]
    said = []
    if single:
        which = "One seed per backend" if len(single) == len(counted) else f"One seed for {listed(single)}"
        said.append(f"{which} (n = 1): no interval can be given, and a small difference may be chance. Run more seeds.")
    if any(len(g.counted) > 1 for g in counted):
        said.append("Ranges are from the lowest to the highest run; they are not confidence intervals.")
    return said


def _missing(groups: Sequence[Group]) -> list[str]:
    said = []
    for name, words in METRICS.items():
        without = [g.label for g in groups if g.counted and g.figure(name) is None]
        if without:
            said.append(f"No {words} is recorded for {listed(without)}.")
    return said


def _unsound(figures: Sequence[RunFigures], groups: Sequence[Group]) -> list[str]:
    said = []
    unfinished = [f for f in figures if f.run.state != "finished"]
    if unfinished:
        names = _some([f"{f.run.name} ({f.run.state})" for f in unfinished])
        only = [g.label for g in groups if g.is_unfinished]
        note = f" For {listed(only)} there is none, so the figures are those of unfinished runs." if only else ""
        verb = "counts" if len(unfinished) == 1 else "count"
        said.append(f"{names} did not finish and {verb} only where a backend has no finished run.{note}")
    for f in figures:
        if f.nan_losses:
            since = "" if f.nan_from is None else f", first at step {count(f.nan_from)}"
            rows = plural(f.nan_losses, "row")
            said.append(f"The training loss of {f.run.name} is not finite in {rows}{since}.")
    damaged = [f.run.name for f in figures if f.run.problems]
    if damaged:
        said.append(f"The record of {_some(damaged)} has problems; the table of runs says which.")
    return said


def _some(names: Sequence[str], limit: int = 5) -> str:
    if len(names) <= limit:
        return listed(names)
    return f"{', '.join(names[:limit])} and {len(names) - limit} more"
