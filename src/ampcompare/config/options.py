"""Typed options: dataclass fields that carry meaning, range and choices, filled from plain values.

Nothing here knows what the options are for. `config.py` declares the tree; this module turns YAML values and
`key=value` words into it and says in one line what is wrong with a value.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from ampcompare.errors import UserError
from ampcompare.plugins import Door

NONE_WORDS = ("none", "null", "~", "")
TRUE_WORDS = ("true", "yes", "on")
FALSE_WORDS = ("false", "no", "off")


def option(
    default: Any,
    help: str,
    *,
    choices: Collection[Any] = (),
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    pattern: str | None = None,
    pattern_words: str = "a text",
    hints: Mapping[str, str] | None = None,
    door: Door | None = None,
) -> Any:
    """A dataclass field with its meaning and what it allows.

    `choices` are the allowed words (for a number field, words allowed beside numbers); `low`/`high` are
    inclusive bounds, `above`/`below` exclusive ones; `pattern` is a regular expression for the whole of a
    text, said to people as `pattern_words`; `hints` maps a wrong word that people write to the right one;
    `door` lets other people's parts in, by name, beside the choices.
    """
    metadata = {
        "help": help,
        "choices": choices,
        "low": low,
        "high": high,
        "above": above,
        "below": below,
        "pattern": pattern,
        "pattern_words": pattern_words,
        "hints": hints or {},
        "door": door,
    }
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One settable option of a tree: its dotted key, its type and what it allows."""

    key: str
    type: Any
    default: Any
    meta: Mapping[str, Any]

    @property
    def optional(self) -> bool:
        return type(None) in typing.get_args(self.type)

    @property
    def base(self) -> Any:
        """The type without None; a union of number and word counts as the number."""
        members = [t for t in typing.get_args(self.type) if t is not type(None)]
        if not isinstance(self.type, types.UnionType):
            return self.type
        return next((t for t in members if t in (float, int)), members[0])

    @property
    def allowed(self) -> str:
        """What a value may be, in words."""
        meta, base = self.meta, self.base
        if self.type is type(None):
            return "null"
        others = meta["door"].names(meta["choices"]) if meta["door"] else ()
        words = ", ".join([*map(str, meta["choices"]), *others])
        if base in (int, float):
            noun = "a whole number" if base is int else "a number"
            bounds = [
                (meta["low"], "at least"),
                (meta["above"], "above"),
                (meta["high"], "at most"),
                (meta["below"], "below"),
            ]
            said = " and ".join(f"{text} {value:g}" for value, text in bounds if value is not None)
            text = f"{noun} {said}".strip() + (f", or {words}" if words else "")
        elif base is bool:
            text = "true or false"
        elif typing.get_origin(base) is list:
            item = "numbers" if typing.get_args(base)[0] is float else "texts"
            text = f"a list of {item}, such as {'[0.5,0.5,0.5]' if item == 'numbers' else '[a,b]'}"
        elif words:
            text = f"one of {words}"
        else:
            text = meta["pattern_words"]
        return f"{text}, or null" if self.optional else text


def leaves(tree: Any, prefix: str = "") -> Iterator[Leaf]:
    """Every option of a dataclass tree (class or instance), depth first, in the order of declaration."""
    cls = tree if isinstance(tree, type) else type(tree)
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        key = f"{prefix}{field.name}"
        if dataclasses.is_dataclass(hints[field.name]):
            yield from leaves(hints[field.name], f"{key}.")
            continue
        default = field.default
        if default is dataclasses.MISSING:
            assert field.default_factory is not dataclasses.MISSING
            default = field.default_factory()
        yield Leaf(key, hints[field.name], default, field.metadata)


def groups(tree: Any) -> set[str]:
    """The keys that hold options rather than a value, such as `optimizer`."""
    return {leaf.key.rpartition(".")[0] for leaf in leaves(tree)} - {""}


