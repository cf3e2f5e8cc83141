"""A training step that can be taken in two ways and in fp64, from any weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ampcompare.config.load import Config
from ampcompare.data.batch import Batch
from ampcompare.errors import UserError, reason
from ampcompare.precision import get_backend
from ampcompare.precision.registry import PLAIN
from ampcompare.runtime.formatting import some
from ampcompare.system.device import (
    is_channels_last,
    is_host,
    is_out_of_memory,
    random_states,
)
from ampcompare.training.run_context import with_backend
from ampcompare.training.trainer import Trainer
from ampcompare.why.diff import LOSS, NETWORK
from ampcompare.why.fault_location import CallOrder, read_call_order
from ampcompare.why.fp64_reference import (
    add_rounding,
    available_bytes,
    batches_in_fp64,
    check_memory,
    convert_to_fp64,
    fp64_arithmetic,
    out_of_memory,
)
from ampcompare.why.random_draws import RandomModules, are_equal, eager_draws
from ampcompare.why.step_capture import CapturedStep
from ampcompare.why.step_source import StepSource
from ampcompare.why.step_variants import RepeatableStep, ValuePair, build_configs, lay_out, name_variant

TF32_ROUNDOFF = 2.0**-11
FP64, ROUNDED = 2, 3  # after the two ways 0 and 1: the step in fp64, and the same with random rounding


class StepComparison:
    """A step that can be taken in two ways and in fp64, from any weights.

    Args:
        pair: The option with two values.

    Attributes:
        left_out: The modules that run without their random draws, because these differ between the ways.
    """

    def __init__(self, source: StepSource, pair: ValuePair) -> None:
        self.source = source
        self.pair = pair
        self.names = name_variant(pair, 0), name_variant(pair, 1)
        self.configs = build_configs(source.config, pair, source.device)
        self._plain = with_backend(dataclasses.replace(source.config, execution="eager"), PLAIN)

        plain = source.build_trainer(self._plain)
        self._need = check_memory(plain, source.batches[0], self._plain, source.device)
        self.weights = [p.detach().clone() for p in source.build_trainer(self._plain).model.parameters()]
        self.unit_roundoff = _unit_roundoff(self.configs[0])

        self.left_out: list[str] = []
        self._rounded: RepeatableStep | None = None
        self._is_random = False
        modules = self._find_random_modules()
        # On other devices the draws of dropout depend on the dtype.
        if self._is_random and not is_host(source.device):
            self.left_out = modules
        self._steps = self._build_steps()
        self._first = self._take(None)
        if self._is_random:
            self._equalize_draws(modules)

    def _equalize_draws(self, modules: list[str]) -> None:
        """Leave out the modules that draw random numbers where their draws differ between the steps.

        Raises:
            UserError: The draws differ also without these modules.
        """
        if modules and not self.left_out and not self._draws_are_equal():
            self.left_out = modules
            self._steps = self._build_steps()
            self._first = self._take(None)
        if not self._draws_are_equal():
            names = some([name or NETWORK for name in modules]) or LOSS
            raise UserError(
                f"{self.pair.key}={','.join(self.pair.values)}: the steps draw other random numbers in "
                f"{names}, also in evaluation mode, so they cannot be compared; draw only if self.training"
            )

    def take(self, weights: Sequence[Tensor] | None = None) -> list[CapturedStep]:
        """Return the two steps and the one in fp64.

        Args:
            weights: The weights to start from; None: those of the source.
        """
        return self._first if weights is None else self._take(weights)

    def take_rounded(self, weights: Sequence[Tensor]) -> CapturedStep:
        """Return the step in fp64, with the random rounding of `add_rounding`."""
        if self._rounded is None:
            self._rounded = self.build_step(ROUNDED)
        self._rounded.batches = self._batches_for(None)
        return self._take_fp64(self._rounded, weights)

    def restart(self, weights: Sequence[Tensor], batches: Sequence[Batch]) -> None:
        """Begin with other weights and micro-batches, of the same shapes, from now on."""
        self.weights = [*weights]
        self.source.batches = [*batches]
        for step, config in zip(self._steps, [*self.configs, None], strict=True):
            step.batches = self._batches_for(config)
        self._first = self._take(self.weights)

    def build_step(self, index: int) -> RepeatableStep:
        """Return one of the two steps (0 or 1), FP64 or ROUNDED, ready to be taken."""
        source = self.source
        config: Config | None = None
        context: Callable[[], AbstractContextManager[Any]] = fp64_arithmetic
        if index in (FP64, ROUNDED):
            trainer = source.build_trainer(self._plain)
            convert_to_fp64(trainer)
            if index == ROUNDED:
                add_rounding(trainer.model, self.unit_roundoff, source.device)
        else:
            config = self.configs[index]
            trainer = source.build_trainer(config)
            context = partial(eager_draws, config, is_random=self._is_random)
        self._leave_out(trainer)
        return RepeatableStep(
            trainer, self._batches_for(config), source.set_random_states, source.device, context
        )

    def _build_steps(self) -> list[RepeatableStep]:
        return [self.build_step(index) for index in (0, 1, FP64)]

    def _batches_for(self, config: Config | None) -> list[Batch]:
        """Return the micro-batches for a step with these options; None: for one in fp64."""
        if config is None:
            return batches_in_fp64(self.source.batches)
        channels_last = is_channels_last(config.memory_format, self.source.device)
        return lay_out(self.source.batches, channels_last=channels_last)

    def _take(self, weights: Sequence[Tensor] | None) -> list[CapturedStep]:
        first, second, fp64 = self._steps
        return [first.take(weights), second.take(weights), self._take_fp64(fp64, weights)]

    def _take_fp64(self, step: RepeatableStep, weights: Sequence[Tensor] | None = None) -> CapturedStep:
        try:
            return step.take(weights)
        except Exception as problem:
            if is_out_of_memory(problem):
                free = available_bytes(self.source.device)
                raise out_of_memory(self._need, free, self.source.device) from None
            raise UserError(
                f"the network does not run in fp64, the reference of both steps ({type(problem).__name__}: "
                f"{reason(problem)}); an operation of your own needs a kernel for fp64"
            ) from None

    def read_order(self, index: int, batch: Batch) -> CallOrder:
        """Return the calls of a forward pass under the options of a step; see `build_step`."""
        config = self._plain if index == FP64 else dataclasses.replace(self.configs[index], execution="eager")
        trainer = self.source.build_trainer(config)
        self._leave_out(trainer)
        if index == FP64:
            convert_to_fp64(trainer)
        self.source.set_random_states()
        with fp64_arithmetic() if index == FP64 else nullcontext():
            return read_call_order(trainer, batch)

    def _leave_out(self, trainer: Trainer) -> None:
        """Turn off the random draws of the modules that are left out."""
        for name in self.left_out:
            trainer.model.get_submodule(name).training = False

    def _draws_are_equal(self) -> bool:
        reference = self._steps[FP64].draws
        return all(are_equal(step.draws, reference) for step in self._steps)

    def _find_random_modules(self) -> list[str]:
        """Return the modules that draw random numbers in an eager forward pass."""
        modules = RandomModules(self.source.device)
        step = self.build_step(FP64)
        with modules.watching(step.trainer.model):
            self._take_fp64(step)
        self.source.set_random_states()
        self._is_random = not are_equal(step.draws, random_states(self.source.device))
        return modules.names


def _unit_roundoff(config: Config) -> float:
    """Return the relative error of one rounding in the dtype of the backend."""
    backend = get_backend(config.backend)
    if backend.uses_tf32:
        return TF32_ROUNDOFF
    return torch.finfo(getattr(torch, backend.dtype)).eps / 2
