"""The colour and dash of each backend, the same in every chart and table.

Colours are from Okabe and Ito's set for colour-blind readers (Color Universal Design, 2008), with grey for
the baseline; all stand out on white and on near-black. Dashes tell lines apart where they lie on each other:
a dashed line drawn over a solid one shows both.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import cycle

from ampcompare.analysis.analysis import Analysis
from ampcompare.analysis.grouping.backend_info import order_backends
from ampcompare.analysis.grouping.groups import Kind

Pen = tuple[str, tuple[int, ...]]  # colour and dash
SOLID: tuple[int, ...] = (1, 0)


@dataclass(frozen=True)
class Style:
    """The colour and the dash of one label.

    Attributes:
        dash: Pixels on and off, in turn.
    """

    label: str
    colour: str
    dash: tuple[int, ...]


# Pens of the built-in backends by label; what is not in here takes a spare one. Those beyond Okabe and Ito's
# were chosen by the least difference to any other (CIE L*a*b*, also as seen without red or green cones, by
# Machado 2009): 18; that among the others is 11.
_PENS: dict[str, Pen] = {
    "none": ("#767c88", SOLID),
    "tf32": ("#17a2a2", (6, 2)),
    "native": ("#0072b2", SOLID),
    "native_bf16": ("#56b4e9", (9, 3)),
    "apex_o1": ("#d55e00", (5, 4)),
    "apex_o1_bf16": ("#e69f00", (4, 2)),
    "apex_o2": ("#009e73", (2, 3)),
    "fp16": ("#cc79a7", (8, 3, 2, 3)),
    "bf16": ("#5f3dc4", (12, 4)),
    "bf16_sr": ("#a83232", (3, 2, 1, 2)),
}
_SPARE_PENS: tuple[Pen, ...] = (
    ("#b8a500", (1, 2)),
    ("#7a5195", (10, 3)),
    ("#8c564b", (6, 2, 1, 2)),
)
CONTROL_DASHES: Mapping[Kind, tuple[int, ...]] = {Kind.AA: (3, 3), Kind.CHAOS: (1, 3)}


def styles_of(analysis: Analysis) -> Mapping[str, Style]:
    """Return the style of each group's label."""
    return choose_styles((group.display_name, group.base_value, group.kind) for group in analysis.groups)


def choose_styles(labels: Iterable[tuple[str, str, Kind]]) -> dict[str, Style]:
    """Return the style of each label, given with the compared value and the kind of its group.

    The value decides the colour. Dashes distinguish labels with the same value. Values that are no built-in
    backend take spare pens in their order.
    """
    labels = list(dict.fromkeys(labels))
    values = order_backends(value for _, value, _ in labels)
    unused = [(colour, SOLID) for value, (colour, _) in _PENS.items() if value not in values]
    others = [value for value in values if value not in _PENS]
    pens = _PENS | dict(zip(others, cycle([*_SPARE_PENS, *unused]), strict=False))
    uses: Counter[tuple[str, Kind]] = Counter()
    styles = {}
    for label, value, kind in labels:
        colour, dash = pens[value]
        dash = CONTROL_DASHES.get(kind, dash)
        used = uses[value, kind]
        if used:  # another label has this value
            _, dash = _SPARE_PENS[(used - 1) % len(_SPARE_PENS)]
        uses[value, kind] += 1
        styles[label] = Style(label, colour, dash)
    return styles
