"""How an option is declared: a dataclass field whose metadata has its help, range, choices and role.

`schema.py` declares the options as an OmegaConf structured config, `compose.py` merges values into it.
"""

import dataclasses
import math
import operator
import re
import types
import typing
from ast import literal_eval
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from typing import Any

from ampcompare.errors import UserError, did_you_mean
from ampcompare.plugins import PluginKind

BOUNDS = {
    "minimum": ("at least", operator.ge),
    "above": ("above", operator.gt),
    "maximum": ("at most", operator.le),
    "below": ("below", operator.lt),
}
LISTS: dict[Any, tuple[str, str]] = {  # the name of a list of such items, and an example
    float: ("numbers", "[0.5,0.5,0.5]"),
    int: ("whole numbers", "[3,6,10]"),
    str: ("texts", "[a,b]"),
}
NULL_WORDS = ("none", "null", "~", "")
BOOLS = dict.fromkeys(("true", "yes", "y", "on", "1"), True)
BOOLS |= dict.fromkeys(("false", "no", "n", "off", "0"), False)
MISSING = "???"  # OmegaConf's marker for a value that another source has to give
REFERENCE = re.compile(r"(?<!\\)\$\{(\w+(?:\.\w+)*)\}")  # to another option: the one allowed interpolation


class Role(Enum):
    """What an option, or a recorded fact, is for a training.

    `identity/agreement.py` says for each purpose (to resume a run, to pool repeats, ...) which roles must be
    equal.
    """

    NETWORK = "the network: its name and its arguments"
    DATA = "the samples that are trained on"
    PRECISION = "the backend and its options: what is compared"
    MATHEMATICS = "what else a step computes, such as the loss, the optimizer and clipping"
    HYPERPARAMETER = "what decides the result but not the work of a step, such as the learning rate"
    EXECUTION = "how a step is executed; it may change the last bits of the result"
    MEASUREMENT = "what is evaluated and logged, and how often"
    SEED = "what distinguishes repeats"
    SESSION = "where and how long a part of a run trains; it changes no number of a step"
    CODE = "the text of files that a user brings, and what they build"
    MACHINE = "hardware, software, and the numerics in effect on them"
    PRESENTATION = "names, folders, plans and checkpoints: no part of the training"


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptionSpec:
    """One option: its dotted key, its type, and the metadata of its field.

    Attributes:
        key: The dotted key, such as `optimizer.lr`.
        type: int, float, bool, str, list or dict; float for `float | str`.
        item: The type of a list's items.
        optional: Whether null is allowed.
        default: The value without any source.
        help: What the option does.
        role: What it is for a training.
        choices: The allowed words; for a number, words that are allowed beside numbers.
        minimum, maximum: Inclusive bounds.
        above, below: Exclusive bounds.
        pattern: A regular expression for the whole text.
        pattern_help: The same in words.
        hints: The right word for a wrong one that people write.
        null_means: What null stands for, given a look-up of other options.
        plugin: The kind of plug-in that is allowed by name, beside the choices.
        is_set: Whether the order of the list's items has no meaning, as of names of modules.
    """

    key: str
    type: type
    item: Any
    optional: bool
    default: Any
    help: str
    role: Role
    choices: Collection[Any] = ()
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None
    pattern: str = ""
    pattern_help: str = "a text"
    hints: Mapping[str, str] = dataclasses.field(default_factory=dict)
    null_means: Callable[[Callable[[str], Any]], Any] | None = None
    plugin: PluginKind | None = None
    is_set: bool = False

    @property
    def is_free_form(self) -> bool:
        """Return whether the option is a mapping with any keys, such as arguments of a function."""
        return self.type is dict

    @property
    def allowed(self) -> str:
        """The allowed values in words."""
        values = self._describe_values()
        return f"{values}, or null" if self.optional else values

    def _describe_values(self) -> str:
        """Return the allowed values other than null in words."""
        names = self.plugin.list_names() if self.plugin else ()
        choices = ", ".join([*map(str, self.choices), *names])
        bounds = " and ".join(f"{phrase} {bound}" for phrase, bound, _ in self._bounds())
        if self.type in (int, float):
            kind = "a whole number" if self.type is int else "a number"
            numbers = f"{kind} {bounds}" if bounds else kind
            return f"{numbers}, or {choices}" if choices else numbers
        if self.type is bool:
            return "true or false"
        if self.is_free_form:
            return f"names with values as YAML types them, such as {self.key}.width=64"
        if self.is_set:
            return "names with commas between them, such as layer4.2,*.bn3,fc"
        if self.type is list and choices:
            return f"a list of {choices}"
        if self.type is list:
            noun, example = LISTS[self.item]
            items = f"{noun}, each {bounds}" if bounds else noun
            return f"a list of {items}, such as {example}"
        return f"one of {choices}" if choices else self.pattern_help

    def _bounds(self) -> list[tuple[str, float, Callable[[Any, Any], bool]]]:
        bounds = ((phrase, getattr(self, name), holds) for name, (phrase, holds) in BOUNDS.items())
        return [(phrase, bound, holds) for phrase, bound, holds in bounds if bound is not None]

    def convert(self, value: Any) -> Any:
        """Return a word, or a value of a file, in the type of the option.

        W&B's sweeps write `1e3` for 1000 and `None` for null, which OmegaConf would refuse. A text that
        refers to another option (`${seed}`) or is MISSING stays as it is: OmegaConf resolves it.

        Raises:
            UserError: The value cannot be converted.
        """
        try:
            return self._convert(value)
        except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
            raise self.error(value) from None

    def _convert(self, value: Any) -> Any:
        if self.is_free_form:
            if not isinstance(value, Mapping):
                raise ValueError
            return _plain(value)
        word = value.strip().lower() if isinstance(value, str) else None
        if self.optional and (value is None or word in NULL_WORDS):
            return None
        if self.type is list:
            return self._convert_list(value)
        if self.type is float and word in self.choices:
            return word
        return _scalar(self.type, value)

    def _convert_list(self, value: Any) -> Any:
        if isinstance(value, str):
            word = value.strip().lower()
            if word == MISSING or REFERENCE.fullmatch(word):
                return value.strip()
            if word in NULL_WORDS:
                raise ValueError
            value = split_list(value)
        values = value if isinstance(value, list | tuple) else [value]
        items = [_scalar(self.item, item) for item in values]
        if not self.is_set:
            return items
        if any(isinstance(item, bool | float) for item in values):  # the module 1.10 would be 1.1
            raise ValueError
        return [*dict.fromkeys(items)] or None

    def check(self, value: Any, original: Any) -> None:
        """Raise UserError if a converted value is not allowed by the metadata; `original` is shown."""
        if self.is_free_form:
            return
        items = value if isinstance(value, list) else [value]
        if not all(map(self._is_allowed, items)):
            raise self.error(original)

    def _is_allowed(self, item: Any) -> bool:
        if isinstance(item, bool | None):
            return True
        if isinstance(item, str):
            if self.pattern and not re.fullmatch(self.pattern, item):
                return False
            if not self.choices or item in self.choices:
                return True
            return self.plugin is not None and self.plugin.accepts(item)
        if isinstance(item, float) and not math.isfinite(item):
            return False
        return all(holds(item, bound) for _, bound, holds in self._bounds())

    def error(self, value: Any, why: str = "") -> UserError:
        """Return the one-line error for a value, with the word that was meant if it is known.

        Args:
            value: As the user gave it.
            why: What is wrong apart from the allowed values, with `; ` at the end; "" for nothing.
        """
        message = f"{self.key}={value!r}: {why}expected {self.allowed}"
        suggestion = self._suggest(value)
        return UserError(f"{message}; {suggestion}" if suggestion else message)

    def _suggest(self, value: Any) -> str:
        """Return what may have been meant by a wrong value, "" if that is not known."""
        if self.plugin and isinstance(value, str) and value.endswith(".py"):
            return f"name a function or class in the file: {self.key}={value}:NAME"
        hint = self.hints.get(str(value).strip().lower())
        if hint:
            return f"did you mean {hint}?"
        if not isinstance(value, str):
            return ""
        if "," in value and self.type is not list:
            return "a run takes one value; to compare several values, use ampcompare sweep"
        return did_you_mean(value.lower(), map(str, self.choices), 0.75)


