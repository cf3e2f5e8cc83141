"""What an option is: a dataclass field that carries its meaning, its role, its range and choices.

What the options are for is in `schema.py`, how they get their values in `load.py`.
"""

import dataclasses
import math
import operator
import re
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from enum import Enum
from typing import Any

from ampcompare.errors import UserError, did_you_mean
from ampcompare.plugins import Door

BOUNDS = {
    "low": ("at least", operator.ge),
    "above": ("above", operator.gt),
    "high": ("at most", operator.le),
    "below": ("below", operator.lt),
}
LISTS: dict[Any, tuple[str, str]] = {  # what a list of such is called, and one
    float: ("numbers", "[0.5,0.5,0.5]"),
    int: ("whole numbers", "[3,6,10]"),
    str: ("texts", "[a,b]"),
}
NULL_WORDS = ("none", "null", "~", "")
BOOLS = dict.fromkeys(("true", "yes", "y", "on", "1"), True)
BOOLS |= dict.fromkeys(("false", "no", "n", "off", "0"), False)


class Role(Enum):
    """What an option is to a run. From it follows which runs a report pools and which a run goes on with."""

    RESULT = "shapes the result: runs that differ in it are never taken for one"
    MAY_DIFFER = "sets runs apart in a report, but a run may go on with another value"
    REPEAT = "tells repetitions apart: they are pooled, and a run goes on with the same"
    BOOKKEEPING = "touches no figure: it may differ among runs that are pooled, and when one goes on"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Leaf:
    """One settable option: its dotted key, its type, and what its declaration (`option`) says of it. Of
    `list[int] | None` the type is list, `item` int, and it is `optional`; that of numbers and words is float.
    """

    key: str
    base: type
    item: type | None
    optional: bool
    default: Any
    help: str  # its meaning
    role: Role
    choices: Collection[Any] = ()  # the allowed words; of a number, words allowed beside numbers
    low: float | None = None  # inclusive bounds
    high: float | None = None
    above: float | None = None  # exclusive ones
    below: float | None = None
    pattern: str = ""  # a regular expression for the whole of a text, and what it is in words
    pattern_words: str = "a text"
    # The right word for a wrong one that people write.
    hints: Mapping[str, str] = dataclasses.field(default_factory=dict)
    null_is: Callable[[Callable[[str], Any]], Any] | None = None  # what null comes to, given a look-up
    door: Door | None = None  # lets other people's parts in, by name, beside the choices
    names: bool = False  # a list of names of which the order says nothing, written with commas too

    @property
    def is_tree(self) -> bool:
        """Whether it is a free tree: names and values of somebody else's."""
        return self.base is dict

    @property
    def allowed(self) -> str:
        """What a value may be, in words."""
        words = ", ".join([*map(str, self.choices), *(self.door.names(self.choices) if self.door else ())])
        bounds = " and ".join(f"{says} {bound:g}" for says, bound, _ in self._bounds())
        if self.base in (int, float):
            text = f"{'a whole number' if self.base is int else 'a number'} {bounds}".strip()
            text += f", or {words}" if words else ""
        elif self.base is bool:
            text = "true or false"
        elif self.is_tree:
            text = f"names with values as YAML types them, such as {self.key}.width=64"
        elif self.names:
            text = "names with commas between them, such as layer4.2,*.bn3,fc"
        elif self.base is list:
            noun, such = LISTS[self.item]
            text = f"a list of {noun}{bounds and f', each {bounds}'}, such as {such}"
            text = f"a list of {words}" if words else text
        else:
            text = f"one of {words}" if words else self.pattern_words
        return f"{text}, or null" if self.optional else text

    def _bounds(self) -> list[tuple[str, float, Callable[[Any, Any], bool]]]:
        """In words, as a number, and what holds of a value within."""
        given = ((says, getattr(self, name), holds) for name, (says, holds) in BOUNDS.items())
        return [(says, bound, holds) for says, bound, holds in given if bound is not None]

    def take(self, value: Any, said: Any) -> Any:
        """The option's value from a word, of YAML or of JSON, given as `said`. Raises UserError."""
        try:
            for text in texts(value):
                if "\0" in text:
                    raise self.wrong(said, "a NUL character is in it; ")
                if any("\ud800" <= c <= "\udfff" for c in text):  # how Python holds bytes that are no text
                    raise self.wrong(said, "a byte that is not UTF-8 is in it; ")
            found = self._read(value)
            parts = [] if self.is_tree else found if isinstance(found, list) else [found]
            is_allowed = all(map(self._allows, parts))
        except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
            is_allowed = False
        if not is_allowed:
            raise self.wrong(said)
        return found

    def wrong(self, said: Any, why: str = "") -> UserError:
        """The line for a value that was given as `said`, with the word that was meant where it is known."""
        hint = self.hints.get(str(said).strip().lower())
        near = f"did you mean {hint}?" if hint else ""
        if not hint and isinstance(said, str):
            near = did_you_mean(said.lower(), map(str, self.choices), 0.75)
        return UserError(f"{self.key}={said!r}: {why}expected {self.allowed}{near and '; ' + near}")

    def _read(self, value: Any) -> Any:
        """Raises ValueError and the like for what is not of the type."""
        word = value.strip().lower() if isinstance(value, str) else None
        if self.is_tree:
            return _plain(value)
        if self.optional and (value is None or word in NULL_WORDS):
            return None
        if self.names:
            return listed(value)
        if self.base is list:
            parts = [value] if word and self.choices else value
            if not isinstance(parts, list | tuple):
                raise ValueError
            return [_typed(self.item, part) for part in parts]
        return word if self.base is float and word in self.choices else _typed(self.base, value)

    def _allows(self, part: Any) -> bool:
        if isinstance(part, str):
            is_choice = not self.choices or part in self.choices or (self.door and self.door.takes(part))
            return bool(is_choice and (not self.pattern or re.fullmatch(self.pattern, part)))
        if isinstance(part, bool | None):
            return True
        return math.isfinite(part) and all(holds(part, bound) for _, bound, holds in self._bounds())


