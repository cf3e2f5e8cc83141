"""Published comparisons, and one's own runs beside them: ratio to ratio, since the hardware differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ampcompare.errors import UserError
from ampcompare.report import words
from ampcompare.report.analysis.comparison import Comparison
from ampcompare.report.runs.figures import RunFigures
from ampcompare.report.runs.metric import ComparedMetric
from ampcompare.report.runs.settings import pooling_settings
from ampcompare.report.statistics.samples import Estimate

REFERENCES = Path(__file__).with_name("references.yaml")
BASE = "none"


@dataclass(frozen=True)
class Relation:
    """How a published figure is set beside one's own: by `relate(value, that of the baseline)`.

    `ours` is the attribute of Comparison that is the same of one's own, `neutral` its value without a change.
    """

    figure: str
    axis: str
    relate: Callable[[float, float], float]
    ours: str
    show: Callable[[float | None], str]
    unit: str
    neutral: float


def _speedup(unit: str) -> Relation:
    return Relation("speed-up", "times as fast as fp32", lambda v, b: b / v, "speed", words.ratio, unit, 1)


RELATIONS = {
    "seconds": _speedup("s"),
    "seconds_per_epoch": _speedup("s/epoch"),
    "peak_bytes": Relation(
        "peak memory", "times the memory of fp32", lambda v, b: v / b, "memory", words.change, "bytes", 1
    ),
    "test_accuracy": Relation(
        "accuracy", "points above fp32", lambda v, b: (v - b) * 100, "quality", words.signed, "accuracy", 0
    ),
}


@dataclass(frozen=True)
class Pair:
    """One published figure of one backend, relative to its baseline, and one's own (None where not run).

    `absolute` is the published figure as it was published, in words.
    """

    relation: Relation
    label: str
    published: float
    ours: Estimate | None
    absolute: str


@dataclass(frozen=True)
class Reproduction:
    """A published comparison, one's own runs beside it, and in what their settings deviate from its."""

    name: str
    source: str
    setting: str
    note: str
    rows: tuple[Pair, ...]
    deviations: tuple[str, ...]


def references() -> list[dict[str, Any]]:
    """All published results that the project keeps."""
    import yaml

    return yaml.safe_load(REFERENCES.read_text("utf-8"))


def published(name: str) -> dict[str, Any]:
    """The published comparison of that name. Raises UserError for one that is not known."""
    known = {entry["name"]: entry for entry in references() if "name" in entry}
    if name not in known:
        raise UserError(f"--reproduce {name!r}: expected one of {', '.join(known)}")
    return known[name]


def set_beside(
    name: str, figures: Sequence[RunFigures], comparisons: Sequence[Comparison], metric: ComparedMetric
) -> Reproduction:
    """The runs beside the published comparison of that name. Raises UserError for an unknown one."""
    entry = published(name)
    rows: list[Pair] = []
    for key, relation in RELATIONS.items():
        rows += _pairs(relation, entry.get(key, {}), comparisons, metric)
    deviations = tuple(_deviations(figures, entry.get("config", {})))
    setting, note = entry.get("setting", ""), entry.get("note", "")
    return Reproduction(name, entry["source"], setting, note, tuple(rows), deviations)


def _pairs(
    relation: Relation, values: Mapping[str, float], comparisons: Sequence[Comparison], metric: ComparedMetric
) -> Iterator[Pair]:
    usable = relation.ours != "quality" or metric.is_fraction
    known = {c.group.value: c for c in reversed(comparisons) if c.baseline and c.baseline.value == BASE}
    for label, value in values.items():
        if label != BASE:
            base = values[BASE]
            ours = getattr(known[label], relation.ours) if usable and label in known else None
            absolute = f"{value:,} against {base:,} {relation.unit}"
            yield Pair(relation, label, relation.relate(value, base), ours, absolute)


def _deviations(figures: Sequence[RunFigures], config: Mapping[str, Any]) -> Iterator[str]:
    """Keys of the published setting that the runs have otherwise: `batch_size (16, published 128)`."""
    for key, wanted in config.items():
        theirs = "null" if wanted is None else str(wanted)
        every = ({"seed": str(f.seed)} | pooling_settings(f) for f in figures)
        here = dict.fromkeys(one.get(key, "not set") for one in every)
        if not all(_same(value, theirs) for value in here):
            yield f"{key} ({', '.join(list(here)[:4])}, published {theirs})"


def _same(value: str, published: str) -> bool:
    try:
        return value == published or float(value) == float(published)
    except ValueError:
        return False
