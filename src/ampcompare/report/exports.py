"""The comparison as files for a paper or a program: CSV, Markdown and JSON, all from one table of plain
values.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping
from typing import Any

from ampcompare import __version__
from ampcompare.report import words
from ampcompare.report.analysis.comparison import Comparison
from ampcompare.report.analysis.figures import RunFigures
from ampcompare.report.analysis.groups import Group
from ampcompare.report.analysis.statistics import CONFIDENCE, Estimate, mean
from ampcompare.report.analysis.verdict import Analysis

FIGURES = {  # column -> attribute of RunFigures
    "images_per_second": "images_per_second",
    "step_time_ms_p50": "step_time_ms_p50",
    "peak_mib": "peak_mib",
    "joules_per_image": "joules_per_image",
    "skipped_steps": "skipped_steps",
    "train_seconds": "train_seconds",
    "quality": "quality",
    "best_accuracy": "best_accuracy",
}
ENDS = ("", "_low", "_high")
MARKDOWN = str.maketrans({c: f"\\{c}" for c in "\\`*_{}[]<>|#&"})


def to_json(analysis: Analysis) -> str:
    """Everything: groups, comparisons with method and n, runs, and the reasons for doubt. NaN and inf become
    null.
    """
    content = {
        "version": __version__,
        "verdict": analysis.verdict.headline,
        "cautions": list(analysis.verdict.cautions),
        "metric": analysis.metric.key,
        "metric_shown_times": analysis.metric.factor,
        "margin": analysis.metric.margin,
        "confidence": CONFIDENCE,
        "group_by": list(analysis.keys),
        "baseline": None if analysis.baseline is None else analysis.baseline.value,
        "setting": analysis.setting.words,
        "devices": list(analysis.setting.devices),
        "groups": [_group(group, analysis) for group in analysis.groups],
        "runs": [_run(f, analysis) for f in analysis.figures],
    }
    return json.dumps(_plain(content), indent=1, allow_nan=False) + "\n"


def to_csv(analysis: Analysis) -> str:
    """One row a group: figures with 95 % intervals over seeds, and how they compare with the baseline."""
    rows = [_flat(group, analysis) for group in analysis.groups]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["group"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def to_markdown(analysis: Analysis) -> str:
    """The verdict, a table to paste into a pull request or paper, the reasons for doubt and the method."""
    metric = analysis.metric
    head = [
        "",
        "runs",
        "images/s",
        "speed-up",
        "peak MiB",
        "memory",
        metric.name,
        f"difference{_unit(analysis)}",
    ]
    table = [head, ["---", *["---:"] * (len(head) - 1)]]
    for group in analysis.groups:
        comparison = analysis.comparison(group.label)
        quality = _estimate(group, "quality", metric.factor)
        table.append(
            [
                group.label.translate(MARKDOWN),
                str(len(group.counted)),
                _cell(_estimate(group, "images_per_second"), words.number),
                _cell(comparison.speed if comparison else None, words.ratio),
                _cell(_estimate(group, "peak_mib"), words.mib),
                _cell(comparison.memory if comparison else None, lambda r: words.change(r - 1)),
                _cell(quality, (lambda v: f"{v:.2f} %") if metric.is_fraction else words.number),
                _cell(comparison.quality if comparison else None, words.signed),
            ]
        )
    lines = [f"# {analysis.verdict.headline.translate(MARKDOWN)}", ""]
    lines += [f"{analysis.setting.words} · {' · '.join(analysis.setting.devices)}".translate(MARKDOWN), ""]
    lines += [f"| {' | '.join(cell.replace(chr(10), ' ') for cell in row)} |" for row in table]
    lines += [
        "",
        *(f"- **{a.translate(MARKDOWN)}**: {b.translate(MARKDOWN)}" for a, b in analysis.verdict.lines),
    ]
    if analysis.verdict.cautions:
        lines += ["", "Before you quote a figure:", ""]
        lines += [f"- {caution.translate(MARKDOWN)}" for caution in analysis.verdict.cautions]
    lines += ["", f"In brackets: 95 % t intervals over seeds; {_methods(analysis)}.", ""]
    return "\n".join(lines)


def _group(group: Group, analysis: Analysis) -> dict[str, Any]:
    comparison = analysis.comparison(group.label)
    return {
        "label": group.label,
        analysis.keys[0]: group.value,
        "apart": dict(group.apart),
        "runs": len(group.runs),
        "counted_runs": len(group.counted),
        "seeds": group.seeds,
        "finished": not group.is_unfinished,
        "figures": {name: _as_dict(_estimate(group, attribute)) for name, attribute in FIGURES.items()},
        "compared": None if comparison is None else _comparison(comparison, analysis),
    }


def _comparison(comparison: Comparison, analysis: Analysis) -> dict[str, Any]:
    test = comparison.equivalence
    return {
        "baseline": None if comparison.baseline is None else comparison.baseline.label,
        "not_compared_because": comparison.refusal or None,
        "same_device": comparison.same_device,
        "differs_in": list(comparison.loose),
        "speedup": _as_dict(comparison.speed),
        "memory_ratio": _as_dict(comparison.memory),
        "energy_ratio": _as_dict(comparison.energy),
        "quality_difference": _as_dict(comparison.quality),
        "quality_unit": analysis.metric.unit or None,
        "equivalence": None
        if test is None
        else {
            "margin": test.margin,
            "p": test.p,
            "low_90": test.low,
            "high_90": test.high,
            "holds": test.holds,
        },
    }


def _run(figures: RunFigures, analysis: Analysis) -> dict[str, Any]:
    run = figures.run
    return {
        "id": run.id,
        "name": run.name,
        "group": analysis.group_of(figures).label,
        "seed": figures.seed,
        "state": run.state,
        "problems": list(run.problems),
        "device": figures.device,
        "rows": figures.rows,
        "epochs": figures.epochs,
        **{name: getattr(figures, attribute) for name, attribute in FIGURES.items()},
    }


def _flat(group: Group, analysis: Analysis) -> dict[str, Any]:
    comparison = analysis.comparison(group.label)
    row: dict[str, Any] = {"group": _cell_text(group.label), "runs": len(group.counted), "seeds": group.seeds}
    for name, attribute in FIGURES.items():
        row |= _ends(name, _estimate(group, attribute))
    for name, attribute in (("speedup", "speed"), ("memory_ratio", "memory"), ("energy_ratio", "energy")):
        row |= _ends(name, getattr(comparison, attribute) if comparison else None)
    row |= _ends("quality_difference", comparison.quality if comparison else None)
    test = comparison.equivalence if comparison else None
    speed = comparison.speed if comparison else None
    row |= {
        "equivalence_margin": analysis.metric.margin if test else None,
        "equivalence_p": test.p if test else None,
    }
    row |= {"equivalent": test.holds if test else None, "n": comparison.n if comparison else None}
    row |= {"method": speed.method if speed else None, "metric": analysis.metric.key}
    return row | {"not_compared_because": _cell_text(comparison.refusal) if comparison else None}


def _cell_text(text: str) -> str:
    """Text that a spreadsheet takes for text: what begins like a formula gets an apostrophe before it."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def _estimate(group: Group, attribute: str, factor: float = 1.0) -> Estimate | None:
    return mean(group.per_seed(attribute, factor))


def _ends(name: str, estimate: Estimate | None) -> dict[str, float | None]:
    values = (estimate.value, estimate.low, estimate.high) if estimate else (None, None, None)
    return {f"{name}{end}": value for end, value in zip(ENDS, values, strict=True)}


def _as_dict(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    names = ("value", "low", "high", "n", "method", "left_out")
    return {name: getattr(estimate, name) for name in names}


def _cell(estimate: Estimate | None, show: Any) -> str:
    if estimate is None:
        return ""
    span = words.interval(estimate.low, estimate.high, show)
    return f"{show(estimate.value)}{f' ({span})' if span else ''}"


def _unit(analysis: Analysis) -> str:
    return f", {analysis.metric.unit}" if analysis.metric.unit else ""


def _methods(analysis: Analysis) -> str:
    found = dict.fromkeys(
        e.method for c in analysis.comparisons for e in (c.speed, c.quality) if e is not None
    )
    return f"comparisons {words.listed(found)}" if found else "nothing is compared"


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value if value is None or isinstance(value, str | int | bool) else str(value)
