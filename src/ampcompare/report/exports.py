"""The comparison for programs: JSON with everything, CSV with one row per group."""

import json
from collections.abc import Mapping
from typing import Any

import pandas as pd

from ampcompare import __version__, metrics
from ampcompare.analysis.analysis import Analysis
from ampcompare.analysis.claims import largest_loss
from ampcompare.analysis.comparison import Comparison
from ampcompare.analysis.costs import costs_as_values
from ampcompare.analysis.grouping import run_metrics, run_table
from ampcompare.analysis.grouping.compared_metric import OWN
from ampcompare.analysis.grouping.groups import Group
from ampcompare.analysis.grouping.training_recipe import KEYS, read_recipe, recipe_values
from ampcompare.analysis.reproduction import AssessedValue, ReproductionResult
from ampcompare.analysis.statistics.estimate import Estimate
from ampcompare.analysis.sweep_plan import Plan
from ampcompare.runtime.atomic_files import finite

VALUE_COLUMNS = [figure.column for figure in run_metrics.RUN_METRICS]
# Questions by their names in the files.
COMPARED = {
    "speedup": run_metrics.SPEED,
    "memory_ratio": run_metrics.MEMORY,
    "energy_ratio": run_metrics.ENERGY,
    "time_ratio": run_metrics.TIME,
    "quality_difference": run_metrics.QUALITY,
}
RUN_COLUMNS = (
    run_table.DEVICE,
    run_table.ROWS,
    run_metrics.EPOCHS,
    run_table.OVERLAP,
    *VALUE_COLUMNS,
    "step_time_ms_p95",
)


def to_json(analysis: Analysis) -> str:
    """Return groups, comparisons, runs and caveats as JSON; NaN and infinity become null."""
    metric = analysis.metric
    units = analysis.quantities
    content = {
        "version": __version__,
        "verdict": analysis.headline,
        "recommendation": {
            "group": analysis.recommendation.label or None,
            "text": analysis.recommendation.text or None,
        },
        "costs": costs_as_values(analysis),
        "basis": analysis.basis,
        "decided": analysis.is_decided,
        "undecided": [
            {"label": comparison.group.label, **_attributes(claim, "question", "why", "more_seeds")}
            for comparison, claim in analysis.undecided
        ],
        "notes": analysis.notes,
        "numerics": analysis.numerics,
        "cautions": analysis.caveats,
        "metric": metric.key,
        "metric_better": metrics.LOWER if metric.lower_is_better else metrics.HIGHER,
        "metric_shown_times": metric.factor,
        "margin": metric.margin,
        "target": metric.target,
        "plan": _plan(analysis.plan),
        "confidence": analysis.level,
        "intervals": " ".join([analysis.caption, *analysis.methods]),
        "group_by": analysis.keys,
        "baseline": None if analysis.baseline is None else analysis.baseline.value,
        "setting": analysis.setting.text,
        "recipe": recipe_values(analysis.recipe),
        "devices": analysis.setting.devices,
        "groups": [_group(group, analysis) for group in analysis.groups],
        "runs": [_run(row) for _, row in analysis.table.iterrows()],
    }
    if units != OWN:  # other programs' units, under images_per_second, peak_mib and joules_per_image
        names = {"throughput": units.speed, "memory": units.memory or None, "energy": f"J per {units.item}"}
        content["units"] = names
    if analysis.gates:
        content["requirements"] = [
            {"group": one.gate.label, "term": one.gate.text}
            | _attributes(one.gate, "kind", "bound")
            | {"shown": one.is_shown, "why": one.why}
            for one in analysis.gate_results
        ]
    if analysis.reproduction is not None:
        content["published"] = _published(analysis.reproduction)
    return json.dumps(finite(content), indent=1, allow_nan=False, default=str) + "\n"


def _plan(plan: Plan) -> dict[str, Any] | None:
    if not plan.is_planned:
        return None
    planned = _attributes(plan, "margin", "target", "looks", "max_seeds", "control", "doubts")
    return planned | {"look_plans": [vars(look_plan) for look_plan in plan.look_plans]}


def to_csv(analysis: Analysis) -> str:
    """Return a row per group as CSV: its values, absolute and relative, with intervals, n and method."""
    rows = []
    for group in (_group(one, analysis) for one in analysis.groups):
        compared = group["compared"] or {}
        row = {"group": group["label"], "runs": group["counted_runs"], "seeds": group["seeds"]}
        for name in VALUE_COLUMNS:
            row |= _flat_cells(name, group["figures"].get(name), "n")
        for name in COMPARED:
            row |= _flat_cells(name, compared.get(name), "n", "method", "shown")
        row |= {"verdict": group["verdict"], "quality_kept": compared.get("quality_kept")}
        row |= group["outcomes"]
        row |= {f"failure_{key}": (group["failures"] or {}).get(key) for key in ("share", "low", "high")}
        row |= {"metric": analysis.metric.key, "margin": analysis.metric.margin, "confidence": analysis.level}
        row["not_compared_because"] = compared.get("not_compared_because")
        row |= {f"recipe_{name}": group["recipe"].get(name) for name in KEYS}
        rows.append({key: _cell_text(value) for key, value in row.items()})
    return pd.DataFrame(rows, dtype=object).to_csv(index=False, lineterminator="\n")


