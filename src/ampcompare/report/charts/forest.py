"""Forest plots: every group's effect with the interval that was tested, its figures in words above it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from ampcompare.report.analysis.analysis import Analysis
from ampcompare.report.analysis.comparison import Comparison
from ampcompare.report.analysis.phrases import tested
from ampcompare.report.charts.parts import (
    HALO,
    HEIGHT,
    Parts,
    Spec,
    finish,
    margin_zone,
    neutral_line,
    over,
    quantity,
    tip,
)
from ampcompare.report.charts.series import Datum, shortened
from ampcompare.report.palette import CHIPS
from ampcompare.report.words import NO_SPREAD, capital, change, interval, level, signed
from ampcompare.report.words import ratio as times

ROW, LOW_ROW, MANY_ROWS = 50, 36, 12  # pixels
LONGEST = 0.7  # of the range of the values: what intervals may add to it at each end before they are cut
DWARFING = 3.0  # times as long as is usual in the chart
ROOM = 0.08
LEAST_ROOM = 0.01  # of an axis of one value with no interval
UP, DOWN = -11, 9  # pixels from the middle of a row: its words, what is drawn


@dataclass(frozen=True)
class Effect:
    """What a forest plot shows: the name of the claim, no effect's value, and how a figure is written."""

    claim: str
    neutral: float
    show: Callable[[float | None], str]
    is_ratio: bool


SPEED, MEMORY = Effect("speed", 1.0, times, True), Effect("memory", 1.0, change, True)
QUALITY = Effect("quality", 0.0, signed, False)


def speed_ups(analysis: Analysis) -> Spec:
    """Every speed-up with its tested interval; the line is no difference."""
    return _forest(analysis, SPEED, "Speed-up", "times as fast as the baseline")


def memory_ratios(analysis: Analysis) -> Spec:
    """Every ratio of peak memories with its tested interval."""
    return _forest(analysis, MEMORY, "Peak memory, compared", "times the memory of the baseline")


def quality_differences(analysis: Analysis) -> Spec:
    """Every difference of the metric with its tested intervals, and the margin as the zone of equivalence."""
    metric = analysis.metric
    return _forest(analysis, QUALITY, f"{capital(metric.name)}, compared", metric.difference)


def _rows(comparisons: Sequence[Comparison], effect: Effect) -> list[Datum]:
    """A row of each group of which there is a figure; an interval only where something may be claimed."""
    rows: list[Datum] = []
    for comparison in comparisons:
        found = tested(comparison, effect.claim)
        if found is None or (x := shortened(found.value)) is None:
            continue
        row: Datum = {"backend": comparison.group.label, "kind": "effect", "x": x, "run": found.basis}
        text = effect.show(found.value)
        if effect is QUALITY and comparison.silence:
            text += ", nothing claimed"
        elif found.low is not None and found.high is not None:
            span = interval(found.low, found.high, effect.show)
            text += f" ({span if span == NO_SPREAD else f'{level(found.confidence)}: {span}'})"
            low, high = shortened(found.low), shortened(found.high)
            if low is not None and high is not None:  # a ratio's may end nowhere
                row |= {"low": low, "high": high}
        if effect is QUALITY:
            row |= _of_equivalence(comparison)
            chip = None if comparison.is_control else CHIPS.get(comparison.chip)
            text += f"  {chip.sign} {chip.word}" if chip else ""
        rows.append(row | {"text": text})
    return rows


def _of_equivalence(comparison: Comparison) -> Datum:
    test = comparison.equivalence
    return {} if test is None else {"inner_low": shortened(test.low), "inner_high": shortened(test.high)}


def _forest(analysis: Analysis, effect: Effect, title: str, axis: str) -> Spec:
    rows, margin = _rows(analysis.comparisons, effect), analysis.metric.margin if effect is QUALITY else None
    styles = list(analysis.styles.values())
    x = quantity(alt.X, axis, domain=_domain(rows, effect, margin), nice=False, zero=False)
    order = [style.label for style in styles]
    labels = alt.Axis(labelLimit=140, grid=False, domain=False, ticks=False)
    y = alt.Y(field="backend", type="nominal", sort=order, title=None, axis=labels)
    parts = Parts(rows, styles, x, y, legend="none")
    tips = [tip("backend"), tip("text", axis), tip("run", "from")]
    shared: dict[str, Any] = {"y": y, "tooltip": tips}
    layers = [*margin_zone(margin, alt.X), neutral_line(effect.neutral, alt.X)]
    note = []
    if parts.has_intervals:
        thin = parts.spans("effect").mark_rule(strokeWidth=2, clip=True, yOffset=DOWN)
        ends = {"x": over(x, "low"), "x2": alt.X2(field="high"), "color": parts.colour()}
        layers.append(thin.encode(**ends, **shared, opacity=parts.dimmed(1.0)))
        note.append("line: the tested interval")
    if any("inner_low" in row for row in rows):
        thick = parts.of("effect").transform_filter("isValid(datum.inner_low)")
        thick = thick.mark_rule(strokeWidth=7, clip=True, yOffset=DOWN)
        ends = {"x": over(x, "inner_low"), "x2": alt.X2(field="inner_high"), "color": parts.colour()}
        layers.append(thick.encode(**ends, **shared, opacity=parts.dimmed(0.45, 0.05)))
        note.append("thick: that of the test of equivalence")
    points = parts.of("effect").mark_point(filled=True, size=110, clip=True, yOffset=DOWN, opacity=1)
    shape = alt.Shape(field="backend", type="nominal", scale=parts.scale("marker"), legend=None)
    points = points.encode(x=x, color=parts.colour(), shape=shape, **shared, opacity=parts.dimmed(1.0))
    layers += [points, *_words(parts)]
    if margin is not None:
        note.append("grey zone: within the margin")
    each = ROW if len(rows) <= MANY_ROWS else LOW_ROW
    height = max(HEIGHT // 2, each * len(rows))
    said = "; ".join(note) or "one pair each: no interval"
    return finish(layers, analysis.setting, title, rows, note=said, height=height, is_cut=True)


def _words(parts: Parts) -> list[alt.Chart]:
    """Each row's figures above its interval, over a ground that hides what they lie on."""
    text = alt.Text(field="text", type="nominal")
    look: dict[str, Any] = {"align": "left", "dx": 4, "yOffset": UP, "fontSize": 11.5}
    place: dict[str, Any] = {
        "x": alt.value(0),
        "y": parts.y,
        "text": text,
        "opacity": parts.dimmed(1.0, 0.15),
    }
    ground, words = parts.of("effect").mark_text(**look, style=HALO), parts.of("effect").mark_text(**look)
    return [ground.encode(**place), words.encode(**place).add_params(parts.pick)]


def _domain(rows: Sequence[Datum], effect: Effect, margin: float | None) -> list[float]:
    """Around values, no effect, the margin and intervals; those much longer than the others are cut."""
    core = [effect.neutral, *(row["x"] for row in rows)]
    core += [] if margin is None else [-margin, margin]
    ends = [row[end] for row in rows for end in ("low", "high") if end in row]
    low, high = min(core), max(core)
    reach = [abs(row[end] - row["x"]) for row in rows for end in ("low", "high") if end in row]
    usual = statistics.median(reach) if reach else 0.0
    size = high - low or usual or LEAST_ROOM
    longest = max(LONGEST * size, DWARFING * usual)
    low = max(low - longest, min([low, *ends])) - ROOM * size
    high = min(high + longest, max([high, *ends])) + ROOM * size
    return [max(0.0, low) if effect.is_ratio else low, high]
