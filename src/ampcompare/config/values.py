"""Given values as a typed dataclass tree. OmegaConf's structured configs hold the types, resolve `${key}` and
know what is missing (`???`); `options.py` says what else a value has to be.

Two things of OmegaConf are not used. Its dotlist reads every word as YAML, and a name such as `a: [b] #c` has
to arrive as it was typed. Its resolvers are refused: `${oc.env:WANDB_API_KEY}` in a stranger's config would
put a secret into the record.
"""

from __future__ import annotations

import copy
import re
import typing
from functools import cache
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException, ValidationError

from ampcompare.config.names import listed
from ampcompare.config.options import Leaf
from ampcompare.config.trees import Tree, grow, leaves
from ampcompare.errors import UserError, reason

NONE_WORDS = ("none", "null", "~", "")
TRUTH = dict.fromkeys(("true", "yes", "on"), True) | dict.fromkeys(("false", "no", "off"), False)
MISSING = "???"
REFERENCE = re.compile(r"(?<!\\)\$\{\w+(\.\w+)*\}")  # all that is taken of OmegaConf's grammar

_defaults = cache(OmegaConf.structured)  # 13 ms; a copy of it takes 2


class Values:
    """The options of a dataclass, or with the values of an instance, as they are set one by one."""

    def __init__(self, base: Any) -> None:
        self.tree = copy.deepcopy(_defaults(base)) if isinstance(base, type) else OmegaConf.structured(base)
        self._open: dict[str, tuple[Leaf, Any]] = {}
        self._trees: dict[str, Tree] = {}

    def put(self, leaf: Leaf, value: Any, path: str = "") -> list[str]:
        """Set an option, or what lies at a path in a free tree; returns the keys that were set.

        Raises UserError with key, value, what is allowed and what may have been meant.
        """
        if leaf.is_tree:
            return self._grow(leaf, path, value)
        if "${" in REFERENCE.sub("", str(value)):
            raise _no_reference(leaf.key, value)
        try:
            OmegaConf.update(self.tree, leaf.key, _readable(leaf, value), merge=False)
        except (OmegaConfBaseException, ValueError, OverflowError):
            raise leaf.wrong(value) from None
        self._open.pop(leaf.key, None)
        if any(map(_is_open, value if isinstance(value, list | tuple) else [value])):
            self._open[leaf.key] = leaf, value
        else:
            leaf.check(self._value(leaf.key), value)
        return [leaf.key]

    def _grow(self, leaf: Leaf, path: str, value: Any) -> list[str]:
        if leaf.key not in self._trees:
            there: Any = OmegaConf.to_container(OmegaConf.select(self.tree, leaf.key))
            self._trees[leaf.key] = there
        keys = grow(self._trees[leaf.key], leaf.key, path, value)
        for key, text in leaves(f"{leaf.key}.{path}" if path else leaf.key, value):
            if isinstance(text, str) and ("${" in REFERENCE.sub("", text) or text.endswith(rf"\{MISSING}")):
                raise _no_reference(key, text)
        self._open[leaf.key] = leaf, self._trees[leaf.key]
        return keys

    def finished(self) -> Any:
        """The dataclass instance, with every `${key}` resolved. Raises UserError where one cannot be."""
        for key, tree in self._trees.items():
            OmegaConf.update(self.tree, key, tree, merge=False)
        missing_first = sorted(self._open.values(), key=lambda entry: "${" in str(entry[1]))
        for leaf, given in missing_first:
            try:
                value = self._value(leaf.key)
                if leaf.is_tree:
                    grow({}, leaf.key, "", value)  # what a reference brought into it
                    continue
                if typing.get_args(leaf.base) and not isinstance(value, list):  # OmegaConf 2.3 lets it pass
                    raise ValidationError
                leaf.check(value, given)
            except MissingMandatoryValue:
                if leaf.is_tree:
                    found = (key for key, value in leaves(leaf.key, given) if value == MISSING)
                    missing = next(found, leaf.key)
                    raise UserError(f"{missing}={MISSING}: has to be given; say what it is") from None
                raise UserError(f"{leaf.key}={given}: has to be given; expected {leaf.allowed}") from None
            except ValidationError:
                raise leaf.wrong(given) from None
            except (OmegaConfBaseException, RecursionError) as problem:
                raise UserError(f"{leaf.key}={given!r}: {reason(problem)}; write the value out") from None
        return OmegaConf.to_object(self.tree)

    def _value(self, key: str) -> Any:
        value = OmegaConf.select(self.tree, key, throw_on_missing=True)
        is_list = OmegaConf.is_config(value)
        return OmegaConf.to_container(value, resolve=True, throw_on_missing=True) if is_list else value


def _no_reference(key: str, value: Any) -> UserError:
    what = "of ${...} only another option's key is understood, such as ${backend}"
    return UserError(f"{key}={value!r}: {what}")


def _is_open(value: Any) -> bool:
    """Whether what it comes to is known only when all else is."""
    return isinstance(value, str) and ("${" in value or value == MISSING)


def _readable(leaf: Leaf, value: Any) -> Any:
    """The value in a form that OmegaConf's typed nodes read as we do. Raises ValueError, OverflowError.

    Left to them they take 2 and `y` for true, 1_000 for a number and a list for one of the texts in a list;
    they refuse 1e3 and 1000.0, as YAML and W&B's sweeps write whole numbers, a number for `float | str`, and
    `None` as W&B's agent writes it.
    """
    word = value.strip().lower() if isinstance(value, str) else None
    if word in NONE_WORDS and leaf.optional:
        return None
    if word in leaf.meta["choices"] and leaf.base is float:
        return word
    if leaf.meta["names"] and not _is_open(value):
        return listed(value)
    parts = typing.get_args(leaf.base)
    if parts and leaf.meta["choices"] and isinstance(value, str) and not _is_open(value):
        value = [value]  # a word of a list of words
    if parts and isinstance(value, list | tuple):
        return [_scalar(parts[0], part) for part in value]
    return _scalar(leaf.base, value)


def _scalar(base: Any, value: Any) -> Any:
    is_escaped = str(value).endswith(r"\???")  # which OmegaConf reads as a ??? that is none
    if is_escaped or isinstance(value, list | tuple | dict):
        raise ValueError
    if value is None or _is_open(value):
        return value
    if base is bool:
        found = TRUTH.get(value.strip().lower()) if isinstance(value, str) else value
        if not isinstance(found, bool):
            raise ValueError
        return found
    if base in (int, float) and isinstance(value, str):
        value = _number(value)
    if base is int and isinstance(value, float) and value.is_integer():
        return int(value)
    return float(value) if base is float and type(value) is int else value


def _number(text: str) -> float:
    if "_" in text:  # Python reads 1_000 as a number
        raise ValueError
    try:
        return int(text)  # exact, however large
    except ValueError:
        return float(text)