def convert(leaf: Leaf, value: Any, shown: str | None = None) -> Any:
    """The value as the option's type.

    Texts of numbers, true/false and null are understood as YAML and `str()` write them (`1e-05`, `True`,
    `None`).
    Raises UserError with key, value, what is allowed and, where it is known, the word that was meant.
    """

    def wrong(why: str = "") -> UserError:
        said = value if shown is None else shown
        hint = leaf.meta["hints"].get(str(said).strip().lower()) if leaf.meta["hints"] else None
        if hint is None and isinstance(said, str) and leaf.meta["choices"]:
            near = get_close_matches(said.lower(), [str(c) for c in leaf.meta["choices"]], 1, 0.75)
            hint = near[0] if near else None
        tail = f"; did you mean {hint}?" if hint else ""
        return UserError(f"{leaf.key}={said!r}: {why}expected {leaf.allowed}{tail}")

    meta, base = leaf.meta, leaf.base
    word = value.strip().lower() if isinstance(value, str) else None
    if leaf.type is type(None):
        if value is None or word in NONE_WORDS:
            return None
        raise wrong()
    if value is None or (word in NONE_WORDS and leaf.optional):
        if leaf.optional:
            return None
        # `backend: none` is a word in YAML but `backend: null` and `wandb.mode: ` are not values at all.
        raise wrong()
    if base is bool:
        if isinstance(value, bool):
            return value
        if word in TRUE_WORDS or word in FALSE_WORDS:
            return word in TRUE_WORDS
        raise wrong()
    if base in (int, float):
        if word is not None and word in meta["choices"]:
            return word
        number = _number(value, base)
        if number is None:
            raise wrong()
        low, high, above, below = (meta[name] for name in ("low", "high", "above", "below"))
        outside = (
            (low is not None and number < low)
            or (high is not None and number > high)
            or (above is not None and number <= above)
            or (below is not None and number >= below)
        )
        if outside or not math.isfinite(number):
            raise wrong()
        return number
    if typing.get_origin(base) is list:
        item = typing.get_args(base)[0]
        if not isinstance(value, list | tuple):
            raise wrong()
        if item is float:
            numbers = [_number(v, float) for v in value]
            if any(n is None or not math.isfinite(n) for n in numbers):
                raise wrong()
            return numbers
        if any(isinstance(v, list | tuple | dict) or v is None for v in value):
            raise wrong()
        return [str(v) for v in value]
    if isinstance(value, list | tuple | dict):
        raise wrong()
    text = str(value)
    if meta["choices"] and text not in meta["choices"] and not (meta["door"] and meta["door"].takes(text)):
        raise wrong()
    if meta["pattern"] and not re.fullmatch(meta["pattern"], text):
        raise wrong()
    if "\0" in text:
        raise wrong("a NUL character is in it; ")
    if not text.isascii() and any(
        "\ud800" <= c <= "\udfff" for c in text
    ):  # how Python holds bytes that are no text
        raise wrong("a byte that is not UTF-8 is in it; ")
    return text


def _number(value: Any, base: type) -> float | int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        if "_" in value:  # Python reads 1_000 as a number, YAML does not
            return None
        try:
            value = int(value)  # exact, however large
        except ValueError:
            try:
                value = float(value)
            except ValueError:
                return None
    if not isinstance(value, int | float):
        return None
    if base is int:
        # 1e3 and 1000.0 are whole numbers too: YAML and W&B sweeps write integers so.
        return int(value) if math.isfinite(value) and value == int(value) else None
    try:
        return float(value)
    except OverflowError:
        return None


def build(cls: type, values: Mapping[str, Any]) -> Any:
    """The dataclass tree from a flat mapping of dotted keys to converted values, defaults for the others."""
    hints = typing.get_type_hints(cls)
    kwargs = {}
    for field in dataclasses.fields(cls):
        if dataclasses.is_dataclass(hints[field.name]):
            prefix = f"{field.name}."
            inner = {k[len(prefix) :]: v for k, v in values.items() if k.startswith(prefix)}
            kwargs[field.name] = build(typing.cast(type, hints[field.name]), inner)
        elif field.name in values:
            kwargs[field.name] = values[field.name]
    return cls(**kwargs)


def describe(cls: type) -> str:
    """The help text: every option with meaning, default and allowed values, one block each."""
    lines = []
    for leaf in leaves(cls):
        default = "null" if leaf.default is None else str(leaf.default).lower()
        if not isinstance(leaf.default, bool | type(None)):
            default = str(leaf.default)
        lines.append(f"  {leaf.key}={default}")
        lines.append(f"      {leaf.meta['help']} ({leaf.allowed})")
    return "\n".join(lines)
