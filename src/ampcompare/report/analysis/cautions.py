"""Why not to trust the figures too far: each reason a sentence, said only where it holds, gravest first."""

from __future__ import annotations

from collections.abc import Sequence

from ampcompare.report.analysis.claims import null_of
from ampcompare.report.analysis.comparison import MAX_KEYS, Comparison
from ampcompare.report.analysis.doubts import about_layout, about_runs, about_speed
from ampcompare.report.analysis.processors import about_cpu
from ampcompare.report.runs.ending import Outcome
from ampcompare.report.runs.figures import RunFigures
from ampcompare.report.runs.groups import Group
from ampcompare.report.runs.informative import information, test_set
from ampcompare.report.runs.labels import BACKEND, noun
from ampcompare.report.runs.metric import ComparedMetric
from ampcompare.report.runs.sample import NOT_ALONE
from ampcompare.report.runs.settings import Setting
from ampcompare.report.runs.spoiled import spoiled_buffers
from ampcompare.report.words import capital, count, listed, plural, short, some

# Of each question that is compared in pairs the figure whose means stand beside it.
OF_MEANS = {"speed": "images_per_second", "memory": "peak_mib", "quality": "quality"}
WORDS = {"images_per_second": "throughput", "peak_mib": "peak memory"}


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
    key = asked[0] if asked else BACKEND
    pairs = [(c.group, c.baseline) for c in comparisons if c.baseline is not None and not c.refusal]
    said = about_runs(groups, [base for _, base in pairs])
    said += _silent(groups, metric)
    said += about_layout(pairs, [c.speed for c in comparisons if c.speed and not c.is_control])
    if setting.is_synthetic:
        said.append("Synthetic data: accuracies show that training works, not how good a model would be.")
    said += about_cpu(figures)
    said += _not_pooled(groups, asked)
    said += _not_compared(comparisons, key)
    said += _sample_size(groups, comparisons, metric, key)
    said += _other_way_round(comparisons)
    said += about_speed(groups, pairs)
    if ignored:
        said.append(f"You asked to pool and compare runs whatever their {listed(sorted(ignored))}.")
    if any(not f.device for f in figures):
        said.append(f"The device is not recorded for {some([f.run.name for f in figures if not f.device])}.")
    said += _missing(groups, metric)
    said += _unsound(figures, groups, metric, key)
    said += [sentence] if (sentence := test_set(groups, metric)) else []
    return said


def _silent(groups: Sequence[Group], metric: ComparedMetric) -> list[str]:
    found = (information(g.label, g.counted, metric).sentence for g in groups if not g.is_unfinished)
    return [f"{capital(sentence)}." for sentence in found if sentence]


def _not_pooled(groups: Sequence[Group], asked: Sequence[str]) -> list[str]:
    said = []
    for value in dict.fromkeys(g.value for g in groups):
        alike = [g for g in groups if g.value == value]
        keys = [key for key, _ in alike[0].apart if key not in asked]  # none where one group has them all
        shown = []
        for key in keys[:MAX_KEYS]:
            values = dict.fromkeys(short(dict(g.apart)[key]) for g in alike)
            shown.append(f"{key} ({some(list(values), 4)})")
        if shown:
            what = listed(shown)
            if len(keys) > MAX_KEYS:
                what += f" and {len(keys) - MAX_KEYS} more settings"
            said.append(f"Runs of {value} are not pooled, in {len(alike)} groups: they differ in {what}.")
    return said


def _not_compared(comparisons: Sequence[Comparison], key: str) -> list[str]:
    refused = [c for c in comparisons if c.refusal]
    said = [f"{c.group.label} is not compared: {c.refusal}." for c in refused[:MAX_KEYS]]
    if len(refused) > MAX_KEYS:
        said.append(f"{len(refused) - MAX_KEYS} more groups are not compared; the lines above say why.")
    if any(not c.same_device for c in comparisons):
        who = capital(noun(key, many=True))
        said.append(f"{who} ran on different devices; speed and memory are not compared across devices.")
    if loose := list(dict.fromkeys(key for c in comparisons for key in c.loose)):
        names = some(loose, MAX_KEYS)
        said.append(f"Groups are compared although they differ in {names}: it may come from that.")
    return said


def _sample_size(
    groups: Sequence[Group], comparisons: Sequence[Comparison], metric: ComparedMetric, key: str
) -> list[str]:
    counted = [g for g in groups if g.counted and not g.is_control]  # a control repeats seeds by design
    single = [g.label for g in counted if g.seeds == 1]
    said = []
    if single:
        which = f"One seed per {noun(key)}" if len(single) == len(counted) else f"One seed for {some(single)}"
        of_what = f" of {metric.noun}" if any(g.n > 1 for g in counted if g.seeds == 1) else ""
        said.append(
            f"{which} (n = 1): no interval{of_what} can be given, and a small difference may be chance: "
            "not enough seeds to tell. Run more seeds."
        )
    if again := [g for g in counted if g.n > g.seeds and g.seeds]:
        each = listed(
            f"{g.label}: {plural(g.n, 'run')} of {plural(g.seeds, 'seed')}" for g in again[:MAX_KEYS]
        )
        said.append(
            f"Seeds were run again ({each}): each process is a measurement of speed, each seed one of "
            f"{metric.noun}."
        )
    unpaired = [(c.group.label, c.speed.pairs) for c in comparisons if c.speed and not c.speed.paired]
    if none := some([label for label, pairs in unpaired if pairs < 2]):
        said.append(f"{none} and the baseline share fewer than two seeds: compared without pairing.")
    if few := some([f"{label}: {pairs}" for label, pairs in unpaired if pairs > 1]):
        said.append(f"Too few seeds are in common with the baseline to pair them ({few}): compared without.")
    speeds = [(c.group.label, c.speed) for c in comparisons if c.speed]
    if left_out := some([f"{label}: {speed.left_out}" for label, speed in speeds if speed.left_out]):
        said.append(f"Seeds without a partner are left out of the comparison ({left_out}).")
    if any(e.n == 2 for c in comparisons for e in (c.speed, c.quality) if e):
        said.append("Two seeds give an interval, but a very wide one; three or more say much more.")
    return said