def option(default: Any, help: str, **more: Any) -> Any:
    """A dataclass field with its meaning and what it allows, by the names that `Leaf` has for them; its role
    is that of its group, or else RESULT.
    """
    said = {"help": help, **more}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=default.copy, metadata=said)
    return dataclasses.field(default=default, metadata=said)


def group(cls: type, role: Role = Role.RESULT) -> Any:
    """A dataclass field that holds options, with the role of those that say none."""
    return dataclasses.field(default_factory=cls, metadata={"role": role})


def leaves(cls: type, prefix: str = "", role: Role = Role.RESULT) -> Iterator[Leaf]:
    """Every option of a dataclass tree, depth first, in the order of declaration."""
    types_of = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        key, kind = f"{prefix}{field.name}", types_of[field.name]
        said = {"role": role, **field.metadata}
        if dataclasses.is_dataclass(kind):
            yield from leaves(typing.cast(type, kind), f"{key}.", said["role"])
            continue
        members = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
        base = float if float in members else members[0]
        made = field.default_factory
        yield Leaf(
            key=key,
            base=typing.get_origin(base) or base,
            item=next(iter(typing.get_args(base)), None),
            optional=type(None) in members,
            default=field.default if made is dataclasses.MISSING else made(),
            **said,
        )


def _typed(kind: Any, value: Any) -> Any:
    """W&B's sweeps write whole numbers as 1e3 and 1000.0, too."""
    if not isinstance(value, str | bool | int | float) or (isinstance(value, bool) and kind in (int, float)):
        raise ValueError
    if kind is bool:
        return BOOLS[str(value).strip().lower()]
    if isinstance(value, str) and kind is not str:
        try:
            value = int(value)  # exact, however large
        except ValueError:
            value = float(value)
    if kind is int and value != int(value):
        raise ValueError
    return kind(value)


def _plain(value: Any) -> Any:
    """A copy of what JSON can hold, too. Raises ValueError for anything else."""
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, str | bool | int | float | None):
        return value
    raise ValueError


def texts(value: Any) -> Iterator[str]:
    """Every text in a value, names too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from texts([*value.keys(), *value.values()])
    elif isinstance(value, list | tuple):
        for part in value:
            yield from texts(part)


def listed(value: Any) -> list[str] | None:
    """The names in a text with commas between them, or in a list; each once, None of none at all.

    No YAML, to which a star is an alias; a text may be a list as Python or JSON write it. A whole number is a
    name (of `nn.Sequential`). Raises ValueError for what holds anything else: 1.10 is the number 1.1 by then.

    >>> listed("layer4.2, *.bn3,fc"), listed(["*.bn3", 0]), listed("['a', 'b']"), listed("[a,b]")
    (['layer4.2', '*.bn3', 'fc'], ['*.bn3', '0'], ['a', 'b'], ['a', 'b'])
    """
    if isinstance(value, str):
        value = re.sub(r"^\[(.*)\]$", r"\1", value.strip())
    found: list[str] = []
    for part in value if isinstance(value, list | tuple) else [] if value is None else [value]:
        if isinstance(part, bool) or not isinstance(part, str | int):
            raise ValueError(f"{part!r} is no name")
        found += [name for piece in str(part).split(",") if (name := piece.strip().strip("'\""))]
    return list(dict.fromkeys(found)) or None
