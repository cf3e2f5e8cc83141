"""How the forward of a step is executed: eagerly, or compiled. Losses agree within rounding.

Forward and loss of one micro-batch are compiled, with their backward. Scaling, clipping and the optimizer
take few kernel launches anyway. `torch.compile` normally reads Python source, so it would not see a backend
that replaces functions of PyTorch: O1 would break the step into 14 graphs and lose its casts on methods and
operators, which the compiler knows by name. So the model is traced by running it (`nonstrict_trace`), with
everything that a backend has replaced. Every backend gives one graph. PyTorch's cache of graphs cannot see
the casts and is not used.
"""

import dataclasses
import logging
import secrets
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from ampcompare.config.load import Config
from ampcompare.data.batch import Field, list_tensors
from ampcompare.errors import UserError, reason
from ampcompare.precision.base import Precision
from ampcompare.precision.o1.patches import list_registered_functions
from ampcompare.system.device import is_cuda
from ampcompare.training.losses_and_metrics import find_tensor
from ampcompare.training.network_description import (
    Description,
    Difference,
    describe_training,
    find_difference,
)
from ampcompare.training.task import Criterion, Forward

log = logging.getLogger(__name__)


class CompiledForward(Forward):
    """Computes the same with one compiled graph for each shape of a batch, for training steps only.

    If the outputs are not a tensor, it returns their logits, or the loss if they have none. The graph holds
    the context and the mode (`train()`) of the first call with a shape. The parameters of the model must stay
    the same objects.

    Args:
        model: The prepared model.
        criterion: The loss.
        precision: The backend, whose casts are in the graph.
    """

    def __init__(self, model: nn.Module, criterion: Criterion, precision: Precision) -> None:
        super().__init__(model, criterion)
        # Inputs of the graph, so that gradients reach parameters and statistics are written back.
        self._state = dict(model.named_parameters()) | dict(model.named_buffers())
        self._shapes: set[tuple[torch.Size, ...]] = set()  # of the batches so far
        self._code = find_compiled_code(model, criterion, precision)

    def __call__(self, inputs: Field, targets: Field) -> tuple[Any, Tensor]:
        """Return the outputs and the loss of a batch."""
        shapes = tuple(tensor.shape for field in (inputs, targets) for tensor in list_tensors(field))
        self.compiled = shapes not in self._shapes
        self._shapes.add(shapes)
        return self._code.run(self.model, self.criterion, self._state, inputs, targets)


class CompiledCode:
    """The compiled forward and loss, which the networks of several trainings may use one after the other.

    A network hands its parameters and buffers over at each call. Only a shape that is new is traced, with the
    network of that call.

    Args:
        settings: What the graph depends on besides the network: the backend and the loss.
        network: What the graph depends on of the network and of the loss, as `find_difference` compares it.
    """

    def __init__(self, settings: Any, network: Description) -> None:
        from torch._dynamo import nonstrict_trace  # public, as torch.compiler's, only after PyTorch 2.11

        # This module stores PyTorch's functions (`torch.addmm`) when it is imported. Import it before a
        # backend replaces them: the replacements would cast again what is kept in fp32.
        import_module("torch._inductor.lowering")
        self.settings, self.network = settings, network
        # Of the current call. Between calls no network is kept alive.
        self._parts: tuple[nn.Module, Criterion] | None = None

        @nonstrict_trace
        def traced(state: dict[str, Tensor], inputs: Field, targets: Field) -> tuple[Tensor, Tensor]:
            assert self._parts
            model, criterion = self._parts
            arguments = ((inputs,), None) if isinstance(inputs, Tensor) else ((), dict(inputs))
            outputs = torch.func.functional_call(model, state, *arguments)
            loss = criterion(outputs, targets)
            logits = find_tensor(outputs, "logits")
            return loss if logits is None else logits, loss

        def forward(state: dict[str, Tensor], inputs: Field, targets: Field) -> tuple[Tensor, Tensor]:
            return traced(state, inputs, targets)

        # Graphs of earlier trainings in this process count against the compiler's limit of 8.
        torch.compiler.reset()
        self._forward = torch.compile(forward, fullgraph=True, dynamic=False)

    def run(
        self,
        model: nn.Module,
        criterion: Criterion,
        state: dict[str, Tensor],
        inputs: Field,
        targets: Field,
    ) -> tuple[Any, Tensor]:
        """Return the outputs and the loss of a batch, with the parameters and buffers in `state`."""
        self._parts = model, criterion
        try:
            return self._forward(state, inputs, targets)
        finally:
            self._parts = None


