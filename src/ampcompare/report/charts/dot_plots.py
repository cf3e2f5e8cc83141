"""Dot plots: paired differences, largest activations, and published ratios with measured ones."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ampcompare import metrics
from ampcompare.analysis.analysis import Analysis
from ampcompare.analysis.grouping.backend_info import display_name
from ampcompare.analysis.grouping.groups import Group
from ampcompare.analysis.grouping.run_metrics import QUALITY, SCORE
from ampcompare.analysis.reproduction import ReproductionResult
from ampcompare.report.charts.forest import LEAST_REACH
from ampcompare.report.charts.series import round_for_chart
from ampcompare.report.charts.vega import (
    GREY,
    HEIGHT,
    NAMES,
    NUMBER,
    PICKED,
    Spec,
    by_backend,
    chart,
    line_at,
    nominal,
    point,
    quantity,
    tip,
    zone,
)
from ampcompare.report.palette import styles_of

PREFIX = f"{metrics.ACTIVATION_LARGEST}/"
FP16_MAX = 65504
LAYER_HEIGHT = 15  # pixels
PUBLISHED = "published"
MEASURED = "these runs"
BLUE = "#2a86c8"
RATIO_HEIGHT = 30  # pixels
DIFFERENCE_HEIGHT = 30  # pixels


def paired_differences(analysis: Analysis) -> Spec | None:
    """Draw the difference in quality from the baseline, a dot per shared seed, with the margin."""
    rows = _difference_rows(analysis)
    if not rows:
        return None
    metric = analysis.metric
    own = analysis.baseline.estimates.get(SCORE) if analysis.baseline else None
    least = LEAST_REACH * (abs(own.value) if own else 1.0)
    reach = max(*(abs(row["x"]) for row in rows), metric.margin or least)
    labels = list(dict.fromkeys(row["backend"] for row in rows))
    label = f"datum.value == 0 ? '0' : format(datum.value, '+{NUMBER}')"
    axis = {"grid": True, "title": None, "tickCount": 5, "labelExpr": label}
    x = quantity("x", axis, domain=[-1.1 * reach, 1.1 * reach], nice=False)
    layers = [] if metric.margin is None else [zone(x, -metric.margin, metric.margin)]
    layers += [
        line_at(x, 0),
        {
            "mark": point(60, filled=False, strokeWidth=2),
            "encoding": {
                "x": x,
                "y": nominal("backend", sort=labels, axis=NAMES),
                "opacity": PICKED,
                "tooltip": [tip("backend"), tip("seed"), tip("x", "difference", format=f"+{NUMBER}")],
            },
        },
    ]
    noun = f"{metric.noun}, {metric.unit}" if metric.unit else metric.noun
    margin = "; shaded: the margin" if metric.margin is not None else ""
    return chart(
        "Paired differences",
        f"{noun}, by seed{margin}",
        layers,
        rows,
        height=max(HEIGHT, DIFFERENCE_HEIGHT * len(labels)),
        encoding={"color": by_backend(labels, styles_of(analysis), "colour")},
    )


def _difference_rows(analysis: Analysis) -> list[dict[str, Any]]:
    """Return a datum for each shared seed of a group and its baseline, where they are paired by seed."""
    rows: list[dict[str, Any]] = []
    for comparison in analysis.comparisons:
        estimate = comparison.estimates.get(QUALITY)
        if comparison.baseline is None or estimate is None or not estimate.is_paired:
            continue
        name = comparison.group.display_name
        differences = (comparison.group.sample(SCORE) - comparison.baseline.sample(SCORE)).dropna()
        rows += [
            {"backend": name, "seed": str(seed), "x": round_for_chart(difference)}
            for seed, difference in differences.items()
        ]
    return rows


def largest_activations(analysis: Analysis) -> Spec | None:
    """Draw the largest activation of each layer over all steps and runs, a dot per backend, on a log axis."""
    runs = [run for group in analysis.groups for run in group.records]
    keys = sorted({key for run in runs for key in run.logged if key.startswith(PREFIX)})
    rows = _activation_rows(analysis.groups, keys)
    if not rows:
        return None
    order = sorted({row["layer"] for row in rows}, key=_natural)
    labels = list(dict.fromkeys(row["backend"] for row in rows))
    x = quantity("x", {"grid": True, "values": [10.0**n for n in range(-6, 39)]}, type="log", nice=False)
    dots = {
        "mark": point(45),
        "encoding": {
            "x": x,
            "y": nominal("layer", sort=order, axis=NAMES),
            "yOffset": nominal("backend", sort=labels),
            "opacity": PICKED,
            "tooltip": [tip("backend"), tip("layer"), tip("x", "largest", format=NUMBER)],
        },
    }
    subtitle = f"dashed: {FP16_MAX:,}, the largest fp16 number"
    if any(len(run.nonfinite(key)) for run in runs for key in keys):
        subtitle += "; infinite values left out"
    return chart(
        "Largest activations by layer",
        subtitle,
        [line_at(x, FP16_MAX, strokeDash=[4, 3]), dots],
        rows,
        height=max(HEIGHT, LAYER_HEIGHT * len(order)),
        encoding={"color": by_backend(labels, styles_of(analysis), "colour")},
    )


def _activation_rows(groups: Iterable[Group], keys: Sequence[str]) -> list[dict[str, Any]]:
    """Return a datum for each group and layer: the largest activation over all steps and runs."""
    rows = []
    for group in groups:
        for key in keys:
            values = np.concatenate([np.empty(0), *(run.values(key) for run in group.records)])
            shown = values[np.isfinite(values) & (values > 0)]  # a log axis can show no others
            if len(shown):
                layer = key.removeprefix(PREFIX)
                largest = round_for_chart(shown.max())
                rows.append({"backend": group.display_name, "layer": layer, "x": largest})
    return rows


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key of a layer: layer2 before layer10, the classifier last."""
    last = 1 if name in ("fc", "head", "classifier") else 0
    parts = re.split(r"(\d+)", name)
    return [(last, 0, ""), *((0, int(p), "") if p.isdigit() else (0, 0, p) for p in parts if p)]


