"""All that the reader may compare with and within on the page, made beforehand: each part of it as HTML.

A page holds the planned view where it is read, and of every other view the parts in which it differs. Parts
that several views share are there once. Nothing is computed and no sentence made by the page's script.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ampcompare.report import words
from ampcompare.report.analysis.analysis import Analysis
from ampcompare.report.analysis.claims import Claim
from ampcompare.report.analysis.comparison import Comparison
from ampcompare.report.analysis.phrases import tested
from ampcompare.report.analysis.verdict import Verdict
from ampcompare.report.analysis.views import View
from ampcompare.report.charts.catalogue import VARIED
from ampcompare.report.charts.parts import MARGIN
from ampcompare.report.page.pack import Part, pack
from ampcompare.report.runs.groups import Group
from ampcompare.report.statistics.estimate import Estimate

CARDS = 12  # of more groups the rest is in the tables alone
MOST = 600  # groups times views on one page: a hundred groups would otherwise make a page of a hundred MB
OF_MARGIN = ("quality-differences",)  # charts whose rows depend on the margin, and not on the baseline alone
NAME_CHARS = 40
FIGURES = ("images_per_second", "peak_mib", "quality")  # of which the table says what seeds they lack
AS_PLANNED = -1  # in place of the number of a part: what the page shows at first


@dataclass(frozen=True)
class Shown:
    """A view as the templates read it."""

    view: View
    tolerance: str

    @property
    def baseline(self) -> str:
        """The value that the others are compared with."""
        return self.view.baseline

    @property
    def is_planned(self) -> bool:
        """Whether it is the planned one."""
        return self.view.is_planned

    @property
    def comparisons(self) -> Sequence[Comparison]:
        """Every group but the baselines against the one that fits it."""
        return self.view.comparisons

    @property
    def verdict(self) -> Verdict:
        """The answer in words."""
        return self.view.verdict

    def comparison(self, label: str) -> Comparison | None:
        """The comparison of one group."""
        return self.view.comparison(label)

    def tested(self, comparison: Comparison, question: str) -> Estimate | None:
        """The estimate at the level at which it was tested."""
        return tested(comparison, question)

    def claim(self, comparison: Comparison, question: str) -> Claim | None:
        """What is claimed of a group, None where that was not tested."""
        return comparison.claims.get(question)

    def lost_runs(self, group: Group) -> list[tuple[str, str]]:
        """The seeds or runs that every figure of a group lacks, and why."""
        every = [group.lost(name) for name in FIGURES]
        return [pair for pair in every[0] if all(pair in pairs for pairs in every)]

    def lost(self, group: Group, name: str) -> list[tuple[str, str]]:
        """Those that this figure lacks beyond these."""
        everywhere = self.lost_runs(group)
        return [pair for pair in group.lost(name) if pair not in everywhere]


@dataclass
class Views:
    """The parts of the planned view by name, and what the other views have in their place.

    `pieces` are HTML; `content` is for the page's script: for each view its baseline, its margin, the number
    of its piece for each name of `names`, and of each chart's variation. `baselines` and `margins` are
    (value, words, whether planned), `left_out` says in a sentence which baselines are not offered.
    """

    planned: dict[str, str]
    pieces: list[str] = field(default_factory=list)
    variations: list[str] = field(default_factory=list)
    content: dict[str, Any] = field(default_factory=dict)
    baselines: list[tuple[str, str, bool]] = field(default_factory=list)
    margins: list[tuple[str, str, bool]] = field(default_factory=list)
    left_out: str = ""

    @property
    def has_choice(self) -> bool:
        """Whether there is more than one view."""
        return len(self.baselines) > 1 or len(self.margins) > 1


def all_views(analysis: Analysis, module: Any, drawn: Sequence[str]) -> Views:
    """Every view of the page; `module` has the macros of view.html.j2, `drawn` are the charts with data."""
    planned = analysis.view()
    found = Views(_parts(analysis, planned, module))
    offered = [planned.baseline, *(b for b in analysis.baselines if b != planned.baseline)]
    margins = analysis.margins if len(offered) > 1 else (planned.margin,)
    most = max(1, MOST // (len(analysis.groups) * len(margins)))
    names = list(found.planned)
    keep = _Kept(found.pieces), _Kept(found.variations)
    vary = _Variations(analysis, [name for name in drawn if name in VARIED])
    of_planned = vary.of(planned)
    views = []
    for view in (analysis.view(b, m) for b in offered[:most] for m in margins):
        parts = _parts(analysis, view, module)
        own = [keep[0].number(parts[name], found.planned[name]) for name in names]
        varied = vary.of(view)
        charts = {name: keep[1].number(text, of_planned[name]) for name, text in varied.items()}
        key = {"baseline": view.baseline, "margin": _key(view.margin)}
        views.append(key | {"parts": own, "charts": charts})
    found.content = {"names": names, "views": views}
    is_default = analysis.metric.is_default and analysis.plan.margin is None
    in_use = "default" if is_default else "as planned"
    found.baselines = [
        (b, f"{b} ({in_use})" if b == planned.baseline else b, b == planned.baseline) for b in offered[:most]
    ]
    for margin in margins:
        name, is_planned = _tolerance(analysis, margin), margin == planned.margin
        found.margins.append((_key(margin), f"{name} ({in_use})" if is_planned else name, is_planned))
    if left := len(offered[most:]):
        found.left_out = (
            f"{words.plural(left, 'more value')} can be the baseline of another report: --baseline."
        )
    return found


def _parts(analysis: Analysis, view: View, module: Any) -> dict[str, str]:
    """All that depends on baseline and margin, by name."""
    shown = Shown(view, _tolerance(analysis, view.margin))
    parts = {name: getattr(module, name)(shown) for name in ("told", "headline", "notes", "cautions")}
    for number, group in enumerate(analysis.groups):
        if number < CARDS:
            parts[f"card-{number}"] = module.card(shown, group)
        parts[f"line-{number}"] = module.line(shown, number)
        parts[f"row-{number}"] = module.row(shown, group)
    return {name: str(html).strip() for name, html in parts.items()}


class _Kept:
    """Texts, each once, by number."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts
        self.numbers: dict[str, int] = {}

    def number(self, text: str, planned: str) -> int:
        if text == planned:
            return AS_PLANNED
        if text not in self.numbers:
            self.numbers[text] = len(self.texts)
            self.texts.append(text)
        return self.numbers[text]


class _Variations:
    """What of the charts depends on a view, as JSON; what the margin does not change is made once."""

    def __init__(self, analysis: Analysis, names: Sequence[str]) -> None:
        self.analysis, self.names = analysis, names
        self.rows: dict[tuple[str, str, float | None], tuple[list[Part], dict[str, float]]] = {}

    def of(self, view: View) -> dict[str, str]:
        """By the chart's name."""
        return {name: self._of(name, view) for name in self.names}

    def _of(self, name: str, view: View) -> str:
        key = (name, view.baseline, view.margin if name in OF_MARGIN else None)
        if key not in self.rows:
            varied = VARIED[name](self.analysis, view.comparisons, view.margin)
            self.rows[key] = pack(varied.rows), varied.values
        rows, values = self.rows[key]
        if MARGIN in values and view.margin is not None:
            values = values | {MARGIN: view.margin}
        return json.dumps({"rows": rows, "values": values}, allow_nan=False, separators=(",", ":"))


def _key(margin: float | None) -> str:
    return "" if margin is None else repr(margin)


def _tolerance(analysis: Analysis, margin: float | None) -> str:
    return replace(analysis.metric, margin=margin).tolerance
