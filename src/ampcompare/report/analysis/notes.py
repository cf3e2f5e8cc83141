"""Sentences on the experiment as a whole: its plan, how claims are tested, what its control shows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ampcompare import metrics
from ampcompare.report import words
from ampcompare.report.analysis.claims import ALPHA, Levels
from ampcompare.report.analysis.comparison import Comparison
from ampcompare.report.analysis.plan import Plan
from ampcompare.report.analysis.undecided import open_questions
from ampcompare.report.runs.arithmetic import half_type
from ampcompare.report.runs.control import Control
from ampcompare.report.runs.ending import Outcome
from ampcompare.report.runs.groups import Group
from ampcompare.report.runs.metric import ComparedMetric
from ampcompare.report.runs.sample import seed_key

MOST_LOST = 8  # seeds that are named in one sentence


def notes(
    plan: Plan,
    comparisons: Sequence[Comparison],
    metric: ComparedMetric,
    target: float | None,
    arms: Sequence[Control],
    levels: Levels,
) -> list[str]:
    """What is to be known of all claims alike. `target` is the value in use, in the metric's shown unit."""
    said = [metric.direction] if metric.direction else []
    said += [about_plan(plan, comparisons, metric, target, arms)] if plan.is_there else []
    said += list(plan.doubts)
    said += [sentence for arm in arms if (sentence := arm.sentence)]
    held = [c for c in comparisons if c.claims]
    if len(held) > 1:
        said.append(
            f"{len(held)} groups are compared: what is claimed of speed, of memory and of {metric.name} "
            f"holds for all of them together in {words.level(1 - ALPHA)} of cases (Holm), so that the "
            "levels in brackets are higher for some."
        )
    if levels.two_sided < ALPHA:
        said.append(
            f"Each planned look tests at {words.level(levels.two_sided)}, and each side of equivalence at "
            f"{words.level(levels.one_sided)}, which keeps {words.level(ALPHA)} over all of them."
        )
    return said


def about_target(groups: Sequence[Group], metric: ComparedMetric, target: float | None) -> list[str]:
    """The groups of which no run reached the `target`, which is in the metric's shown unit."""
    without = [
        group.label
        for group in groups
        if any(len(f.run.values(metric.key)) and not f.clock_jumps for f in group.counted)
        and not group.reached.runs
    ]
    if target is None or not without:
        return []
    who = words.some(without, MOST_LOST)
    return [f"The target of {_shown(target, metric)} is reached by no run of {who}: no time to it is given."]


def about_range(groups: Sequence[Group]) -> list[str]:
    """Why nothing is skipped where a loss scale grows over bf16: for readers who wait for it as in fp16."""
    grown = {}
    for group in groups:
        runs = [f.run for f in group.counted]
        if not runs or any(half_type(run) != "bf16" for run in runs) or any(group.values("skipped_steps")):
            continue
        scales = [v for run in runs for v in run.values(metrics.SCALE).tolist() if math.isfinite(v)]
        if scales and max(scales) > min(scales):
            grown[group.label] = min(scales), max(scales)
    if not grown:
        return []
    low, high = min(ends[0] for ends in grown.values()), max(ends[1] for ends in grown.values())
    return [
        f"The loss scale of {words.some(list(grown), MOST_LOST)} went from {words.count(low)} to "
        f"{words.count(high)} and no step was skipped: bf16 has the range of fp32, so that no gradient "
        "overflows as it does in fp16, and no loss scale is needed."
    ]


def about_lost(groups: Sequence[Group], metric: ComparedMetric) -> list[str]:
    """Each seed or run that one figure lacks although the group has others of it, and why."""
    figures = {"images_per_second": "throughput", "peak_mib": "peak memory", "quality": metric.name}
    said = []
    for group in groups:
        lost = {name: group.lost(name) for name in figures if group.means[name] is not None}
        for name, those in lost.items():
            if alone := [one for one in those if not all(one in every for every in lost.values())]:
                said.append(f"The {figures[name]} of {group.label} lacks {_listed(alone)}.")
    return said


def _listed(lost: Sequence[tuple[str, str]]) -> str:
    return words.some([f"{what} ({why})" for what, why in lost], MOST_LOST)


def about_plan(
    plan: Plan,
    comparisons: Sequence[Comparison],
    metric: ComparedMetric,
    target: float | None,
    arms: Sequence[Control],
) -> str:
    """`As planned: margin 0.5 points, looks at 3, 6 and 10 seeds.`, or what differs from the plan."""
    planned = []
    if plan.margin is not None:
        planned.append(f"margin {metric.with_unit(f'{plan.margin:g}')}")
    if plan.target is not None:
        planned.append(f"target {_shown(metric.as_shown(plan.target), metric)}")
    if plan.looks:
        planned.append(f"looks at {words.listed(plan.looks)} seeds")
    if plan.max_seeds is not None:
        planned.append(f"{plan.max_seeds} seeds at most")
    if plan.has_control:
        planned.append(f"the baseline once more as a control ({plan.control})")
    differs = list(_deviations(plan, comparisons, metric, target, arms))
    if not differs:
        return f"As planned: {words.listed(planned)}."
    return f"Planned was: {words.listed(planned)}. What differs: {'; '.join(differs)}."


def _deviations(
    plan: Plan,
    comparisons: Sequence[Comparison],
    metric: ComparedMetric,
    target: float | None,
    arms: Sequence[Control],
) -> list[str]:
    found = []
    if plan.margin is not None and metric.margin != plan.margin:
        found.append(f"the margin here is {metric.tolerance}")
    if plan.target is not None and target is not None and target != metric.as_shown(plan.target):
        found.append(f"the target here is {_shown(target, metric)}")
    seeds = _seeds(comparisons)
    if plan.looks and seeds and seeds not in plan.looks:
        found.append(f"{words.plural(seeds, 'seed')} so far, which is no planned look")
    is_open = any(True for c in comparisons for _ in open_questions(c))
    if plan.max_seeds is not None and seeds < plan.max_seeds and is_open:
        found.append(f"{words.plural(seeds, 'seed')} of {plan.max_seeds}, with claims still undecided")
    if plan.max_seeds is not None and seeds > plan.max_seeds:
        found.append(f"{seeds} seeds were run")
    if plan.has_control and not arms:
        found.append("there is no control")
    return found


def _shown(target: float, metric: ComparedMetric) -> str:
    return metric.show(target / metric.factor)


def _seeds(comparisons: Sequence[Comparison]) -> int:
    """The fewest seeds that any compared group, or its baseline, has come to an end with."""
    sides = [side for c in comparisons if not c.is_control for side in (c.group, c.baseline) if side]
    return min((_ended(side) for side in sides), default=0)


def _ended(group: Group) -> int:
    return len({seed_key(r) for r in group.runs if r.outcome in (Outcome.FINISHED, Outcome.FAILED)})
