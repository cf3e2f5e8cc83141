"""A publication's charts as the original drew them, ours beside theirs, and the ratios of each figure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import altair as alt

from ampcompare.published.publication import BAR, Figure, Panel
from ampcompare.report.analysis.analysis import Analysis
from ampcompare.report.analysis.judged import Row
from ampcompare.report.analysis.published import Reproduction, shown_as_printed
from ampcompare.report.charts.curves import line_chart
from ampcompare.report.charts.parts import Parts, Spec, finish, over, quantity, steps, tip
from ampcompare.report.charts.series import Datum, curves
from ampcompare.report.palette import Style, styles
from ampcompare.report.runs.measured import measured
from ampcompare.report.runs.metric import ComparedMetric
from ampcompare.report.statistics.samples import mean
from ampcompare.report.words import capital, number

THERE, HERE = "published", "these runs"
HALO: dict[str, Any] = {"stroke": "#ffffff", "strokeWidth": 3, "strokeJoin": "round"}
NARROW = 14  # characters of an arm's name that stands upright under a bar


def published_charts(analysis: Analysis) -> dict[str, Spec]:
    """The charts by name; nothing where no publication was asked for."""
    if (beside := analysis.published) is None:
        return {}
    found: dict[str, Spec] = {}
    for n, chart in enumerate(beside.publication.charts, 1):
        for m, panel in enumerate(chart.panels, 1):
            title = " · ".join(dict.fromkeys(part for part in (chart.title, panel.title) if part))
            name = f"published-{n}-{m}"
            if panel.curve:
                found[name] = _curve(analysis, beside, panel, title or capital(panel.curve))
            else:
                found |= _bars(analysis, beside, panel, title, name)
    for figure in beside.publication.figures:
        rows = [row for row in beside.rows if row.figure is figure and row.theirs is not None]
        for relation in dict.fromkeys(row.relation for row in rows):
            alike = [row for row in rows if row.relation == relation]
            slug = re.sub(r"[^a-z0-9]+", "-", f"{figure.name} {relation.figure}".lower()).strip("-")
            found[f"published-{slug}"] = _ratios(analysis, beside, alike)
    return found


def _source(beside: Reproduction) -> str:
    """What stands under each chart: who published, where and when."""
    of = beside.publication
    return "; ".join(part for part in (f"published: {of.source}", of.date, of.hardware) if part)


def _looks(beside: Reproduction, arms: Sequence[str]) -> list[Style]:
    """Each arm in the colours of its backend."""
    of = beside.publication

    def backend(arm: str) -> str:
        options = {**of.setting, **of.arms[arm]}
        return str(options.get("backend", "none"))

    return styles((arm, backend(arm)) for arm in arms)


def _curve(analysis: Analysis, beside: Reproduction, panel: Panel, title: str) -> Spec:
    """A curve by epoch of the runs of each arm, under the arms' names and the original's axes."""
    groups = [replace(group, label=arm) for arm, group in beside.matched.arms.items()]
    looks = {style.label: style for style in _looks(beside, list(beside.matched.arms))}
    factor = ComparedMetric(panel.curve, None).factor
    rows = curves(groups, "epoch", panel.curve, y_factor=factor)
    y = quantity(alt.Y, f"{panel.y or panel.curve}{', %' if factor == 100 else ''}")
    named = replace(analysis, groups=tuple(groups), styles=looks)
    note = f"drawn as there, of these runs; {_source(beside)}"
    return line_chart(named, title, rows, steps(panel.x or "epoch"), y, ".4~g", markers=True, note=note)


def _bars(analysis: Analysis, beside: Reproduction, panel: Panel, title: str, name: str) -> dict[str, Spec]:
    """A panel of figures: theirs and ours on one axis; times of other hardware each on their own."""
    figure = beside.publication.find_figure(panel.figure)
    title = title or capital(figure.kind.words)
    theirs = [_their_bar(figure, arm) for arm in figure.values]
    ours = list(_our_bars(beside, figure))
    is_apart = figure.kind.is_time and not beside.matched.same_card and bool(ours)
    if not is_apart:
        return {name: _panel(analysis, beside, panel, title, [*theirs, *ours])}
    there = replace(analysis.setting, devices=(beside.publication.hardware or "hardware not said",))
    on_theirs = replace(analysis, setting=there)
    return {
        f"{name}-there": _panel(on_theirs, beside, panel, f"{title}, as published", theirs),
        f"{name}-here": _panel(analysis, beside, panel, f"{title}, these runs", ours),
    }


def _their_bar(figure: Figure, arm: str) -> Datum:
    printed, factor = figure.values[arm], figure.factor
    low, high = printed.low / factor, printed.high / factor
    value = printed.value / factor
    text = shown_as_printed(figure, printed)
    row: Datum = {
        "backend": arm,
        "kind": THERE,
        "run": f"{THERE}: {text}",
        "x": arm,
        "y": value,
        "text": text,
    }
    return row | ({} if printed.is_rounding else {"low": low, "high": high})


def _our_bars(beside: Reproduction, figure: Figure) -> Iterator[Datum]:
    for arm in figure.values:
        group = beside.matched.arms.get(arm)
        found = mean(measured(group, figure.measured)) if group else None
        if found is not None:
            value = found.value / figure.factor
            told = f"{HERE}, n = {found.n}"
            row: Datum = {
                "backend": arm,
                "kind": HERE,
                "run": told,
                "x": arm,
                "y": value,
                "text": number(value),
            }
            if found.low is not None and found.high is not None:
                row |= {"low": found.low / figure.factor, "high": found.high / figure.factor}
            yield row


def _panel(analysis: Analysis, beside: Reproduction, panel: Panel, title: str, rows: list[Datum]) -> Spec:
    arms = [arm for arm in beside.publication.arms if any(row["backend"] == arm for row in rows)]
    looks = _looks(beside, arms)
    kinds = [kind for kind in (THERE, HERE) if any(row["kind"] == kind for row in rows)]
    tilt = 0 if max(map(len, arms), default=0) <= NARROW and len(arms) <= 5 else -30
    axis = alt.Axis(labelAngle=tilt, labelLimit=140, labelPadding=6)
    x = alt.X(field="backend", type="nominal", sort=arms, title=panel.x or None, axis=axis)
    tallest = max([float(row["y"]) for row in rows], default=1.0)
    longest = max([tallest, *(float(row["high"]) for row in rows if "high" in row)])
    top = 1.12 * min(longest, 1.5 * tallest)  # two runs can give an interval that is many times as long
    figure = beside.publication.find_figure(panel.figure)
    y = quantity(alt.Y, panel.y or f"{figure.kind.words}, {figure.unit}", domain=[0, top], nice=True)
    parts = Parts(rows, looks, x, y, legend="none")
    side = alt.XOffset(field="kind", type="nominal", sort=kinds)
    place = {"x": x, "xOffset": side}
    tips = [tip("backend", "arm"), tip("run", "from"), tip("y", y["title"], ",.5~r")]
    layers = []
    for kind, opacity in ((THERE, 0.32), (HERE, 1.0)):
        if parts.has(kind):
            if panel.kind == BAR:
                mark = parts.of(kind).mark_bar(stroke="#5b6472" if kind == THERE else None, strokeWidth=1)
            else:
                mark = parts.of(kind).mark_point(filled=kind == HERE, size=110)
            fill = parts.dimmed(opacity)
            layers.append(mark.encode(**place, y=y, color=parts.colour(), fillOpacity=fill, tooltip=tips))
    for kind in kinds:
        if any("low" in row for row in rows if row["kind"] == kind):
            rule = parts.spans(kind).mark_rule(strokeWidth=2, clip=True)
            layers.append(rule.encode(**place, y=over(y, "low"), y2=alt.Y2(field="high")))
    for kind in kinds:
        text = {**place, "y": y, "text": alt.Text(field="text", type="nominal")}
        under_and_over: tuple[dict[str, Any], ...] = (HALO, {})  # an interval may run through it
        layers += [
            parts.of(kind).mark_text(dy=-7, fontSize=10.5, **look).encode(**text) for look in under_and_over
        ]
    layers[0] = layers[0].add_params(parts.pick)
    notes = {
        THERE: "times of other hardware than these runs'",
        HERE: "with 95 % interval, on an axis of its own",
    }
    note = "left, pale: published; right: these runs, with 95 % interval"
    note = note if len(kinds) == 2 else "".join(notes[kind] for kind in kinds)
    return finish(layers, analysis.setting, title, rows, note=f"{note}; {_source(beside)}")


def _ratios(analysis: Analysis, beside: Reproduction, alike: Sequence[Row]) -> Spec:
    """A figure of each arm relative to the baseline: theirs with its rounding, ours with its interval."""
    relation = alike[0].relation
    axis = relation.axis.format(base=beside.publication.baseline, what=alike[0].figure.kind.words)
    rows: list[Datum] = []
    for row in alike:
        head = {"backend": row.arm, "verdict": row.verdict}
        if row.theirs is not None:
            ends = {"x": row.theirs.value, "low": row.theirs.low, "high": row.theirs.high}
            rows.append(head | {"kind": THERE, "run": f"{THERE}: {row.printed}"} | ends)
        if row.ours is not None:
            found = head | {"kind": HERE, "run": f"{HERE}, n = {row.ours.n}", "x": row.ours.value}
            if row.ours.low is not None:
                found |= {"low": row.ours.low, "high": row.ours.high}
            rows.append(found)
    values = [row["x"] for row in rows] + ([] if relation.neutral is None else [relation.neutral])
    values += [row[end] for row in rows if row["kind"] == THERE for end in ("low", "high")]
    room = 0.25 * (max(values) - min(values)) or 0.5
    domain = [min(values) - room, max(values) + room]
    if relation.neutral == 1:
        domain[0] = max(0.0, domain[0])
    drawn = _looks(beside, [row.arm for row in alike])
    x = quantity(alt.X, axis, domain=domain, nice=False)
    y = alt.Y(field="backend", type="nominal", sort=[style.label for style in drawn], title=None)
    parts = Parts(rows, drawn, x, y, legend="none")
    side = alt.YOffset(field="kind", type="nominal", sort=[THERE, HERE])
    shared = {"y": y, "yOffset": side, "color": parts.colour(), "opacity": parts.dimmed(1.0)}
    tips = [tip("backend", "arm"), tip("run", "from"), tip("x", axis, ",.4~r"), tip("verdict")]
    layers = []
    for kind in (THERE, HERE):
        if any("low" in row for row in rows if row["kind"] == kind):
            rule = parts.spans(kind).mark_rule(strokeWidth=2.5, clip=True)
            layers.append(rule.encode(x=over(x, "low"), x2=alt.X2(field="high"), **shared))
    if parts.has(HERE):
        ours = parts.of(HERE).mark_point(filled=True, size=130, shape="circle", clip=True)
        layers.append(ours.encode(x=x, tooltip=tips, **shared))
    theirs = parts.of(THERE).mark_point(filled=False, size=130, shape="diamond", strokeWidth=2.5)
    layers.append(theirs.encode(x=x, tooltip=tips, **shared).add_params(parts.pick))
    note = f"◇ published, as far as it was rounded; ● these runs, with 95 % interval; {_source(beside)}"
    title = f"{capital(relation.figure)}, beside theirs"
    return finish(layers, analysis.setting, title, rows, note=note, height=max(140, 64 * len(drawn)))
