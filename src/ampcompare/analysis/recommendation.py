"""The recommendation: which backend the evidence speaks for, or what is missing for one."""

from collections.abc import Sequence
from dataclasses import dataclass

from ampcompare.analysis import phrases
from ampcompare.analysis.claims import SAME_SPEED, Claim, Finding
from ampcompare.analysis.comparison import Comparison
from ampcompare.analysis.findings import Findings
from ampcompare.analysis.grouping.compared_metric import ComparedMetric
from ampcompare.analysis.grouping.run_metrics import COMPARED_METRICS, QUALITY, SPEED, TIME
from ampcompare.runtime.formatting import listed, ratio, some

MAX_NAMED = 4
NOTHING_MISSING = ""


@dataclass(frozen=True)
class Recommendation:
    """The recommendation of a comparison.

    Attributes:
        label: The display name of the recommended group, also of the baseline; "" without a recommendation.
        text: The recommendation in one line, or what is missing for one. "" if nothing is compared.
    """

    label: str = ""
    text: str = ""


def recommend(findings: Findings) -> Recommendation:
    """Return the fastest backend whose quality is not lower by more than the margin.

    A backend is recommended if it is shown to be faster and to keep its quality, without a failed run and
    without other differences from the baseline. The baseline is recommended if every other backend is shown
    to be no faster, or to lose quality.
    """
    compared = [comparison for comparison, _ in findings.arms if comparison.claims]
    if not compared:
        return Recommendation()
    if findings.setting.is_synthetic:
        return Recommendation(
            text=f"No recommendation: the data are synthetic, so the {findings.metric.noun} shows that "
            "training works, not how good the model is."
        )
    bases = findings.compared_bases
    names = listed(base.display_name for base in bases)
    if findings.is_baseline_at_chance:
        return Recommendation(text=f"No recommendation before {names} learns.")
    eligible = [c for c in compared if _is_eligible(c)]
    if eligible:
        best = max(eligible, key=_rank)
        return Recommendation(best.group.display_name, _write_choice(best, compared, findings.metric))
    undecided = [c for c in compared if _find_missing(c, findings.metric)]
    if undecided:
        missing = _find_missing(max(undecided, key=_rank), findings.metric)
        return Recommendation(text=f"No recommendation yet: {missing}.")
    unknown = _find_unknown(findings)
    if unknown:
        return Recommendation(text=f"No recommendation yet: {unknown}.")
    reasons = some(
        [f"{c.group.display_name} {_describe_loss(c, findings.metric)}" for c in compared], MAX_NAMED
    )
    return Recommendation(bases[0].display_name, f"Stay with {names}: {reasons}.")


def _find_unknown(findings: Findings) -> str:
    """Return which group has no claims, so that nothing is decided about it; "" if there is none."""
    for comparison in findings.comparisons:
        group = comparison.group
        if comparison.is_control or comparison.claims:
            continue
        if comparison.not_compared_reason:
            return f"{group.display_name} is not compared"
        return phrases.not_finished(group, group.display_name)
    return ""


def _is_eligible(comparison: Comparison) -> bool:
    """Return whether a group may be recommended."""
    return (
        comparison.is_faster
        and comparison.keeps_quality
        and not comparison.is_quality_lost
        and not comparison.group.outcomes.failed
        and not comparison.uncontrolled_differences
    )


def _rank(comparison: Comparison) -> float:
    """Return the speed-up as it is shown: of equal ones, the first of the table counts."""
    return float(f"{comparison.speedup or 0.0:.3g}")


def _write_choice(best: Comparison, compared: Sequence[Comparison], metric: ComparedMetric) -> str:
    """Return `Use native: 1.90× as fast, accuracy not lower by more than 0.5 points.`, and what is open."""
    text = f"Use {best.group.display_name}: {ratio(best.speedup or 0.0)} as fast, {_kept(best, metric)}."
    faster = [
        c.group.display_name
        for c in compared
        if c.is_faster
        and not c.is_quality_lost
        and not _is_eligible(c)
        and (c.speedup or 0) > (best.speedup or 0)
    ]
    if not faster:
        return text
    verb = "is" if len(faster) == 1 else "are"
    return f"{text} {some(faster, MAX_NAMED)} {verb} faster, but without such a verdict on {metric.noun}."


def _kept(comparison: Comparison, metric: ComparedMetric) -> str:
    """Return what is shown of the quality that is kept."""
    if metric.margin is None or comparison.claims[QUALITY].finding is Finding.BETTER:
        return f"{metric.noun} {metric.better}"
    return f"{metric.noun} {phrases.not_worse(metric)}"


def _find_missing(comparison: Comparison, metric: ComparedMetric) -> str:
    """Return what is missing for a decision on a group; "" if it is decided against the group."""
    name = comparison.group.display_name
    speed = comparison.claims[SPEED]
    quality = comparison.claims[QUALITY]
    if comparison.is_quality_lost or speed.finding is Finding.SLOWER or speed.finding in SAME_SPEED:
        saved = "" if comparison.is_quality_lost else _describe_saved_time(comparison)
        return f"{name} {_describe_loss(comparison, metric)}, but {saved}" if saved else NOTHING_MISSING
    if comparison.group.outcomes.failed:
        return phrases.failed_runs(comparison.group, name)
    if comparison.uncontrolled_differences:
        return f"{name} also differs from the baseline in {some([*comparison.uncontrolled_differences], 2)}"
    if not comparison.is_faster:
        if speed.estimate is None:
            return f"no speed of {name} counts ({speed.why})"
        return f"the speed of {name} is not decided ({speed.why})"
    if quality.estimate is None:
        return f"no {metric.noun} of {name} counts ({quality.why})"
    reason = _describe_allowed_loss(quality, metric) or quality.why
    return f"the {metric.noun} of {name} is not decided ({reason})"


def _describe_saved_time(comparison: Comparison) -> str:
    """Return `takes 34% less time to the target` if that is shown, else ""."""
    estimate = comparison.estimates.get(TIME)
    if estimate is None or estimate.side_of(COMPARED_METRICS[TIME].null) >= 0:
        return ""
    return f"takes {1 - estimate.value:.0%} less time to the target"


def _describe_allowed_loss(claim: Claim, metric: ComparedMetric) -> str:
    """Return which loss the interval of an open claim allows; "" if that is not the reason."""
    estimate = claim.estimate
    if estimate is None or not claim.is_open or metric.margin is None:
        return ""
    loss = phrases.allowed_loss(estimate, metric)
    if not loss:
        return ""
    return f"the interval allows {metric.with_unit(loss)} {metric.worse}, the margin is {metric.tolerance}"


def _describe_loss(comparison: Comparison, metric: ComparedMetric) -> str:
    """Return why a group is not recommended: `is slower`, `loses accuracy`."""
    if comparison.is_quality_lost:
        return f"has a higher {metric.noun}" if metric.lower_is_better else f"loses {metric.noun}"
    is_slower = comparison.claims[SPEED].finding is Finding.SLOWER
    return "is slower" if is_slower else "is not faster"
