"""A publication: what somebody compared, in our own keys, and what came out of it, as it was printed.

title: ...            # what was compared
source: ...           # who printed it, and where
url: ...
date: 2020-06-05
hardware: NVIDIA GeForce RTX 2080 Ti     # a card as its driver names it, where it is known
software: torch 1.6 nightly
note: ...
runs: 1               # of each arm, there
setting: {model.name: ..., data.source: ..., epochs: 20}       # what all arms share, in our own keys
tiny: {model.kwargs.width: 64}  # of --network tiny, instead of our network of that name; of data, beside it
images: 50000         # of an epoch there: what `scale` shrinks (left out: what the source has)
baseline: fp32        # one of the arms
arms:                 # by their names there
  fp32: {backend: none}
  O3: {backend: fp16, precision.loss_scale: 1}
figures:              # by names of its own
  epoch_seconds:
    measured: seconds_per_epoch          # one of MEASURED
    what: mean of 20 epochs, evaluation left out
    values: {fp32: "17.84", O3: "10.30"}
charts:               # as the original drew them
  - title: Training time
    panels:
      - {figure: epoch_seconds, kind: bar, x: "", y: "seconds an epoch"}
gflop: 7.78           # counted work of forward and backward, an image
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ampcompare.errors import UserError, did_you_mean, one_line
from ampcompare.former import arm_now, setting_now
from ampcompare.program.place import find_shipped, names_shipped
from ampcompare.program.yaml_file import read_yaml
from ampcompare.published.printed import Printed, printed

FOLDER = "configs/published"
BAR, LINE = "bar", "line"
MOST_ARMS, MOST_FIGURES = 20, 40
LONGEST_NAME = 60


@dataclass(frozen=True)
class Measured:
    """A measurement that publications give: how ours is named, its unit, whether less of it is better, and
    whether it is one of time, which other hardware has otherwise.
    """

    words: str
    unit: str
    falls: bool
    is_time: bool = False
    is_share: bool = False  # in the file as a fraction or in percent, which `unit` of the figure says


MEASURED = {
    "seconds": Measured("training time", "s", falls=True, is_time=True),
    "seconds_in_all": Measured("time with evaluations", "s", falls=True, is_time=True),
    "seconds_per_epoch": Measured("time of an epoch", "s", falls=True, is_time=True),
    "images_per_second": Measured("throughput", "images/s", falls=False, is_time=True),
    "peak_memory": Measured("peak memory", "MiB", falls=True),
    "final_accuracy": Measured("accuracy after the last epoch", "%", falls=False, is_share=True),
    "best_accuracy": Measured("best accuracy", "%", falls=False, is_share=True),
}
UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "images/s": 1.0, "bytes": 2.0**-20, "MiB": 1.0}
UNITS |= {"%": 1.0, "fraction": 100.0}


@dataclass(frozen=True)
class Figure:
    """What was printed of each arm: `values` by arm, in the unit of `measured` (s, images/s, MiB, %). `unit`
    is the one that their texts are in.
    """

    name: str
    measured: str
    what: str
    values: Mapping[str, Printed]
    unit: str = ""

    @property
    def kind(self) -> Measured:
        """What is measured."""
        return MEASURED[self.measured]

    @property
    def factor(self) -> float:
        """From the unit of their texts to that of `values`: 60 of minutes."""
        return _factor(self.unit or self.kind.unit, self.kind.unit) or 1.0


@dataclass(frozen=True)
class Panel:
    """A panel of a chart: a figure of its arms, or a `curve` (a key of `ampcompare.metrics`) by epoch."""

    kind: str
    x: str
    y: str
    figure: str = ""
    curve: str = ""
    title: str = ""


@dataclass(frozen=True)
class Chart:
    """A chart as the original drew it."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Publication:
    """See the module."""

    name: str
    title: str
    source: str
    setting: Mapping[str, Any]
    baseline: str
    arms: Mapping[str, Mapping[str, Any]]
    figures: tuple[Figure, ...]
    charts: tuple[Chart, ...] = ()
    url: str = ""
    date: str = ""
    hardware: str = ""
    software: str = ""
    note: str = ""
    runs: int = 1
    images: int | None = None
    gflop: float | None = None
    tiny: Mapping[str, Any] = field(default_factory=dict)
    path: Path = field(default=Path())

    @property
    def arm_keys(self) -> tuple[str, ...]:
        """Every key that an arm sets, in the order of the file."""
        return tuple(dict.fromkeys(key for arm in self.arms.values() for key in arm))

    def find_figure(self, name: str) -> Figure:
        """Raises KeyError."""
        return {figure.name: figure for figure in self.figures}[name]


