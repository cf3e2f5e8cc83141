"""Charts of published figures with one's own runs beside them."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from ampcompare import metrics
from ampcompare.report.analysis.analysis import Analysis
from ampcompare.report.analysis.published import Pair
from ampcompare.report.charts.curves import metric_curve
from ampcompare.report.charts.parts import Parts, Spec, finish, over, quantity, tip
from ampcompare.report.charts.series import Datum
from ampcompare.report.palette import styles
from ampcompare.report.runs.metric import ComparedMetric
from ampcompare.report.words import capital


def published_charts(analysis: Analysis) -> dict[str, Spec]:
    """A chart for each figure that was published, by name; nothing where no publication was asked for."""
    if (beside := analysis.published) is None:
        return {}
    if not beside.rows:  # published as curves alone: these are the same curves of one's own runs
        return {"published-eval-loss": metric_curve(analysis, ComparedMetric(metrics.EVAL_LOSS, None))}
    pairs: dict[str, list[Pair]] = {}
    for pair in beside.rows:
        pairs.setdefault(f"published-{pair.relation.ours}", []).append(pair)
    return {name: _chart(analysis, alike, beside.source) for name, alike in pairs.items()}


def _chart(analysis: Analysis, pairs: Sequence[Pair], source: str) -> Spec:
    relation = pairs[0].relation
    rows: list[Datum] = []
    for pair in pairs:
        head = {"backend": pair.label}
        rows.append(head | {"kind": "published", "run": "published", "x": pair.published})
        if pair.ours is not None:
            row = head | {"kind": "ours", "run": f"these runs, n = {pair.ours.n}", "x": pair.ours.value}
            if pair.ours.low is not None:
                row |= {"low": pair.ours.low, "high": pair.ours.high}
            rows.append(row)
    values = [row["x"] for row in rows] + [relation.neutral]
    room = 0.25 * (max(values) - min(values)) or 0.5
    low = min(values) - room
    domain = [max(0.0, low) if relation.neutral == 1 else low, max(values) + room]
    drawn = styles((pair.label, pair.label) for pair in pairs)
    x = quantity(alt.X, relation.axis, domain=domain, nice=False)
    y = alt.Y(field="backend", type="nominal", sort=[style.label for style in drawn], title=None)
    parts = Parts(rows, drawn, x, y, legend="none")
    shared = {"y": y, "color": parts.colour(), "opacity": parts.dimmed(1.0)}
    tips = [tip("backend"), tip("run", "from"), tip("x", relation.axis, ",.4~r")]
    layers = []
    if parts.has_intervals:
        rule = parts.spans("ours").mark_rule(strokeWidth=2.5, clip=True)
        layers.append(rule.encode(x=over(x, "low"), x2=alt.X2(field="high"), **shared))
    if parts.has("ours"):
        ours = parts.of("ours").mark_point(filled=True, size=150, shape="circle")
        layers.append(ours.encode(x=x, tooltip=tips, **shared))
    published = parts.of("published").mark_point(filled=False, size=170, shape="diamond", strokeWidth=2.5)
    layers.append(published.encode(x=x, tooltip=tips, **shared).add_params(parts.pick))
    note = f"◇ published: {source}; ● these runs, with 95 % interval"
    title = f"{capital(relation.figure)} beside the published"
    return finish(layers, analysis.setting, title, rows, note=note, height=max(140, 60 * len(drawn)))
