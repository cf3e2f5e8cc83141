"""How each backend looks, the same in every chart, card and table.

Colours are from Okabe and Ito's set for colour-blind readers (Color Universal Design, 2008), with grey for
the baseline; all stand out on white and on near-black. Dashes and markers tell lines apart where they lie on
each other: a dashed line drawn over a solid one shows both.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ampcompare.precision.backends import REGISTRY, Backend

SOLID: tuple[int, ...] = (1, 0)
# As paths, beside Vega's own symbols: of these a stroke is none, and others are not told from a triangle.
HOURGLASS, BOW = "M-1,-1L1,-1L-1,1L1,1Z", "M-1,-1L-1,1L1,-1L1,1Z"


@dataclass(frozen=True)
class Style:
    """Look and meaning of one backend; `dash` in pixels on and off, `marker` a Vega symbol or its path."""

    label: str
    colour: str
    dash: tuple[int, ...]
    marker: str
    meaning: str


@dataclass(frozen=True)
class Chip:
    """What is known of a group's quality, in one word, a sign and (ground, ink) on light and on dark paper.

    The grounds differ in lightness by 12 at least (CIE L*), so that they do in greyscale too.
    """

    word: str
    sign: str
    light: tuple[str, str]
    dark: tuple[str, str]


# By the name that a comparison gives; its `chip` is empty where nothing is to be said.
CHIPS = {
    "failed": Chip("failed", "✕", ("#1c2330", "#ffffff"), ("#f4f5f7", "#1c2330")),
    "lower": Chip("lower", "▼", ("#b3261e", "#ffffff"), ("#f0796d", "#1b2029")),
    "higher": Chip("higher", "▲", ("#5c9bd1", "#10151d"), ("#2d6fb3", "#ffffff")),
    "equivalent": Chip("equivalent", "=", ("#a9dfc0", "#10151d"), ("#1d5a3f", "#ffffff")),
    "undecided": Chip("undecided", "?", ("#ffffff", "#1c2330"), ("#1b2029", "#e6e8ec")),
}

# Looks of the built-in backends by label, with the type where that is not their own; what is not in here
# takes a spare one. Those beyond Okabe and Ito's were chosen by the least difference to any other (CIE
# L*a*b*, also as seen without red or green cones, by Machado 2009): 18; that among the others is 11.
_LOOKS: dict[str, tuple[str, tuple[int, ...], str]] = {
    "none": ("#767c88", SOLID, "circle"),
    "native": ("#0072b2", SOLID, "square"),
    "native_bf16": ("#56b4e9", (9, 3), "diamond"),
    "apex_o1": ("#d55e00", (5, 4), "triangle-up"),
    "apex_o1_bf16": ("#e69f00", (4, 2), "triangle-right"),
    "apex_o2": ("#009e73", (2, 3), "triangle-down"),
    "fp16": ("#cc79a7", (8, 3, 2, 3), "cross"),
    "bf16": ("#5f3dc4", (12, 4), HOURGLASS),
    "bf16_sr": ("#a83232", (3, 2, 1, 2), "triangle-left"),
}
_SPARE_LOOKS: tuple[tuple[str, tuple[int, ...], str], ...] = (
    ("#17a2a2", (4, 2, 2, 2), "wedge"),
    ("#b8a500", (1, 2), "triangle-left"),
    ("#7a5195", (10, 3), BOW),
    ("#8c564b", (6, 2, 1, 2), "square"),
)
AGAIN = " again (A/A)"  # ends the name of the baseline's control: it has the baseline's colour
AGAIN_DASH: tuple[int, ...] = (3, 3)
SHORT = {"float16": "fp16", "bfloat16": "bf16"}


def in_type(words: str, dtype: str) -> str:
    """`torch.amp, fp16`: the words of a backend and the type, unless they say it."""
    short = SHORT.get(dtype, dtype)
    return words if short in words else f"{words}, {short}"


def meaning(backend: Backend) -> str:
    """What a backend is: `apex O1, fp16`, `apex O1 lists in bf16`."""
    return backend.words if backend.is_fp32 else in_type(backend.words, backend.dtype)


KNOWN = tuple(Style(label, *_LOOKS[label], meaning(backend)) for label, backend in REGISTRY.items())


def ordered(values: Iterable[str]) -> list[str]:
    """Each value once: known backends in their fixed order, then others by name, numbers by size."""
    wanted = set(values)
    known = [style.label for style in KNOWN if style.label in wanted]
    return known + sorted(wanted - set(known), key=_by_size)


def styles(labels: Iterable[tuple[str, str]], words: Mapping[str, str] | None = None) -> list[Style]:
    """One style per (label, value): the value has the colour, the dashes tell labels of one value apart.

    A value that is not known takes a look by its name, so that it has the same in every report, as long as no
    other has taken it before. `words` are the meanings of such values.
    """
    pairs = list(dict.fromkeys(labels))
    values = ordered(value.removesuffix(AGAIN) for _, value in pairs)
    known = {style.label: style for style in KNOWN}
    spare = len(_SPARE_LOOKS)
    free = [*_SPARE_LOOKS, *((s.colour, SOLID, BOW) for s in KNOWN if s.label not in values)]
    others = [value for value in values if value not in known]
    base, taken = dict(known), set()
    for number, value in enumerate(others):
        first = zlib.crc32(value.encode("utf-8", "replace")) % spare
        places = [*((first + i) % spare for i in range(spare)), *range(spare, len(free))]
        place = next((p for p in places if p not in taken), number % len(free))
        taken.add(place)
        base[value] = Style(value, *free[place], (words or {}).get(value, ""))
    seen: dict[str, int] = {}
    found = []
    for label, value in pairs:
        nth = seen[value] = seen.get(value, -1) + 1
        style = base[value.removesuffix(AGAIN)]
        own = AGAIN_DASH if value.endswith(AGAIN) else style.dash
        dash = own if nth == 0 else _SPARE_LOOKS[(nth - 1) % spare][1]
        found.append(replace(style, label=label, dash=dash))
    return found


def _by_size(value: str) -> tuple[int, float, str]:
    try:
        return (0, float(value), value)
    except ValueError:
        return (1, 0.0, value)
