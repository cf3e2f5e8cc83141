"""The option with two values of `why diff KEY=A,B`: two ways to take the same training step."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ampcompare.config.load import Config, check_option, split_override
from ampcompare.config.validate import resolve_backend, validate
from ampcompare.errors import UserError
from ampcompare.precision import get_backend
from ampcompare.system.device import is_channels_last
from ampcompare.training.torch_compile import check_execution

# Options that choose how a step is computed, and not what it computes.
OPTIONS = ("execution", "backend", "memory_format")
EXECUTIONS = ("eager", "compile")  # a CUDA graph cannot be taken apart
LABELS = {"compile": "compiled"}


@dataclass(frozen=True)
class ValuePair:
    """An option with two values.

    Attributes:
        key: The option.
        values: Its two values.
    """

    key: str
    values: tuple[str, str]


def split_pair(overrides: Sequence[str]) -> tuple[ValuePair | None, list[str]]:
    """Return the option that has two values, if there is one, and the other overrides.

    Raises:
        UserError: The values or the option cannot be compared.
    """
    lists: dict[str, str] = {}
    for word in overrides:
        key, equals, value = split_override(word)
        if equals:
            lists.pop(key, None)  # a later value wins
        if "," in value and key in OPTIONS:
            lists[key] = value
    pairs = [_parse_pair(key, value) for key, value in lists.items()]
    if len(pairs) > 1:
        raise UserError(f"{' and '.join(lists)} have two values each; give two values to one of them only")
    rest = [word for word in overrides if split_override(word)[0] not in lists]
    return (pairs[0] if pairs else None), rest


def _parse_pair(key: str, text: str) -> ValuePair:
    """Return an option with its two values. Raises UserError."""
    values = [part.strip() for part in text.split(",")]
    if len(values) != 2:
        raise UserError(f"{key}={text}: expected two values, such as execution=eager,compile")
    first, second = values
    if first == second:
        raise UserError(f"{key}={text}: the values are equal; expected two, such as execution=eager,compile")
    for value in values:
        check_option(key, value)
        if key == "execution" and value not in EXECUTIONS:
            raise UserError(f"{key}={text}: {value} cannot be compared; expected execution=eager,compile")
    return ValuePair(key, (first, second))


def refuse_pair(command: str, overrides: Sequence[str]) -> None:
    """Refuse an option with two values for a command that compares with fp32 alone.

    Raises:
        UserError: An option has two values.
    """
    pair, _ = split_pair(overrides)
    if pair is not None:
        raise UserError(
            f"{pair.key}={','.join(pair.values)}: `why {command}` takes one value; `why diff` compares two"
        )


def build_configs(config: Config, pair: ValuePair, device: torch.device) -> list[Config]:
    """Return the options of the two steps.

    Raises:
        UserError: A value does not fit the other options or the machine, or both mean the same.
    """
    configs = []
    for value in pair.values:
        option: dict[str, Any] = {pair.key: value}
        changed = dataclasses.replace(config, **option)
        validate(changed)
        resolve_backend(changed)
        check_execution(changed, device)
        configs.append(changed)
    layouts = {is_channels_last(c.memory_format, device) for c in configs}
    if pair.key == "memory_format" and len(layouts) == 1:
        raise UserError(
            f"memory_format={','.join(pair.values)}: both are the same layout on {device}; "
            "use memory_format=contiguous,channels_last"
        )
    return configs


def name_variant(pair: ValuePair, index: int) -> str:
    """Return a value of the pair as it is named in messages: `compiled`, or a backend's label."""
    value = pair.values[index]
    if pair.key == "backend":
        return get_backend(value).label
    return LABELS.get(value, value)
