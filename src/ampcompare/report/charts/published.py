"""One's own runs beside a published comparison: ratio to ratio, since the hardware differs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt

from ampcompare import metrics
from ampcompare.errors import UserError
from ampcompare.report import words
from ampcompare.report.analysis.metric import Metric
from ampcompare.report.analysis.settings import settings_of
from ampcompare.report.analysis.statistics import Estimate
from ampcompare.report.analysis.verdict import Analysis
from ampcompare.report.charts.curves import metric_curve
from ampcompare.report.charts.parts import Parts, Spec, finish, over, quantity, tip
from ampcompare.report.charts.series import Row
from ampcompare.report.palette import styles

DATA = Path(__file__).with_name("references.yaml")
BASE = "none"


@dataclass(frozen=True)
class Kind:
    """How a published figure is set beside one's own: by `relate(value, that of the baseline)`, and which of
    ours.
    """

    figure: str
    axis: str
    relate: Callable[[float, float], float]
    ours: str
    show: Callable[[float | None], str]
    unit: str
    neutral: float


def _less_is_faster(value: float, base: float) -> float:
    return base / value


def _change(ratio: float | None) -> str:
    return words.change(None if ratio is None else ratio - 1)


KINDS = {
    "seconds": Kind("speed-up", "times as fast as fp32", _less_is_faster, "speed", words.ratio, "s", 1),
    "seconds_per_epoch": Kind(
        "speed-up", "times as fast as fp32", _less_is_faster, "speed", words.ratio, "s/epoch", 1
    ),
    "peak_bytes": Kind(
        "peak memory", "times the memory of fp32", lambda v, b: v / b, "memory", _change, "bytes", 1
    ),
    "test_accuracy": Kind(
        "accuracy", "points above fp32", lambda v, b: (v - b) * 100, "quality", words.points, "accuracy", 0
    ),
}


@dataclass(frozen=True)
class Pair:
    """One published figure of one backend, relative to its baseline, and one's own (None where it was not
    run).
    """

    figure: str
    label: str
    published: float
    ours: Estimate | None
    show: Callable[[float | None], str]
    absolute: str


@dataclass(frozen=True)
class Reproduction:
    """A published comparison and one's own runs beside it."""

    name: str
    source: str
    setting: str
    note: str
    rows: tuple[Pair, ...]
    deviations: tuple[str, ...]
    charts: Mapping[str, Spec]


def references() -> list[dict[str, Any]]:
    """All published results that the project keeps."""
    import yaml

    return yaml.safe_load(DATA.read_text("utf-8"))


def published(name: str) -> dict[str, Any]:
    """The published comparison of that name. Raises UserError for one that is not known."""
    known = {entry["name"]: entry for entry in references() if "name" in entry}
    if name not in known:
        raise UserError(f"--reproduce {name!r}: expected one of {', '.join(known)}")
    return known[name]


def reproduce(analysis: Analysis, name: str) -> Reproduction:
    """Set the runs beside the published comparison of that name. Raises UserError for an unknown one."""
    entry = published(name)
    rows = [
        pair for key, kind in KINDS.items() if key in entry for pair in _pairs(analysis, entry[key], kind)
    ]
    charts = {
        f"published-{kind.ours}": _chart(
            analysis, kind, [row for row in rows if row.figure == kind.figure], entry
        )
        for key, kind in KINDS.items()
        if key in entry
    }
    if not charts:  # published as curves alone: these are the same curves of one's own runs
        charts = {"published-eval-loss": metric_curve(analysis, Metric(metrics.EVAL_LOSS, None))}
    return Reproduction(
        name,
        entry["source"],
        entry.get("setting", ""),
        entry.get("note", ""),
        tuple(rows),
        tuple(_deviations(analysis, entry.get("config", {}))),
        charts,
    )


def _pairs(analysis: Analysis, values: Mapping[str, float], kind: Kind) -> list[Pair]:
    base = values[BASE]
    found = []
    for label, value in values.items():
        if label == BASE:
            continue
        comparison = next((c for c in analysis.comparisons if c.group.value == label and not c.refusal), None)
        ours = getattr(comparison, kind.ours) if comparison and analysis.baseline_is(BASE) else None
        if kind.ours == "quality" and not analysis.metric.is_fraction:
            ours = None
        absolute = f"{value:,} against {base:,} {kind.unit}"
        found.append(Pair(kind.figure, label, kind.relate(value, base), ours, kind.show, absolute))
    return found


def _chart(analysis: Analysis, kind: Kind, pairs: Sequence[Pair], entry: Mapping[str, Any]) -> Spec:
    rows: list[Row] = []
    for pair in pairs:
        head = {"backend": pair.label}
        rows.append(head | {"kind": "published", "run": "published", "x": pair.published})
        if pair.ours is not None:
            row = head | {"kind": "ours", "run": f"these runs, n = {pair.ours.n}", "x": pair.ours.value}
            if pair.ours.low is not None:
                row |= {"low": pair.ours.low, "high": pair.ours.high}
            rows.append(row)
    drawn = [row["x"] for row in rows] + [kind.neutral]
    room = 0.25 * (max(drawn) - min(drawn)) or 0.5
    low = min(drawn) - room
    domain = [max(0.0, low) if kind.neutral == 1 else low, max(drawn) + room]
    looks = styles((pair.label, pair.label) for pair in pairs)
    x = quantity(alt.X, kind.axis, domain=domain, nice=False)
    y = alt.Y(field="backend", type="nominal", sort=[look.label for look in looks], title=None)
    parts = Parts(rows, looks, x, y)
    parts.pick = alt.selection_point(name="pick", fields=["backend"])
    colour = alt.Color(field="backend", type="nominal", scale=parts.scale("colour"), legend=None)
    shared = {"y": y, "color": colour, "opacity": parts.dimmed(1.0)}
    tips = [tip("backend"), tip("run", "from"), tip("x", kind.axis, ",.4~r")]
    layers = []
    if any("low" in row for row in rows):
        rule = parts.of("ours").transform_filter("isValid(datum.low)").mark_rule(strokeWidth=2.5, clip=True)
        layers.append(rule.encode(x=over(x, "low"), x2=alt.X2(field="high"), **shared))
    if parts.has("ours"):
        ours = parts.of("ours").mark_point(filled=True, size=150, shape="circle")
        layers.append(ours.encode(x=x, tooltip=tips, **shared))
    published = parts.of("published").mark_point(filled=False, size=170, shape="diamond", strokeWidth=2.5)
    layers.append(published.encode(x=x, tooltip=tips, **shared).add_params(parts.pick))
    note = f"◇ published: {entry['source']}; ● these runs, with 95 % interval"
    title = f"{kind.figure[:1].upper()}{kind.figure[1:]} beside the published"
    return finish(layers, analysis.setting, title, rows, note=note, height=max(140, 60 * len(looks)))


def _deviations(analysis: Analysis, config: Mapping[str, Any]) -> list[str]:
    """Keys of the published setting that the runs have otherwise: `batch_size (16, published 128)`."""
    found = []
    for key, wanted in config.items():
        published = "null" if wanted is None else str(wanted)
        here = dict.fromkeys(
            str(f.seed) if key == "seed" else settings_of(f).get(key, "not set") for f in analysis.figures
        )
        if not all(_same(value, published) for value in here):
            found.append(f"{key} ({', '.join(list(here)[:4])}, published {published})")
    return found


def _same(value: str, published: str) -> bool:
    try:
        return value == published or float(value) == float(published)
    except ValueError:
        return False