def _other_way_round(comparisons: Sequence[Comparison]) -> list[str]:
    """Where the means in a table lie the other way round than what the pairs show."""
    said = []
    for name, attribute in OF_MEANS.items():
        who = [c.group.label for c in comparisons if _is_turned(c, name, attribute)]
        if who:
            what = WORDS.get(attribute) or comparisons[0].metric.name
            said.append(
                f"In {what} the means of {some(who)} and the baseline lie the other way round than pairs do. "
                "What is claimed is of the pairs, which count alike; the largest runs rule a mean."
            )
    return said


def _is_turned(comparison: Comparison, name: str, attribute: str) -> bool:
    found, null = getattr(comparison, name), null_of(name)
    sides = [side.means[attribute] if side else None for side in (comparison.group, comparison.baseline)]
    ours, theirs = (mean.value if mean else None for mean in sides)
    if found is None or not found.paired or not found.has_interval or ours is None or theirs is None:
        return False
    return (found.low > null and ours < theirs) or (found.high < null and ours > theirs)


def _missing(groups: Sequence[Group], metric: ComparedMetric) -> list[str]:
    names = WORDS | {"quality": metric.name}
    said = []
    for name, words in names.items():
        if without := some([g.label for g in groups if g.counted and g.means[name] is None]):
            said.append(f"No {words} is recorded for {without}.")
        for group in groups:
            lacking = group.lacking(name)
            gone = [f"{run} ({why})" for run, why in lacking if why != NOT_ALONE]  # that is said once for all
            if gone and group.means[name] is not None:
                said.append(f"The {words} of {group.label} lacks {some(gone, MAX_KEYS)}.")
    for group in groups:
        reached = group.reached
        if 0 < reached.runs < reached.of:
            said.append(f"The target is {reached.words} runs of {group.label}: its time is that of these.")
    return said


def _unsound(
    figures: Sequence[RunFigures], groups: Sequence[Group], metric: ComparedMetric, key: str
) -> list[str]:
    said = []
    counted = {id(f) for g in groups for f in g.counted}
    # Of failed runs enough is said, unless their figures count for want of others.
    open_ones = [f for f in figures if f.outcome is not Outcome.FAILED or id(f) in counted]
    if unfinished := [f"{f.run.name} ({word})" for f in open_ones if (word := _ended_as(f))]:
        verb = "counts" if len(unfinished) == 1 else "count"
        where = f"only where a {noun(key)} has no finished run, never for {metric.noun}."
        note = f"{some(unfinished)} did not finish and {verb} {where}"
        if only := some([g.label for g in groups if g.is_unfinished]):
            note += f" For {only} there is none, so the figures are those of unfinished runs."
        said.append(note)
    bad = [f for f in figures if f.nan_losses and f.outcome is not Outcome.FAILED]  # why, is said of those
    for f in bad[:MAX_KEYS]:
        rows = plural(f.nan_losses, "row")
        since = "" if f.nan_from is None else f", first at step {count(f.nan_from)}"
        who = f.run.name if len({b.run.name for b in bad}) == len(bad) else f"{f.run.name} ({f.run.id})"
        said.append(f"The training loss of {who} is not finite in {rows}{since}.")
    if len(bad) > MAX_KEYS:
        said.append(f"So it is in {len(bad) - MAX_KEYS} more runs; the table of runs says which.")
    said += _spoiled(figures)
    if jumping := some([f.run.name for f in figures if f.clock_jumps]):
        said.append(f"The clock of {jumping} goes backwards: left out of the charts by wall-clock time.")
    if damaged := some([f.run.name for f in figures if f.run.problems]):
        said.append(f"The record of {damaged} has problems; the table of runs says which.")
    return said


def _spoiled(figures: Sequence[RunFigures]) -> list[str]:
    """Each run whose running statistics an overflow spoiled for good, with the step."""
    found = [(f, spoiled) for f in figures if (spoiled := spoiled_buffers(f.run)) is not None]
    names = [f.run.name for f, _ in found]
    said = []
    for f, spoiled in found[:MAX_KEYS]:
        who = f.run.name if names.count(f.run.name) == 1 else f"{f.run.name} ({f.run.id})"
        at = (
            ""
            if spoiled.step is None
            else f" {'at' if spoiled.is_exact else 'by'} step {count(spoiled.step)}"
        )
        said.append(
            f"A forward of {who} overflowed{at} and left {plural(spoiled.buffers, 'buffer')} (BatchNorm's "
            "running statistics) non-finite for good, which no skipped step mends: its evaluations from "
            "there on say nothing of the model. training.on_nonfinite_buffers=restore puts them back."
        )
    if len(found) > MAX_KEYS:
        said.append(f"So it is in {len(found) - MAX_KEYS} more runs.")
    return said


def _ended_as(figures: RunFigures) -> str:
    """The word for a run that did not finish: crashed where its record breaks off; nothing if it did."""
    if figures.outcome in (Outcome.FINISHED, Outcome.REFUSED):
        return ""
    is_crash = figures.outcome is Outcome.FAILED and figures.run.state == "crashed"
    return "crashed" if is_crash else figures.outcome.value