def option(default: Any, help: str, **metadata: Any) -> Any:
    """Return a dataclass field for an option.

    Args:
        default: The value without any source. A list or a mapping is copied.
        help: What the option does, as sentences.
        metadata: Attributes of `OptionSpec`. An option needs a role, unless its group has one.
    """
    metadata = {"help": help, **metadata}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def group(cls: type, role: Role | None = None) -> Any:
    """Return a dataclass field for a group of options; `role` is that of options without their own."""
    return dataclasses.field(default_factory=cls, metadata={"role": role})


def option_specs(cls: type, prefix: str = "", role: Role | None = None) -> Iterator[OptionSpec]:
    """Yield the options of a dataclass and its groups, depth first, in the order of declaration.

    Raises:
        TypeError: An option has no role, and neither has its group.
    """
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        key = f"{prefix}{field.name}"
        hint = hints[field.name]
        metadata = {"role": role, **field.metadata}
        if dataclasses.is_dataclass(hint):
            yield from option_specs(typing.cast(type, hint), f"{key}.", metadata["role"])
            continue
        if metadata["role"] is None:
            raise TypeError(f"{key}: the option has no role; declare it with option(..., role=Role....)")
        members = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        base = float if float in members else members[0]
        factory = field.default_factory
        yield OptionSpec(
            key=key,
            type=typing.get_origin(base) or base,
            item=next(iter(typing.get_args(base)), None),
            optional=type(None) in members,
            default=field.default if factory is dataclasses.MISSING else factory(),
            **metadata,
        )


def split_list(text: str) -> list[str] | None:
    """Return the items of a list in a text: with commas, in brackets or not, quoted or not. None: no list.

    YAML is not used: it takes the star of `*.bn3` for an alias, and 1.10 for 1.1.

    >>> split_list("layer4.2, *.bn3"), split_list("[a,1.10]"), split_list("['a', 'b, c']")
    (['layer4.2', '*.bn3'], ['a', '1.10'], ['a', 'b, c'])
    """
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            items = list(literal_eval(text))
            if all(isinstance(item, str) for item in items):
                return items
        text = text[1:-1]
    parts = [part.strip().strip("'\"") for part in text.split(",")]
    items = [part for part in parts if part]
    for item in items:
        if item.startswith("{") or item.count("[") != item.count("]"):
            return None
    return items


def _scalar(kind: Any, value: Any) -> Any:
    if not isinstance(value, str | bool | int | float):
        raise ValueError
    if isinstance(value, bool) and kind in (int, float):
        raise ValueError
    if isinstance(value, str) and (kind is str or value == MISSING or "${" in value):
        return value
    if kind is bool:
        return BOOLS[str(value).strip().lower()]
    if isinstance(value, str):
        try:
            value = int(value)  # exact, however large
        except ValueError:
            value = float(value)
    if kind is int and value != int(value):
        raise ValueError
    return kind(value)


def _plain(value: Any) -> Any:
    """Return a copy of what JSON can hold, too. Raises ValueError for anything else."""
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, str | bool | int | float | None):
        return value
    raise ValueError
