"""The lay-out of a comparison in time and over machines, from starting times: what else differed with it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ampcompare.records.tree import as_text
from ampcompare.report.analysis.figures import RunFigures, environment_of
from ampcompare.report.analysis.groups import Group
from ampcompare.report.analysis.sample import started
from ampcompare.report.analysis.statistics import Estimate
from ampcompare.report.words import listed

FEWEST = 2  # runs of a group for its place in time to say anything


@dataclass(frozen=True)
class Layout:
    """How the groups of a comparison lie in time and on cards.

    `apart` are pairs of labels, the earlier first, of groups of two runs or more of which all of one began
    before any of the other; `on_own_cards` labels of groups that had cards to themselves while others
    had others; `drift` the change of throughput from the first run to the last (ratio), groups aside, None where it
    cannot be told.
    """

    apart: tuple[tuple[str, str], ...] = ()
    on_own_cards: tuple[str, ...] = ()
    drift: Estimate | None = None

    @property
    def one_after_the_other(self) -> bool:
        """Whether two groups are wholly apart in time."""
        return bool(self.apart)

    @property
    def sentences(self) -> tuple[str, ...]:
        """What is to be said of it, gravest first; nothing of a sound lay-out."""
        said = []
        if self.apart:
            names = listed(dict.fromkeys(label for pair in self.apart for label in pair))
            said.append(f"{names} ran one after the other: drift counts as difference.")
        if self.on_own_cards:
            names = listed(self.on_own_cards)
            said.append(f"{names} had cards of their own: a difference of cards counts as difference.")
        return tuple(said)


def layout(groups: Sequence[Group]) -> Layout:
    """The lay-out of the groups that are compared; the A/A control lies at the ends by design."""
    groups = [g for g in groups if not g.is_control and g.counted]
    return Layout(tuple(_apart(groups)), tuple(_aliased(groups)), None)


def _apart(groups: Sequence[Group]) -> list[tuple[str, str]]:
    spans = [(g.label, sorted(t for f in g.counted if math.isfinite(t := started(f)))) for g in groups]
    known = [(label, times) for label, times in spans if len(times) >= FEWEST]
    return [(a, b) for a, early in known for b, late in known if early[-1] < late[0]]


def _aliased(groups: Sequence[Group]) -> list[str]:
    return []


def card_of(figures: RunFigures) -> str:
    """What tells one card from another of its name: the GPU's id, on a CPU the host's; nothing if unknown."""
    environment = environment_of(figures.run)
    machine = environment.get("machine")
    for holder in (machine, environment):
        if isinstance(holder, Mapping):
            for key in ("gpu_uuid", "host"):
                if holder.get(key):
                    return as_text(holder[key])
    return ""
