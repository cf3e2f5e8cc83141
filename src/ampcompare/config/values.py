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

from ampcompare.config.options import Leaf
from ampcompare.errors import UserError

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

    def put(self, leaf: Leaf, value: Any) -> None:
        """Set an option. Raises UserError with key, value, what is allowed and what may have been meant."""
        if "${" in REFERENCE.sub("", str(value)):
            what = "of ${...} only another option's key is understood, such as ${backend}"
            raise UserError(f"{leaf.key}={value!r}: {what}")
        try:
            OmegaConf.update(self.tree, leaf.key, _readable(leaf, value), merge=False)
        except (OmegaConfBaseException, ValueError, OverflowError):
            raise leaf.wrong(value) from None
        self._open.pop(leaf.key, None)
        if any(map(_is_open, value if isinstance(value, list | tuple) else [value])):
            self._open[leaf.key] = leaf, value
        else:
            leaf.check(self._value(leaf.key), value)

    def finished(self) -> Any:
        """The dataclass instance, with every `${key}` resolved. Raises UserError where one cannot be."""
        missing_first = sorted(self._open.values(), key=lambda entry: "${" in str(entry[1]))
        for leaf, given in missing_first:
            try:
                leaf.check(self._value(leaf.key), given)
            except MissingMandatoryValue:
                raise UserError(f"{leaf.key}={given}: has to be given; expected {leaf.allowed}") from None
            except ValidationError:
                raise leaf.wrong(given) from None
            except (OmegaConfBaseException, RecursionError) as problem:
                reason = str(problem).partition("\n")[0]
                raise UserError(f"{leaf.key}={given!r}: {reason}; write the value out") from None
        return OmegaConf.to_object(self.tree)

    def _value(self, key: str) -> Any:
        value = OmegaConf.select(self.tree, key, throw_on_missing=True)
        is_list = OmegaConf.is_config(value)
        return OmegaConf.to_container(value, resolve=True, throw_on_missing=True) if is_list else value


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
    parts = typing.get_args(leaf.base)
    if parts and isinstance(value, list | tuple):
        return [_scalar(parts[0], part) for part in value]
    return _scalar(leaf.base, value)


def _scalar(base: Any, value: Any) -> Any:
    if isinstance(value, list | tuple | dict) or str(value).endswith(
        "\\???"
    ):  # OmegaConf's for a literal ???
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
