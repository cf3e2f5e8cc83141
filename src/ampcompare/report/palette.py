"""How each backend looks, the same in every chart, card and table.

Colours are from Okabe and Ito's set for colour-blind readers (Color Universal Design, 2008), with grey for
the baseline; all stand out on white and on near-black. Dashes and markers tell lines apart where they lie on
each other: a dashed line drawn over a solid one shows both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

SOLID: tuple[int, ...] = (1, 0)


@dataclass(frozen=True)
class Style:
    """Look and meaning of one backend; `dash` in pixels on and off, `marker` a Vega symbol."""

    label: str
    colour: str
    dash: tuple[int, ...]
    marker: str
    meaning: str


KNOWN = (
    Style("none", "#767c88", SOLID, "circle", "fp32"),
    Style("native", "#0072b2", SOLID, "square", "torch.amp, fp16"),
    Style("native bf16", "#56b4e9", (9, 3), "diamond", "torch.amp, bfloat16"),
    Style("apex_o1", "#d55e00", (5, 4), "triangle-up", "apex O1, fp16"),
    Style("apex_o2", "#009e73", (2, 3), "triangle-down", "apex O2, fp16"),
    Style("fp16", "#cc79a7", (8, 3, 2, 3), "cross", "pure fp16"),
)
_SPARE_COLOURS = ("#e69f00", "#b8a500", "#7a5195", "#8c564b")
_SPARE_DASHES: tuple[tuple[int, ...], ...] = ((4, 2), (1, 2), (10, 3), (6, 2, 1, 2))


def ordered(values: Iterable[str]) -> list[str]:
    """Each value once: known backends in their fixed order, then others by name, numbers by size."""
    wanted = set(values)
    known = [style.label for style in KNOWN if style.label in wanted]
    return known + sorted(wanted - set(known), key=_by_size)


def styles(labels: Iterable[tuple[str, str]]) -> list[Style]:
    """One style per (label, value): the value has the colour, the dashes tell labels of one value apart."""
    pairs = list(dict.fromkeys(labels))
    values = ordered(value for _, value in pairs)
    known = {style.label: style for style in KNOWN}
    free = [*_SPARE_COLOURS, *(style.colour for style in KNOWN if style.label not in values)]
    others = [value for value in values if value not in known]
    base = known | {
        value: Style(value, free[i % len(free)], _SPARE_DASHES[i % 4], "stroke", "")
        for i, value in enumerate(others)
    }
    seen: dict[str, int] = {}
    found = []
    for label, value in pairs:
        nth = seen[value] = seen.get(value, -1) + 1
        style = base[value]
        dash = style.dash if nth == 0 else _SPARE_DASHES[(nth - 1) % 4]
        found.append(replace(style, label=label, dash=dash))
    return found


def _by_size(value: str) -> tuple[int, float, str]:
    try:
        return (0, float(value), value)
    except ValueError:
        return (1, 0.0, value)