def _flat_cells(name: str, figure: Mapping[str, Any] | None, *more: str) -> dict[str, Any]:
    """Return the cells of a value: itself under `name`, its other fields under `name_field`."""
    figure = figure or {}
    cells = {name: figure.get("value")}
    for field in ("low", "high", *more):
        cells[f"{name}_{field}"] = figure.get(field)
    return cells


def _cell_text(value: Any) -> Any:
    """Return a value as one cell, which a spreadsheet reads as text if it begins like a formula."""
    if isinstance(value, tuple):  # what is shown
        value = " ".join(value)
    if isinstance(value, list):  # a setting in which runs differ
        value = "; ".join(map(str, value))
    is_formula = isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r")
    return f"'{value}" if is_formula else value


def _group(group: Group, analysis: Analysis) -> dict[str, Any]:
    comparison = analysis.comparison(group.label)
    failures = group.outcomes.failures
    return {
        "label": group.label,
        analysis.keys[0]: group.value,
        "apart": dict(group.distinguishing_settings),
        "control": group.is_control,
        "runs": len(group.all_rows),
        "counted_runs": group.n,
        "seeds": group.seeds,
        "finished": not group.is_unfinished,
        "outcomes": vars(group.outcomes),
        "failures": failures and {**vars(failures), "share": failures.k / failures.n},
        "verdict": analysis.badge(group),
        "recipe": recipe_values(read_recipe(group.records)),
        "figures": {
            name: _estimate(one.at_level(analysis.level_of(name))) for name, one in group.estimates.items()
        },
        "compared": comparison and _comparison(comparison),
    }


def _comparison(comparison: Comparison) -> dict[str, Any]:
    return {
        "baseline": comparison.baseline and comparison.baseline.label,
        "not_compared_because": comparison.not_compared_reason or None,
        "differs_in": comparison.uncontrolled_differences,
        **{name: _claimed(comparison, question) for name, question in COMPARED.items()},
        "quality_unit": comparison.group.metric.unit or None,
        "quality_kept": comparison.keeps_quality,
        "nothing_claimed_because": comparison.no_claim_reason or None,
        "drift": _estimate(comparison.drift),
    }


def _claimed(comparison: Comparison, question: str) -> dict[str, Any] | None:
    """Return a value relative to the baseline, and what its interval shows; or why there is none."""
    claim = comparison.claims.get(question)
    fields = _estimate(comparison.estimates.get(question))
    if fields is None and claim is None:
        return None
    fields = fields or {"value": None}
    if claim:
        fields |= {"shown": claim.shown, "why": claim.why or None, "more_seeds": claim.more_seeds}
    if claim and claim.estimate and question == run_metrics.QUALITY:
        fields["largest_loss"] = largest_loss(claim.estimate, comparison.group.metric)
    control_estimate = comparison.relative_to_control.get(question)
    if control_estimate:
        fields["beside_control"] = _estimate(control_estimate)
    return fields


def _estimate(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    prediction = estimate.prediction_interval()
    return {
        **_attributes(estimate, "value", "low", "high", "n"),
        "method": estimate.basis,
        "confidence": estimate.level if estimate.has_interval else None,
        "seen": estimate.observed_range,
        "next_run": prediction and {"low": prediction[0], "high": prediction[1]},
    }


def _run(row: pd.Series) -> dict[str, Any]:
    run = row[run_table.RUN]
    seed = row[run_table.SEED]
    return {
        "id": run.id,
        "name": run.name,
        "group": row[run_table.GROUP],
        "seed": int(seed) if seed and seed.isdecimal() else seed,
        "state": run.state,
        "outcome": row[run_table.OUTCOME],
        "outcome_because": row[run_table.WHY] or None,
        "problems": row[run_table.PROBLEMS],
        **{name: row[name] for name in RUN_COLUMNS},
    }


def _published(result: ReproductionResult) -> dict[str, Any]:
    names = ("name", "title", "source", "url", "date", "hardware", "software", "note", "setting", "baseline")
    return _attributes(result.publication, *names) | {
        "verdict": result.headline,
        "refuted": result.is_refuted,
        "differs_in": result.differences,
        "left_out": result.match.left_out,
        "rows": [_assessed_value(row, result.match.arms.get(row.arm)) for row in result.rows],
    }


def _assessed_value(row: AssessedValue, group: Group | None) -> dict[str, Any]:
    return {
        "figure": row.published_metric.name,
        "measured": row.published_metric.measured,
        "relation": row.relation.label,
        "arm": row.arm,
        "group": group and group.label,
        "printed": row.printed,
        "published": row.published and _attributes(row.published, "value", "low", "high"),
        "ours": _estimate(row.measured),
        "verdict": row.verdict,
        "because": row.why,
    }


def _attributes(thing: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(thing, name) for name in names}
