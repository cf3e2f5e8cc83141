"""A training step that can be taken in two ways and in fp64, from any weights."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ampcompare.config.load import Config
from ampcompare.data.batch import Batch, is_image
from ampcompare.errors import UserError, reason
from ampcompare.precision.registry import PLAIN
from ampcompare.runtime.formatting import some
from ampcompare.system.device import is_channels_last, is_host, is_out_of_memory
from ampcompare.training.run_context import with_backend
from ampcompare.training.torch_compile import uses_compile
from ampcompare.training.trainer import Trainer
from ampcompare.why.capture import TakenStep, map_tensors, replay_call
from ampcompare.why.errors import unit_roundoff
from ampcompare.why.fp64_reference import (
    available_bytes,
    batches_in_fp64,
    check_memory,
    convert_to_fp64,
    fp64_arithmetic,
    out_of_memory,
    rounded_arithmetic,
)
from ampcompare.why.nonfinite import LOSS, NETWORK
from ampcompare.why.own_errors import differentiate, measure_own_errors
from ampcompare.why.step import RepeatableStep, StepState, are_equal
from ampcompare.why.value_pair import ValuePair, build_configs, name_variant

log = logging.getLogger(__name__)
FP64, ROUNDED = 2, 3  # after the two ways 0 and 1: the step in fp64, and the same with random rounding


class StepComparison:
    """A step that can be taken in two ways and in fp64, from any weights.

    Args:
        pair: The option with two values.

    Attributes:
        left_out: The modules that run without their random draws, because these differ between the ways.
    """

    def __init__(self, state: StepState, pair: ValuePair) -> None:
        self.state = state
        self.pair = pair
        self.batches = state.batches
        self.names = name_variant(pair, 0), name_variant(pair, 1)
        self.configs = build_configs(state.config, pair, state.device)
        self._plain = with_backend(dataclasses.replace(state.config, execution="eager"), PLAIN)

        plain = state.build_trainer(self._plain)
        self._need = check_memory(plain, self.batches[0], self._plain, state.device)
        self.weights = [p.detach().clone() for p in state.build_trainer(self._plain).model.parameters()]
        self.unit_roundoff = unit_roundoff(self.configs[0].backend)

        self.left_out: list[str] = []
        self._rounded: RepeatableStep | None = None
        self._steps = self._build_steps()
        self._first = self._take(None)
        if self._steps[FP64].draws_random and not (is_host(state.device) and self._draws_are_equal()):
            self._leave_out_draws()

    def _leave_out_draws(self) -> None:
        """Take the steps again without the random draws of modules.

        Raises:
            UserError: The draws differ also without these modules.
        """
        step, model = self.take_fp64_calls()
        self.left_out = sorted(measure_own_errors(step, step, model, fp64_arithmetic).random)
        self._steps = self._build_steps()
        self._first = self._take(None)
        if not self._draws_are_equal():
            names = some([name or NETWORK for name in self.left_out]) or LOSS
            raise UserError(
                f"{self.pair.key}={','.join(self.pair.values)}: the steps draw other random numbers in "
                f"{names}, also in evaluation mode, so they cannot be compared; draw only if self.training"
            )

    def take_fp64_calls(self) -> tuple[TakenStep, nn.Module]:
        """Return the step in fp64 with its calls, and the network in fp64 from before the step."""
        step = self.build_step(FP64)
        return self._take_fp64(step, with_calls=True), self.build_step(FP64).trainer.model

    def take(self, weights: Sequence[Tensor] | None = None) -> list[TakenStep]:
        """Return the two steps and the one in fp64.

        Args:
            weights: The weights to start from; None: those of the source.
        """
        return self._first if weights is None else self._take(weights)

    def take_rounded(self, weights: Sequence[Tensor]) -> TakenStep:
        """Return the step in fp64, with the random rounding of `add_rounding`."""
        if self._rounded is None:
            self._rounded = self.build_step(ROUNDED)
        return self._take_fp64(self._rounded, weights)

    def build_step(self, index: int) -> RepeatableStep:
        """Return one of the two steps (0 or 1), FP64 or ROUNDED, ready to be taken."""
        config: Config | None = None
        context: Callable[[], AbstractContextManager[Any]] = nullcontext
        if index in (FP64, ROUNDED):
            context = fp64_arithmetic
            trainer = self.state.build_trainer(self._plain)
            convert_to_fp64(trainer)
            if index == ROUNDED:
                generator = torch.Generator(self.state.device).manual_seed(0)
                context = partial(rounded_arithmetic, trainer.model, self.unit_roundoff, generator)
        else:
            config = self.configs[index]
            trainer = self.state.build_trainer(config)
            if uses_compile(config.execution):
                context = eager_draws
        for name in self.left_out:
            trainer.model.get_submodule(name).training = False
        return RepeatableStep(self.state, trainer, self._batches_for(config), context)

    def _build_steps(self) -> list[RepeatableStep]:
        return [self.build_step(index) for index in (0, 1, FP64)]

    def _batches_for(self, config: Config | None) -> list[Batch]:
        """Return the micro-batches for a step with these options; None: for one in fp64."""
        if config is None:
            return batches_in_fp64(self.batches)
        channels_last = is_channels_last(config.memory_format, self.state.device)
        return lay_out(self.batches, channels_last=channels_last)

    def _take(self, weights: Sequence[Tensor] | None) -> list[TakenStep]:
        first, second, fp64 = self._steps
        return [first.take(weights), second.take(weights), self._take_fp64(fp64, weights)]

    def _take_fp64(
        self, step: RepeatableStep, weights: Sequence[Tensor] | None = None, *, with_calls: bool = False
    ) -> TakenStep:
        try:
            return step.take(weights, with_calls=with_calls)
        except Exception as problem:
            if is_out_of_memory(problem):
                free = available_bytes(self.state.device)
                raise out_of_memory(self._need, free, self.state.device) from None
            raise UserError(
                f"the network does not run in fp64, the reference of both steps ({type(problem).__name__}: "
                f"{reason(problem)}); an operation of your own needs a kernel for fp64"
            ) from None

    def _draws_are_equal(self) -> bool:
        return all(are_equal(step.draws, self._steps[FP64].draws) for step in self._steps)

    def take_calls(self, index: int) -> TakenStep:
        """Return one of the two steps with the calls of its modules.

        A compiled step has none. Its calls are those of the eager step, with each module compiled alone.
        """
        config = self.configs[index]
        trainer = self.state.build_trainer(dataclasses.replace(config, execution="eager"))
        step = RepeatableStep(self.state, trainer, self._batches_for(config))
        taken = step.take(with_calls=True)
        if not uses_compile(config.execution):
            return taken
        return _compile_calls(taken, self.state.build_trainer(dataclasses.replace(config, execution="eager")))


def _compile_calls(step: TakenStep, trainer: Trainer) -> TakenStep:
    """Return an eager step with the outputs and gradients of its modules as they are compiled, one by one.

    Args:
        trainer: A trainer of the backend, in the state before the step.
    """
    from torch._dynamo import nonstrict_trace

    calls = {}
    gradients: dict[str, Tensor] = {}

    def compiled(run: Callable[..., Any]) -> Callable[..., Any]:
        traced = nonstrict_trace(run)
        torch.compiler.reset()
        return torch.compile(lambda *arguments: traced(*arguments), fullgraph=True, dynamic=False)

    for key, call in step.calls.items():
        try:
            with trainer.precision.training_context(), trainer.precision.forward_context():
                replay = replay_call(call, trainer.model, call.changed, None, compiled)
            of_inputs, of_weights = differentiate(call, replay)
        except Exception as problem:  # what the compiler raises has no common class
            log.debug(f"{call.name} cannot be compiled alone and is not compared ({reason(problem)})")
            continue
        calls[key] = dataclasses.replace(
            call, output=replay.outputs, passed=replay.passed, input_gradients=of_inputs
        )
        for name, gradient in of_weights.items():
            gradients[name] = gradients.get(name, 0) + gradient.double() / step.scale
    return dataclasses.replace(step, calls=calls, gradients=gradients)


def eager_draws() -> AbstractContextManager[Any]:
    """Return a context in which a compiled step draws the random numbers of the eager step.

    The compiler normally has a random generator of its own.
    """
    import torch._inductor.config as inductor

    return inductor.patch(fallback_random=True)


def lay_out(batches: Sequence[Batch], *, channels_last: bool) -> list[Batch]:
    """Return the batches with their images in a memory layout."""
    layout = torch.channels_last if channels_last else torch.contiguous_format

    def change(tensor: Tensor) -> Tensor:
        return tensor.contiguous(memory_format=layout) if is_image(tensor) else tensor

    return map_tensors([*batches], change)