_latest: CompiledCode | None = None  # of this process
_has_said_difference = False


def find_compiled_code(model: nn.Module, criterion: Criterion, precision: Precision) -> CompiledCode:
    """Return the code of the process's training before, or new code if anything in the graph may differ.

    The seed of a backend decides random numbers of its steps, and no cast.
    """
    global _latest, _has_said_difference
    options = dataclasses.replace(precision.options, seed=0)
    settings = (
        type(precision),
        options,
        precision.device,
        precision.tf32,
        list_registered_functions(),
    )
    network = describe_training(model, criterion)
    if _latest is None or _latest.settings != settings:
        _latest = CompiledCode(settings, network)
    elif difference := find_difference(_latest.network, network):
        if not (_has_said_difference or difference.is_class):  # another class: not the next seed's network
            _has_said_difference = True
            log.warning(_explain_difference(difference))
        _latest = CompiledCode(settings, network)
    return _latest


def forget_compiled_code() -> None:
    """Let the next training of this process compile anew, as the first one did, and free the code."""
    global _latest, _has_said_difference
    _latest = None
    _has_said_difference = False


def _explain_difference(difference: Difference) -> str:
    """Return why compiled code is not used again, and what to do."""
    if difference.unknown is not None:
        return (
            f"compiling again for each seed: {difference.where} is a {difference.unknown.__name__}, which "
            "cannot be compared with that of the network before; make a tensor a parameter or a buffer "
            "(register_buffer), and give other attributes plain values"
        )
    return (
        f"compiling again for each seed: {difference.where} is not that of the network before; give it the "
        "same value for each seed, or make it a buffer (register_buffer), whose value may differ"
    )


def uses_compile(execution: str) -> bool:
    """Return whether steps are compiled."""
    return execution in ("compile", "compile_graph")


def uses_cuda_graph(execution: str) -> bool:
    """Return whether a step is one CUDA graph."""
    return execution in ("cuda_graph", "compile_graph")


def check_cuda_graph(execution: str, device: torch.device) -> None:
    """Raise UserError if the execution is a CUDA graph and the device has none."""
    if uses_cuda_graph(execution) and not is_cuda(device):
        why = f"device={str(device)!r} has no CUDA graphs, they need an NVIDIA GPU"
        raise UserError(f"execution={execution!r}: {why}; use execution=eager or execution=compile")


def check_execution(config: Config, device: torch.device) -> None:
    """Raise UserError, with the reason, if this machine does not support the option `execution`."""
    check_cuda_graph(config.execution, device)
    if uses_compile(config.execution):
        try:
            _try_compiler(device)
        except Exception as problem:
            raise UserError(
                f"execution={config.execution!r}: torch.compile does not work on {device} here "
                f"({type(problem).__name__}: {reason(problem)}); install a C++ compiler "
                f"(g++, clang, with Python's headers; Triton for a GPU), or use execution=eager"
            ) from None


@cache
def _try_compiler(device: torch.device) -> None:
    """Compile one line, which needs a C++ compiler and Python's headers on a CPU, Triton on a GPU.

    Once it works in a process, it is not tried again.

    Raises:
        Exception: The compiler does not work.
    """
    number = 1 + secrets.randbelow(2**40)  # new each time, so that no cache replaces the compiler
    torch.compile(lambda x: x * number)(torch.ones(2, device=device))
