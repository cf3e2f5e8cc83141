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
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from ampcompare.config.options import Leaf, leaves
from ampcompare.errors import UserError

if TYPE_CHECKING:  # imported where it is used: it takes 0.1 s, and --help has no use for it
    from omegaconf import DictConfig

NONE_WORDS = ("none", "null", "~", "")
TRUTH = dict.fromkeys(("true", "yes", "on"), True) | dict.fromkeys(("false", "no", "off"), False)
MISSING = "???"
REFERENCE = re.compile(r"\$\{\w+(\.\w+)*\}")  # all that is taken of OmegaConf's grammar


def typed_tree(cls_or_instance: Any) -> DictConfig:
    """The options with their defaults, or with the values of an instance."""
    from omegaconf import OmegaConf

    if isinstance(cls_or_instance, type):
        return copy.deepcopy(_defaults(cls_or_instance))  # 2 ms instead of 13
    return OmegaConf.structured(cls_or_instance)


@cache
def _defaults(cls: type) -> DictConfig:
    from omegaconf import OmegaConf

    return OmegaConf.structured(cls)


def put(tree: DictConfig, leaf: Leaf, value: Any) -> None:
    """Set an option. Raises UserError with key, value, what is allowed and what may have been meant."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if "${" in REFERENCE.sub("", str(value)):
        raise UserError(
            f"{leaf.key}={value!r}: of ${{...}} only another option's key is understood, such as ${{backend}}"
        )
    try:
        OmegaConf.update(tree, leaf.key, _readable(leaf, value), merge=False)
        typed = None if _is_open(value) else _plain(tree, leaf.key)
    except (OmegaConfBaseException, ValueError, OverflowError):
        raise leaf.wrong(value) from None
    leaf.check(typed, value)


def finished(tree: DictConfig) -> Any:
    """The dataclass instance, each `${key}` resolved. Raises UserError where one cannot be, or is missing."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException, ValidationError

    cls = typing.cast(type, OmegaConf.get_type(tree))
    for leaf, given in zip(leaves(cls), _values(OmegaConf.to_container(tree, resolve=False)), strict=True):
        if not _is_open(given):
            continue
        if MISSING in (given if isinstance(given, list) else [given]):
            raise UserError(f"{leaf.key}={given}: has to be given; expected {leaf.allowed}")
        try:
            value = _plain(tree, leaf.key)
        except ValidationError:  # it is there, and of another type
            raise leaf.wrong(given) from None
        except (OmegaConfBaseException, RecursionError) as problem:
            reason = str(problem).partition("\n")[0]
            raise UserError(f"{leaf.key}={given!r}: {reason}; write the value out") from None
        leaf.check(value, given)
    return OmegaConf.to_object(tree)


def _values(tree: Any) -> Iterator[Any]:
    for value in tree.values():
        yield from _values(value) if isinstance(value, dict) else (value,)


def _is_open(value: Any) -> bool:
    """Whether what it comes to is known only when all else is."""
    parts = value if isinstance(value, list | tuple) else (value,)
    return any(isinstance(part, str) and ("${" in part or part == MISSING) for part in parts)


def _plain(tree: DictConfig, key: str) -> Any:
    from omegaconf import OmegaConf

    value = OmegaConf.select(tree, key)
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _readable(leaf: Leaf, value: Any) -> Any:
    """The value in a form that OmegaConf's typed nodes read as we do. Raises ValueError, OverflowError.

    Left to them they take 2 and `y` for true, 1_000 for a number and a list for one of the texts in a list;
    they refuse 1e3 and 1000.0, as YAML and W&B's sweeps write whole numbers, a number for `float | str`, and
    `None` as W&B's agent writes it.
    """
    if typing.get_origin(leaf.base) is list and isinstance(value, list | tuple):
        return [_scalar(typing.get_args(leaf.base)[0], part) for part in value]
    word = value.strip().lower() if isinstance(value, str) else None
    if word in NONE_WORDS and leaf.optional:
        return None
    return word if leaf.base is float and word in leaf.meta["choices"] else _scalar(leaf.base, value)


def _scalar(base: Any, value: Any) -> Any:
    if isinstance(value, list | tuple | dict) or (isinstance(value, str) and value.endswith("\\???")):
        raise ValueError  # the text is OmegaConf's for a ??? that is none
    if value is None or _is_open(value):
        return value
    if base is bool:
        found = TRUTH.get(value.strip().lower()) if isinstance(value, str) else value
        if not isinstance(found, bool):
            raise ValueError
        return found
    if base not in (int, float):
        return value
    number = _number(value) if isinstance(value, str) else value
    if base is float and type(number) is int:
        return float(number)
    return int(number) if isinstance(number, float) and base is int and number.is_integer() else number


def _number(text: str) -> float:
    if "_" in text:  # Python reads 1_000 as a number
        raise ValueError
    try:
        return int(text)  # exact, however large
    except ValueError:
        return float(text)