def names() -> list[str]:
    """The publications that come with the tool."""
    return names_shipped(FOLDER)


def load(name: str) -> Publication:
    """The publication of that name, or of the YAML file. Raises UserError."""
    try:
        path = find_shipped(name, FOLDER)
    except (OSError, ValueError):  # a name too long, a NUL in it, no right to look
        path = None
    if path is None:
        known = names()
        near = did_you_mean(name, known) or f"expected a file or one of {', '.join(known)}"
        raise UserError(f"{name!r}: no such publication; {near}")
    content = read_yaml(path)
    try:
        return _Reader(content, path).publication()
    except UserError as problem:
        raise UserError(f"{path}: {problem}") from None


class _Reader:
    """Takes a file's content apart, key by key."""

    def __init__(self, content: Any, path: Path) -> None:
        self.path = path
        self.content = _mapping(content, "the file", PUBLICATION_KEYS)

    def publication(self) -> Publication:
        text = {key: self._text(key, needed=key in ("title", "source")) for key in TEXTS}
        setting = _options(self.content.get("setting"), "setting")
        arms = {n: _options(arm, f"arms.{n}") for n, arm in self._items("arms", MOST_ARMS)}
        arms = {name: arm_now(setting, arm) for name, arm in arms.items()}
        baseline = self.content.get("baseline")
        if not isinstance(baseline, str) or baseline not in arms:
            raise UserError(f"baseline: {baseline!r}; expected one of the arms: {', '.join(arms)}")
        figures = tuple(self._figure(name, what, arms) for name, what in self._items("figures", MOST_FIGURES))
        charts = tuple(self._charts({f.name for f in figures}))
        return Publication(
            self.path.stem,
            setting=setting_now(setting),
            baseline=baseline,
            arms=arms,
            figures=figures,
            charts=charts,
            runs=self._count("runs") or 1,
            images=self._count("images"),
            gflop=self._gflop(),
            tiny=_options(self.content.get("tiny"), "tiny"),
            path=self.path,
            **text,
        )

    def _text(self, key: str, *, needed: bool) -> str:
        value = self.content.get(key)
        if value is None and not needed:
            return ""
        if not isinstance(value, str | int | float) or isinstance(value, bool) or not str(value).strip():
            raise UserError(f"{key}: {value!r}; expected a text")
        return one_line(value)

    def _count(self, key: str) -> int | None:
        value = self.content.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise UserError(f"{key}: {value!r}; expected a whole number above 0")
        return value

    def _gflop(self) -> float | None:
        value = self.content.get("gflop")
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
            raise UserError(f"gflop: {value!r}; expected the 10^9 operations of an image")
        return float(value)

    def _items(self, key: str, most: int) -> Iterator[tuple[str, Any]]:
        content = _mapping(self.content.get(key), key)
        if not 0 < len(content) <= most and not (key == "figures" and not content):
            raise UserError(f"{key}: {len(content)} of them; expected 1 to {most}")
        for name in content:  # it stands in tables, and an arm's on command lines
            if name != one_line(name) or not 0 < len(name) <= LONGEST_NAME:
                raise UserError(
                    f"{key}: {name[:40]!r}: expected a name of 1 to {LONGEST_NAME} characters, in one line"
                )
        return iter(content.items())

    def _figure(self, name: str, what: Any, arms: Mapping[str, Any]) -> Figure:
        where = f"figures.{name}"
        content = _mapping(what, where, ("measured", "what", "unit", "values"))
        measured = content.get("measured")
        if not isinstance(measured, str) or measured not in MEASURED:
            raise UserError(f"{where}.measured: {measured!r}; expected one of {', '.join(MEASURED)}")
        unit = content.get("unit", MEASURED[measured].unit)
        if (factor := _factor(unit, MEASURED[measured].unit)) is None:
            raise UserError(
                f"{where}.unit: {unit!r}; expected one of {', '.join(UNITS)} that fits {measured}"
            )
        values = _mapping(content.get("values"), f"{where}.values")
        if not values:
            raise UserError(f"{where}.values: empty; expected a figure of each arm")
        for arm in values:
            if arm not in arms:
                raise UserError(f"{where}.values.{arm}: no such arm; there are {', '.join(arms)}")
        told = content.get("what", "")
        found = {arm: _scaled(printed(v, f"{where}.values.{arm}"), factor) for arm, v in values.items()}
        return Figure(name, measured, one_line(told), found, str(unit))

    def _charts(self, figures: set[str]) -> Iterator[Chart]:
        charts = self.content.get("charts", [])
        if not isinstance(charts, list):
            raise UserError("charts: expected a list")
        for number, chart in enumerate(charts, 1):
            where = f"charts, number {number}"
            content = _mapping(chart, where, ("title", "panels"))
            panels = content.get("panels")
            if not isinstance(panels, list) or not panels:
                raise UserError(f"{where}: expected a list of panels")
            yield Chart(one_line(content.get("title", "")), tuple(_panel(p, where, figures) for p in panels))


