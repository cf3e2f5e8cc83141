"""The comparison as files for a paper or a program: CSV, Markdown and JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from ampcompare import __version__
from ampcompare.report import words
from ampcompare.report.analysis.analysis import Analysis
from ampcompare.report.analysis.comparison import Comparison
from ampcompare.report.analysis.figures import MEANS, RunFigures
from ampcompare.report.analysis.groups import Group
from ampcompare.report.analysis.published import Reproduction
from ampcompare.report.analysis.statistics import CONFIDENCE, Estimate

RATIOS = {  # column -> of Comparison
    "speedup": "speed",
    "memory_ratio": "memory",
    "energy_ratio": "energy",
    "time_ratio": "time",
}
MARKDOWN = str.maketrans({c: f"\\{c}" for c in "\\`*_{}[]<>|#&"})


def to_json(analysis: Analysis) -> str:
    """Everything: groups, comparisons with method and n, runs, reasons for doubt. NaN and inf become null."""
    content = {
        "version": __version__,
        "verdict": analysis.verdict.headline,
        "cautions": list(analysis.verdict.cautions),
        "metric": analysis.metric.key,
        "metric_shown_times": analysis.metric.factor,
        "margin": analysis.metric.margin,
        "target": analysis.target,
        "confidence": CONFIDENCE,
        "group_by": list(analysis.keys),
        "baseline": None if analysis.baseline is None else analysis.baseline.value,
        "setting": analysis.setting.words,
        "devices": list(analysis.setting.devices),
        "groups": [_group(group, analysis) for group in analysis.groups],
        "runs": [_run(f, analysis) for f in analysis.figures],
    }
    if analysis.published is not None:
        content["published"] = _published(analysis.published)
    return json.dumps(_plain(content), indent=1, allow_nan=False) + "\n"


def to_csv(analysis: Analysis) -> str:
    """One row a group: figures with 95 % intervals over seeds, and how they compare with the baseline."""
    rows = [_flat(group, analysis) for group in analysis.groups]
    return pd.DataFrame(rows, dtype=object).to_csv(index=False, lineterminator="\n")


def to_markdown(analysis: Analysis) -> str:
    """The verdict, a table to paste into a pull request or paper, the reasons for doubt and the method."""
    metric = analysis.metric
    head = ["", "runs", "images/s", "speed-up", "peak MiB", "memory", metric.name, metric.difference]
    table = [head, ["---", *["---:"] * (len(head) - 1)]]
    for group in analysis.groups:
        compared = analysis.comparison(group.label)
        table.append(
            [
                group.label.translate(MARKDOWN),
                str(group.n),
                _cell(group.means["images_per_second"], words.number),
                _cell(compared and compared.speed, words.ratio),
                _cell(group.means["peak_mib"], words.mib),
                _cell(compared and compared.memory, words.change),
                _cell(group.means["quality"], metric.show),
                _cell(compared and compared.quality, words.signed),
            ]
        )
    verdict = analysis.verdict
    lines = [f"# {verdict.headline.translate(MARKDOWN)}", "", analysis.setting.whole.translate(MARKDOWN), ""]
    lines += [f"| {' | '.join(cell.replace(chr(10), ' ') for cell in row)} |" for row in table]
    lines += ["", *(f"- **{a.translate(MARKDOWN)}**: {b.translate(MARKDOWN)}" for a, b in verdict.lines), ""]
    if verdict.cautions:
        lines += [
            "Before you quote a figure:",
            "",
            *(f"- {c.translate(MARKDOWN)}" for c in verdict.cautions),
            "",
        ]
    lines.append(f"In brackets: 95 % {analysis.interval_kind} intervals over seeds; {_methods(analysis)}.")
    return "\n".join(lines) + "\n"


def _group(group: Group, analysis: Analysis) -> dict[str, Any]:
    comparison = analysis.comparison(group.label)
    return {
        "label": group.label,
        analysis.keys[0]: group.value,
        "apart": dict(group.apart),
        "runs": len(group.runs),
        "counted_runs": group.n,
        "seeds": group.seeds,
        "finished": not group.is_unfinished,
        "line": dict(analysis.verdict.lines)[group.label],
        "figures": {name: _as_dict(estimate) for name, estimate in group.means.items()},
        "medians": group.medians,
        "step_times_ms": group.step_times,
        "compared": None if comparison is None else _comparison(comparison, analysis),
    }


def _comparison(comparison: Comparison, analysis: Analysis) -> dict[str, Any]:
    test = comparison.equivalence
    interval = {"low_90": test.low, "high_90": test.high} if test else {}
    return {
        "baseline": None if comparison.baseline is None else comparison.baseline.label,
        "not_compared_because": comparison.refusal or None,
        "same_device": comparison.same_device,
        "differs_in": list(comparison.loose),
        **{name: _as_dict(getattr(comparison, attribute)) for name, attribute in RATIOS.items()},
        "quality_difference": _as_dict(comparison.quality),
        "quality_unit": analysis.metric.unit or None,
        "equivalence": test and {"margin": test.margin, "p": test.p, **interval, "holds": test.holds},
    }


def _run(figures: RunFigures, analysis: Analysis) -> dict[str, Any]:
    run = figures.run
    return {
        "id": run.id,
        "name": run.name,
        "group": analysis.group_of(figures).label,
        "seed": figures.seed,
        "state": run.state,
        "problems": figures.problems,
        "device": figures.device,
        "rows": figures.rows,
        "epochs": figures.epochs,
        **{name: getattr(figures, name) for name in (*MEANS, "best_epoch", "step_time_ms_p95")},
    }


def _published(beside: Reproduction) -> dict[str, Any]:
    rows = [
        {
            "figure": pair.relation.figure,
            "label": pair.label,
            "published": pair.published,
            "published_value": pair.absolute,
            "ours": _as_dict(pair.ours),
        }
        for pair in beside.rows
    ]
    names = ("name", "source", "setting", "note", "deviations")
    return {name: getattr(beside, name) for name in names} | {"rows": rows}


def _flat(group: Group, analysis: Analysis) -> dict[str, Any]:
    found = analysis.comparison(group.label)
    row: dict[str, Any] = {"group": _cell_text(group.label), "runs": group.n, "seeds": group.seeds}
    for name, estimate in group.means.items():
        row |= _ends(name, estimate)
    for name, attribute in (RATIOS | {"quality_difference": "quality"}).items():
        row |= _ends(name, found and getattr(found, attribute))
    test, speed = (found.equivalence, found.speed) if found else (None, None)
    return row | {
        "equivalence_margin": test and test.margin,
        "equivalence_p": test and test.p,
        "equivalent": test and test.holds,
        "n": found and found.n,
        "method": speed and speed.method,
        "metric": analysis.metric.key,
        "not_compared_because": found and _cell_text(found.refusal),
    }


def _cell_text(text: str) -> str:
    """Text that a spreadsheet takes for text: what begins like a formula gets an apostrophe before it."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def _ends(name: str, estimate: Estimate | None) -> dict[str, float | None]:
    values = (estimate.value, estimate.low, estimate.high) if estimate else (None, None, None)
    return dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))


def _as_dict(estimate: Estimate | None) -> dict[str, Any] | None:
    names = ("value", "low", "high", "n", "method", "left_out")
    return estimate and {name: getattr(estimate, name) for name in names}


def _cell(estimate: Estimate | None, show: Any) -> str:
    return show(estimate.value) + words.between(estimate.low, estimate.high, show) if estimate else ""


def _methods(analysis: Analysis) -> str:
    found = dict.fromkeys(e.method for c in analysis.comparisons for e in (c.speed, c.quality) if e)
    return f"comparisons {words.listed(found)}" if found else "nothing is compared"


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value if value is None or isinstance(value, str | int | bool) else str(value)
