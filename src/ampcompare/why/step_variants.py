"""Two ways to take the same training step: the option with two values, and a step that can be repeated."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ampcompare.config.load import Config, check_option, split_override
from ampcompare.config.schema import find_option
from ampcompare.config.validate import resolve_backend, validate
from ampcompare.data.batch import Batch, is_image, map_tensors
from ampcompare.errors import UserError, reason
from ampcompare.precision import get_backend
from ampcompare.system.device import is_channels_last, is_out_of_memory, random_states
from ampcompare.training.loop import PARTS
from ampcompare.training.torch_compile import CompiledForward, check_execution
from ampcompare.training.trainer import Trainer
from ampcompare.why.step_capture import CapturedStep, capture_step

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
    lists: dict[str, list[str]] = {}
    for word in overrides:
        key, equals, value = split_override(word)
        if equals:
            lists.pop(key, None)  # a later value wins
        if "," in value and _is_list_of_values(key, value):
            lists[key] = [part.strip() for part in value.split(",")]
    if not lists:
        return None, [*overrides]
    for key, values in lists.items():
        given = f"{key}={','.join(values)}"
        if key not in OPTIONS:
            raise UserError(
                f"{given}: {key} changes what a step computes, so there is no common reference; `why diff` "
                f"compares two values of {', '.join(OPTIONS)}"
            )
        if len(values) != 2:
            raise UserError(f"{given}: expected two values, such as execution=eager,compile")
        if values[0] == values[1]:
            raise UserError(f"{given}: the values are equal; expected two, such as execution=eager,compile")
        for value in values:
            check_option(key, value)
            if key == "execution" and value not in EXECUTIONS:
                raise UserError(f"{given}: {value} cannot be compared; expected execution=eager,compile")
    if len(lists) > 1:
        raise UserError(f"{' and '.join(lists)} have two values each; give two values to one of them only")
    ((key, values),) = lists.items()
    rest = [word for word in overrides if split_override(word)[0] != key]
    return ValuePair(key, (values[0], values[1])), rest


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


def _is_list_of_values(key: str, value: str) -> bool:
    """Return whether a text with commas is several values of an option, not one value with commas."""
    if key in OPTIONS:
        return True
    if find_option(key) is None:
        return False
    return not _is_valid(key, value) and all(_is_valid(key, part.strip()) for part in value.split(","))


def _is_valid(key: str, value: str) -> bool:
    try:
        check_option(key, value)
    except UserError:
        return False
    return True


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


class RepeatableStep:
    """A training step that can be taken again, from the same state or from other weights.

    Args:
        trainer: The trainer in the state before the step.
        batches: The micro-batches of the step.
        set_random_states: Sets the random generators as they are before the step.
        context: Returns a context around the step.
    """

    def __init__(
        self,
        trainer: Trainer,
        batches: Sequence[Batch],
        set_random_states: Callable[[], None],
        device: torch.device,
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.trainer = trainer
        self.batches = batches
        self.set_random_states = set_random_states
        self.device = device
        self.context = context
        self.draws: dict[str, Any] = {}  # the random states after the last step
        self._start = {part: copy.deepcopy(getattr(trainer, part).state_dict()) for part in PARTS}

    def take(self, weights: Sequence[Tensor] | None = None) -> CapturedStep:
        """Take the step.

        Args:
            weights: Weights to start from, in the order of the parameters; None: the trainer's own.

        Raises:
            UserError: The step cannot be compiled.
        """
        trainer = self.trainer
        for part, state in self._start.items():
            getattr(trainer, part).load_state_dict(copy.deepcopy(state))
        if weights is not None:
            set_weights(trainer, weights)
        try:
            with self.context():
                step = capture_step(trainer, self.batches, self.set_random_states, with_calls=False)
        except Exception as problem:
            if not isinstance(trainer.forward, CompiledForward) or is_out_of_memory(problem):
                raise
            raise UserError(
                f"execution=compile: the step cannot be compiled ({type(problem).__name__}: "
                f"{reason(problem)}); change what the compiler names"
            ) from None
        self.draws = random_states(self.device)
        return step


def set_weights(trainer: Trainer, weights: Sequence[Tensor]) -> None:
    """Copy weights into the network, and into fp32 master weights where the backend has them."""
    updated = [p for group in trainer.optimizer.param_groups for p in group["params"]]
    with torch.no_grad():
        for parameter, master, value in zip(trainer.model.parameters(), updated, weights, strict=True):
            parameter.copy_(value)
            master.copy_(value)


def lay_out(batches: Sequence[Batch], *, channels_last: bool) -> list[Batch]:
    """Return the batches with their images in a memory layout."""
    layout = torch.channels_last if channels_last else torch.contiguous_format

    def change(tensor: Tensor) -> Tensor:
        return tensor.contiguous(memory_format=layout) if is_image(tensor) else tensor

    return [(map_tensors(x, change), map_tensors(y, change)) for x, y in batches]