def published_ratios(analysis: Analysis) -> Spec | None:
    """Draw each published ratio with its rounding and the measured one with its interval, on a log axis."""
    rows = _ratio_rows(analysis.reproduction) if analysis.reproduction else []
    if not rows:
        return None
    # A log axis would leave out most labels between powers of ten.
    axis = {"grid": True, "labelExpr": f"format(datum.value, '{NUMBER}')"}
    x = quantity("x", axis, type="log", nice=False, padding=8)
    y = nominal("row", sort=None, axis=NAMES | {"labelLimit": 240})
    offset = nominal("from", sort=[PUBLISHED, MEASURED])
    tips = [
        tip("row", "value"),
        tip("from"),
        tip("x", "ratio", format=NUMBER),
        tip("low", "from", format=NUMBER),
        tip("high", "to", format=NUMBER),
        tip("verdict"),
    ]
    spans = {
        "mark": {"type": "rule", "strokeWidth": 2.5},
        "encoding": {"x": x | {"field": "low"}, "x2": {"field": "high"}, "y": y, "yOffset": offset},
    }
    shape = _by_source(["diamond", "circle"])
    marks = {
        "mark": point(80),
        "encoding": {"x": x, "y": y, "yOffset": offset, "shape": shape, "tooltip": tips},
    }
    return chart(
        "Published and measured ratios",
        "relative to the baseline; ◆ published value with its rounding; ● these runs with 95% CI",
        [line_at(x, 1), spans, marks],
        rows,
        height=max(HEIGHT, RATIO_HEIGHT * len({row["row"] for row in rows})),
        encoding={"color": _by_source([GREY, BLUE])},
    )


def _ratio_rows(result: ReproductionResult) -> list[dict[str, Any]]:
    """Return a datum for each published and each measured ratio."""
    rows = []
    for row in result.rows:
        if not row.relation.is_ratio:  # a difference in accuracy has no log axis; the table shows it
            continue
        label = f"{display_name(row.arm)}: {row.relation.label}"
        for source, ratio in ((PUBLISHED, row.published), (MEASURED, row.measured)):
            if ratio is None or ratio.value <= 0:
                continue
            rows.append(
                {
                    "row": label,
                    "verdict": row.verdict,
                    "from": source,
                    "x": round_for_chart(ratio.value),
                    "low": round_for_chart(ratio.low or ratio.value),
                    "high": round_for_chart(ratio.high or ratio.value),
                }
            )
    return rows


def _by_source(range_: list[str]) -> Spec:
    """Return a channel that distinguishes published and measured values."""
    return nominal("from", legend=None, scale={"domain": [PUBLISHED, MEASURED], "range": range_})
