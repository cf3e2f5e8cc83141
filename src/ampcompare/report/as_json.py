"""The comparison for a program: everything that is on the page, as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from ampcompare import __version__, metrics
from ampcompare.report.analysis.analysis import Analysis
from ampcompare.report.analysis.best import BestOfEach
from ampcompare.report.analysis.claims import EQUIVALENCE, Claim
from ampcompare.report.analysis.comparison import Comparison
from ampcompare.report.analysis.published import Reproduction
from ampcompare.report.analysis.require import Answer
from ampcompare.report.runs.control import Control
from ampcompare.report.runs.figures import MEANS, RunFigures
from ampcompare.report.runs.groups import Group
from ampcompare.report.runs.quantities import OWN
from ampcompare.report.statistics.samples import CONFIDENCE, Estimate, equivalence

RATIOS = {  # column -> of Comparison
    "speedup": "speed",
    "memory_ratio": "memory",
    "energy_ratio": "energy",
    "time_ratio": "time",
}
OUTCOMES = ("finished", "failed", "stopped", "running", "refused")


def to_json(analysis: Analysis) -> str:
    """Everything: groups, comparisons with method and n, runs, reasons for doubt. NaN and inf become null."""
    content = {
        "version": __version__,
        "verdict": analysis.verdict.headline,
        "decided": analysis.is_decided,
        "undecided": [vars(one) for one in analysis.undecided],
        "notes": list(analysis.verdict.notes),
        "cautions": list(analysis.verdict.cautions),
        "metric": analysis.metric.key,
        "metric_better": metrics.LOWER if analysis.metric.falls else metrics.HIGHER,
        "metric_shown_times": analysis.metric.factor,
        "margin": analysis.metric.margin,
        "target": analysis.target,
        "plan": _plan(analysis),
        "confidence": CONFIDENCE,
        "group_by": list(analysis.keys),
        "baseline": None if analysis.baseline is None else analysis.baseline.value,
        "setting": analysis.setting.words,
        "devices": list(analysis.setting.devices),
        "groups": [_group(group, analysis) for group in analysis.groups],
        "runs": [_run(f, analysis) for f in analysis.figures],
    }
    if analysis.quantities != OWN:  # what stands under images_per_second, peak_mib and joules_per_image then
        units = analysis.quantities
        content["units"] = {"throughput": units.speed, "memory": units.memory or None, "energy": units.energy}
    if analysis.arms:
        content["controls"] = [_control(arm) for arm in analysis.arms]
    if analysis.required:
        content["requirements"] = [_requirement(answer) for answer in analysis.requirements]
    if (best := analysis.view().best) is not None:
        content["best_of_each"] = _best(best)
    if analysis.published is not None:
        content["published"] = _published(analysis.published)
    return json.dumps(_plain(content), indent=1, allow_nan=False) + "\n"


def _group(group: Group, analysis: Analysis) -> dict[str, Any]:
    comparison = analysis.comparison(group.label)
    share = group.outcomes.failures
    return {
        "label": group.label,
        analysis.keys[0]: group.value,
        "apart": dict(group.apart),
        "control": group.is_control,
        "runs": len(group.runs),
        "counted_runs": group.n,
        "seeds": group.seeds,
        "finished": not group.is_unfinished,
        "outcomes": outcomes_of(group),
        "failures": share and _named(share, "k", "n", "share", "low", "high", "confidence", "method"),
        "line": dict(analysis.verdict.lines)[group.label],
        "figures": {name: _as_dict(estimate) for name, estimate in group.means.items()},
        "lost": {name: lost for name in group.means if (lost := _lost(group, name))},
        "medians": group.medians,
        "step_times_ms": group.step_times,
        "compared": None if comparison is None else _comparison(comparison, analysis),
    }


def outcomes_of(group: Group) -> dict[str, int]:
    return {word: len(getattr(group.outcomes, word)) for word in OUTCOMES}


def _lost(group: Group, name: str) -> list[dict[str, str]]:
    return [{"what": what, "why": why} for what, why in group.lost(name)]


def _comparison(comparison: Comparison, analysis: Analysis) -> dict[str, Any]:
    return {
        "baseline": None if comparison.baseline is None else comparison.baseline.label,
        "not_compared_because": comparison.refusal or None,
        "same_device": comparison.same_device,
        "differs_in": list(comparison.loose),
        **{name: _compared(comparison, attribute) for name, attribute in RATIOS.items()},
        "quality_difference": _compared(comparison, "quality"),
        "quality_unit": analysis.metric.unit or None,
        "quality_is": comparison.chip or None,
        "quality_kept": comparison.keeps_quality,
        "nothing_claimed_because": comparison.silence or None,
        "equivalence": _equivalence(comparison),
    }


def _compared(comparison: Comparison, name: str) -> dict[str, Any] | None:
    """A figure against the baseline with its plain 95 % interval, and what was tested of it."""
    if (found := _as_dict(getattr(comparison, name))) is None:
        return None
    claim = comparison.claims.get(name)
    return found | {"tested": claim and tested_of(claim)}


def tested_of(claim: Claim) -> dict[str, Any]:
    at = claim.estimate
    names = ("level", "p", "adjusted_p", "rejected", "more_seeds")
    return {"confidence": at.confidence, "low": at.low, "high": at.high, **_named(claim, *names)}


def _equivalence(comparison: Comparison) -> dict[str, Any] | None:
    """The test of equivalence: the plain 90 % interval, and the level at which it was tested."""
    claim, margin, quality = comparison.claims.get(EQUIVALENCE), comparison.metric.margin, comparison.quality
    if claim is None or margin is None or quality is None or (plain := equivalence(quality, margin)) is None:
        return None
    return {
        "margin": margin,
        "p": plain.p,
        "low_90": plain.low,
        "high_90": plain.high,
        "holds": claim.rejected,
        "tested": tested_of(claim),
    }


def _plan(analysis: Analysis) -> dict[str, Any] | None:
    plan = analysis.plan
    return _named(plan, "margin", "target", "looks", "max_seeds", "control") if plan.is_there else None


def _control(arm: Control) -> dict[str, Any]:
    figures = {name: _as_dict(getattr(arm, name)) for name in ("speed", "quality", "drift")}
    told = {"alarm": arm.alarm, "differs": arm.differs, "sentence": arm.sentence}
    return {"label": arm.group.label, "baseline": arm.baseline.label, **figures, **told}


def _requirement(answer: Answer) -> dict[str, Any]:
    term = answer.term
    return {
        "group": term.label,
        "term": term.text,
        "kind": term.kind,
        "bound": term.bound,
        "shown": answer.is_shown,
        "why": answer.why,
    }


def _best(best: BestOfEach) -> dict[str, Any]:
    rows = [
        {
            "label": one.group.label,
            "value": one.group.value,
            "tried": one.tried,
            "settings": dict(one.settings),
            "quality": _as_dict(one.group.means["quality"]),
            "speedup": one.comparison and _as_dict(one.comparison.speed),
            "quality_difference": one.comparison and _as_dict(one.comparison.quality),
        }
        for one in best.candidates
    ]
    return {"tuned": list(best.keys), "sentence": best.sentence, "best": rows}


def _run(figures: RunFigures, analysis: Analysis) -> dict[str, Any]:
    run = figures.run
    return {
        "id": run.id,
        "name": run.name,
        "group": analysis.group_of(figures).label,
        "seed": figures.seed,
        "state": run.state,
        "outcome": figures.outcome.value,
        "outcome_because": figures.why or None,
        "problems": figures.problems,
        "device": figures.device,
        "rows": figures.rows,
        "epochs": figures.epochs,
        "overlap": figures.overlap,
        **{name: getattr(figures, name) for name in (*MEANS, "best_epoch", "step_time_ms_p95")},
    }


def _published(beside: Reproduction) -> dict[str, Any]:
    rows = [
        {
            "figure": row.figure.name,
            "measured": row.figure.measured,
            "relation": row.relation.figure,
            "arm": row.arm,
            "group": group.label if (group := beside.matched.arms.get(row.arm)) else None,
            "printed": row.printed,
            "published": row.theirs and _named(row.theirs, "value", "low", "high"),
            "ours": _as_dict(row.ours),
            "verdict": row.verdict,
            "because": row.why,
            **_named(row, "p", "adjusted_p", "more_runs"),
        }
        for row in beside.rows
    ]
    names = ("name", "title", "source", "url", "date", "hardware", "software", "note", "setting", "baseline")
    return _named(beside.publication, *names) | {
        "verdict": beside.headline,
        "refuted": beside.is_refuted,
        "differs_in": list(beside.differences),
        "left_out": list(beside.matched.left_out),
        "rows": rows,
    }


def _as_dict(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    after = estimate.prediction()
    names = ("value", "low", "high", "n", "method", "left_out", "confidence", "correlation")
    return _named(estimate, *names) | {"next_run": after and {"low": after[0], "high": after[1]}}


def _named(thing: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(thing, name) for name in names}


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value if value is None or isinstance(value, str | int | bool) else str(value)