TEXTS = ("title", "source", "url", "date", "hardware", "software", "note")
OTHERS = ("runs", "images", "gflop", "setting", "tiny", "baseline", "arms", "figures", "charts")
PUBLICATION_KEYS = (*TEXTS, *OTHERS)


def _panel(content: Any, where: str, figures: set[str]) -> Panel:
    known = ("kind", "x", "y", "figure", "curve", "title")
    given = {key: one_line(value) for key, value in _mapping(content, where, known).items()}
    if given.get("kind") not in (BAR, LINE):
        raise UserError(f"{where}: kind {given.get('kind')!r}; expected {BAR} or {LINE}")
    if ("figure" in given) == ("curve" in given):
        raise UserError(f"{where}: expected a figure or a curve, one of them")
    if "figure" in given and given["figure"] not in figures:
        raise UserError(f"{where}: figure {given['figure']!r}: there is none of that name")
    return Panel(**{"x": "", "y": ""} | given)


def _scaled(figure: Printed, factor: float) -> Printed:
    if factor == 1:
        return figure
    value, low, high = (x * factor for x in (figure.value, figure.low, figure.high))
    return Printed(figure.text, value, low, high, figure.n, figure.confidence)


def _factor(unit: Any, of: str) -> float | None:
    """From a unit of a file to that of the measurement; None where it is of something else."""
    alike = [{"s", "min", "h"}, {"images/s"}, {"bytes", "MiB"}, {"%", "fraction"}]
    return next(
        (UNITS[unit] for kind in alike if of in kind and isinstance(unit, str) and unit in kind), None
    )


def _mapping(content: Any, where: str, known: tuple[str, ...] = ()) -> dict[str, Any]:
    if content is None:
        content = {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise UserError(f"{where}: expected lines of the form key: value")
    for key in content:
        if known and key not in known:
            near = did_you_mean(key, known) or f"known are {', '.join(known)}"
            raise UserError(f"{where}: {key}: no such key; {near}")
    return content


def _options(content: Any, where: str) -> dict[str, Any]:
    """Options of a run by dotted key, of a nested or flat tree; whether there are such is for who runs it."""
    return dict(_flat(_mapping(content, where), where))


def _flat(tree: Mapping[str, Any], where: str, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(_mapping(value, where), where, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
