"""How each backend looks, the same in every chart, card and table.

Colours are from Okabe and Ito's set for colour-blind readers (Color Universal Design, 2008), with grey for the
baseline; all stand out on white and on near-black. Dashes and markers tell lines apart where they lie on each other:
a dashed line drawn over a solid one shows both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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


def styles(labels: Iterable[str]) -> list[Style]:
    """One style per distinct label: known backends in their fixed order, then others by name."""
    wanted = set(labels)
    known = [style for style in KNOWN if style.label in wanted]
    others = sorted(wanted - {style.label for style in known})
    return known + [
        Style(name, _SPARE_COLOURS[i % 4], _SPARE_DASHES[i % 4], "stroke", "") for i, name in enumerate(others)
    ]
