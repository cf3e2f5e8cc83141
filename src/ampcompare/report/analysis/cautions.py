"""Why not to trust the figures too far: each reason a sentence, said only where it holds."""

from __future__ import annotations

from collections.abc import Sequence

from ampcompare.report.analysis.comparison import MAX_KEYS, Comparison
from ampcompare.report.analysis.figures import RunFigures
from ampcompare.report.analysis.groups import Group
from ampcompare.report.analysis.metric import ComparedMetric
from ampcompare.report.analysis.settings import Setting
from ampcompare.report.words import count, listed, plural, short


def cautions(
    figures: Sequence[RunFigures],
    setting: Setting,
    groups: Sequence[Group],
    comparisons: Sequence[Comparison],
    metric: ComparedMetric,
    ignored: frozenset[str] = frozenset(),
    asked: Sequence[str] = (),
) -> list[str]:
    """The reasons for doubt, gravest first. `asked` are the keys by which groups were to be told apart."""
    said = []
    if setting.is_synthetic:
        said.append("Synthetic data: accuracies show that training works, not how good a model would be.")
    if setting.is_cpu:
        said.append(
            "Measured on a CPU, where fp16 arithmetic is emulated: these speed figures say nothing about a "
            "GPU. Peak memory is the resident memory of the whole process."
        )
    said += _not_pooled(groups, asked)
    said += _not_compared(comparisons)
    said += _sample_size(groups, comparisons)
    if ignored:
        said.append(f"You asked to pool and compare runs whatever their {listed(sorted(ignored))}.")
    if any(not f.device for f in figures):
        said.append(f"The device is not recorded for {some([f.run.name for f in figures if not f.device])}.")
    said += _missing(groups, metric)
    said += _unsound(figures, groups)
    return said


def _not_pooled(groups: Sequence[Group], asked: Sequence[str]) -> list[str]:
    said = []
    for value in dict.fromkeys(g.value for g in groups):
        alike = [g for g in groups if g.value == value]
        if len(alike) < 2:
            continue
        keys = [key for key, _ in alike[0].apart if key not in asked]
        if not keys:
            continue
        shown = []
        for key in keys[:MAX_KEYS]:
            values = dict.fromkeys(short(dict(g.apart)[key]) for g in alike)
            shown.append(f"{key} ({some(list(values), 4)})")
        more = f" and {len(keys) - MAX_KEYS} more settings" if len(keys) > MAX_KEYS else ""
        said.append(
            f"Runs of {value} are not pooled, in {len(alike)} groups: they differ in {listed(shown)}{more}."
        )
    return said


def _not_compared(comparisons: Sequence[Comparison]) -> list[str]:
    refused = [c for c in comparisons if c.refusal]
    said = [f"{c.group.label} is not compared: {c.refusal}." for c in refused[:MAX_KEYS]]
    if len(refused) > MAX_KEYS:
        said.append(f"{len(refused) - MAX_KEYS} more groups are not compared; the lines above say why.")
    if any(not c.same_device for c in comparisons):
        said.append("Backends ran on different devices; speed and memory are not compared across devices.")
    loose = list(dict.fromkeys(key for c in comparisons for key in c.loose))
    if loose:
        said.append(
            f"Groups are compared although they differ in {some(loose, MAX_KEYS)}: it may come from that."
        )
    return said


def _sample_size(groups: Sequence[Group], comparisons: Sequence[Comparison]) -> list[str]:
    counted = [g for g in groups if g.counted]
    single = [g.label for g in counted if g.seeds == 1]
    said = []
    if single:
        which = "One seed per backend" if len(single) == len(counted) else f"One seed for {some(single)}"
        said.append(
            f"{which} (n = 1): no interval can be given, and a small difference may be chance: "
            "not enough seeds to tell. Run more seeds."
        )
    unpaired = [c.group.label for c in comparisons if c.speed and not c.speed.paired]
    if unpaired:
        said.append(
            f"{some(unpaired)} and the baseline share fewer than two seeds: compared without pairing."
        )
    left_out = [c for c in comparisons if c.speed and c.speed.left_out]
    if left_out:
        which = some([f"{c.group.label}: {c.speed.left_out}" for c in left_out if c.speed])
        said.append(f"Seeds without a partner are left out of the comparison ({which}).")
    if any(e.n == 2 for c in comparisons for e in (c.speed, c.quality) if e):
        said.append("Two seeds give an interval, but a very wide one; three or more say much more.")
    return said


def _missing(groups: Sequence[Group], metric: ComparedMetric) -> list[str]:
    names = {"images_per_second": "throughput", "peak_mib": "peak memory", "quality": metric.name}
    said = []
    for name, words in names.items():
        without = [g.label for g in groups if g.counted and g.means[name] is None]
        if without:
            said.append(f"No {words} is recorded for {some(without)}.")
    return said


def _unsound(figures: Sequence[RunFigures], groups: Sequence[Group]) -> list[str]:
    said = []
    unfinished = [f for f in figures if f.run.state != "finished"]
    if unfinished:
        names = some([f"{f.run.name} ({f.run.state})" for f in unfinished])
        only = [g.label for g in groups if g.is_unfinished]
        note = (
            f" For {some(only)} there is none, so the figures are those of unfinished runs." if only else ""
        )
        verb = "counts" if len(unfinished) == 1 else "count"
        said.append(f"{names} did not finish and {verb} only where a backend has no finished run.{note}")
    bad = [f for f in figures if f.nan_losses]
    for f in bad[:MAX_KEYS]:
        since = "" if f.nan_from is None else f", first at step {count(f.nan_from)}"
        said.append(
            f"The training loss of {f.run.name} is not finite in {plural(f.nan_losses, 'row')}{since}."
        )
    if len(bad) > MAX_KEYS:
        said.append(f"So it is in {len(bad) - MAX_KEYS} more runs; the table of runs says which.")
    jumping = [f.run.name for f in figures if f.clock_jumps]
    if jumping:
        said.append(
            f"The clock of {some(jumping)} goes backwards: left out of the charts by wall-clock time."
        )
    damaged = [f.run.name for f in figures if f.run.problems]
    if damaged:
        said.append(f"The record of {some(damaged)} has problems; the table of runs says which.")
    return said


def some(names: Sequence[str], limit: int = 5) -> str:
    """The names, of many the first and how many more."""
    if len(names) <= limit:
        return listed(names)
    return f"{', '.join(names[:limit])} and {len(names) - limit} more"
