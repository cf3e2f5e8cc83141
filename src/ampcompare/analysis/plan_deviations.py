"""Says how a comparison deviates from its plan, and how far it has come."""

from collections.abc import Iterator

from ampcompare.analysis.findings import Findings
from ampcompare.runtime.formatting import listed, plural


def describe_plan_deviations(findings: Findings) -> Iterator[str]:
    """Yield how the comparison deviates from its plan, that it is not complete, and doubts about the plan."""
    deviations = _find_deviations(findings)
    if deviations:
        yield f"Not as planned: {listed(deviations)}."
    plan = findings.plan
    seeds = findings.ended_seeds
    if plan.max_seeds is not None and 0 < seeds < plan.max_seeds and findings.undecided:
        yield f"Interim result ({seeds} of up to {plan.max_seeds} seeds)."
    yield from plan.doubts


def _find_deviations(findings: Findings) -> list[str]:
    """Return how the comparison deviates from its plan."""
    plan = findings.plan
    metric = findings.metric
    target = metric.target
    seeds = findings.ended_seeds
    deviations = []
    if plan.margin is not None and metric.margin != plan.margin:
        planned = metric.with_unit(f"{plan.margin:g}")
        deviations.append(f"the margin is {metric.tolerance or 'not set'} instead of {planned}")
    if plan.target is not None and target is not None and target != metric.as_shown(plan.target):
        planned = metric.show_value(metric.as_shown(plan.target))
        deviations.append(f"the target is {metric.show_value(target)} instead of {planned}")
    if plan.looks and seeds and seeds not in plan.looks:
        deviations.append(
            f"no look was planned at {plural(seeds, 'seed')}, but at {listed(plan.looks)} seeds "
            "(plan.looks of the sweep file)"
        )
    spent = plan.spent_until(seeds)
    if spent > 1 + 1e-9:
        deviations.append(
            "seeds were added after a look that had spent the whole error, so that all looks together err in "
            f"up to {5 * spent:.2g}% instead of 5%"
        )
    if plan.max_seeds is not None and seeds > plan.max_seeds:
        deviations.append(f"{seeds} seeds ran instead of at most {plan.max_seeds}")
    if plan.has_control and not any(c.is_control for c in findings.comparisons):
        name = f"control {plan.control}" if plan.control == "chaos" else "A/A control"
        deviations.append(f"the {name} is missing")
    return deviations
