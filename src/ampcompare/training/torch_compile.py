"""How the forward of a step is executed: eagerly, or compiled. Losses agree within rounding.

Forward and loss of one micro-batch are compiled, with their backward. Scaling, clipping and the optimizer
take few kernel launches anyway. `torch.compile` normally reads Python source, so it would not see a backend
that replaces functions of PyTorch: O1 would break the step into 14 graphs and lose its casts on methods and
operators, which the compiler knows by name. So the model is traced by running it (`nonstrict_trace`), with
everything that a backend has replaced. Every backend gives one graph. PyTorch's cache of graphs cannot see
the casts and is not used.
"""

import secrets
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from ampcompare.config.load import Config
from ampcompare.data.batch import Field, list_tensors
from ampcompare.errors import UserError, reason
from ampcompare.system.device import is_cuda
from ampcompare.training.losses_and_metrics import call, find_tensor

Criterion = Callable[[Any, Any], Tensor]


class Forward:
    """Computes outputs and loss of a batch eagerly.

    Attributes:
        compiled: Whether the last call compiled something; its time says nothing then.
    """

    def __init__(self, model: nn.Module, criterion: Criterion) -> None:
        self.model, self.criterion = model, criterion
        self.compiled = False  # whether the last call did more than its work: it compiled

    def __call__(self, inputs: Field, targets: Field) -> tuple[Any, Tensor]:
        """Return the outputs and the loss of a batch."""
        outputs = self.model(inputs) if isinstance(inputs, Tensor) else call(self.model, inputs)
        return outputs, self.criterion(outputs, targets)


class CompiledForward(Forward):
    """Computes the same with one compiled graph for each shape of a batch, for training steps only.

    If the outputs are not a tensor, it returns their logits, or the loss if they have none. The graph holds
    the context and the mode (`train()`) of the first call with a shape. The parameters of the model must stay
    the same objects.
    """

    def __init__(self, model: nn.Module, criterion: Criterion) -> None:
        from torch._dynamo import nonstrict_trace  # public, as torch.compiler's, only after PyTorch 2.11

        # This module stores PyTorch's functions (`torch.addmm`) when it is imported. Import it before a
        # backend replaces them: the replacements would cast again what is kept in fp32.
        import_module("torch._inductor.lowering")
        super().__init__(model, criterion)
        self._shapes: set[tuple[torch.Size, ...]] = set()
        # Inputs of the graph, so that gradients reach parameters and statistics are written back.
        self._state = dict(model.named_parameters()) | dict(model.named_buffers())

        @nonstrict_trace
        def traced(state: dict[str, Tensor], inputs: Field, targets: Field) -> tuple[Tensor, Tensor]:
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

    def __call__(self, inputs: Field, targets: Field) -> tuple[Any, Tensor]:
        """Return the outputs and the loss of a batch."""
        shapes = tuple(tensor.shape for field in (inputs, targets) for tensor in list_tensors(field))
        self.compiled = shapes not in self._shapes
        self._shapes.add(shapes)
        return self._forward(self._state, inputs, targets)


def uses_compile(execution: str) -> bool:
    """Return whether steps are compiled."""
    return execution in ("compile", "compile_graph")


def uses_cuda_graph(execution: str) -> bool:
    """Return whether a step is one CUDA graph."""
    return execution in ("cuda_graph", "compile_graph")


def check_execution(config: Config, device: torch.device) -> None:
    """Raise UserError, with the reason, if this machine does not support the option `execution`."""
    if uses_cuda_graph(config.execution) and not is_cuda(device):
        why = f"device={str(device)!r} has no CUDA graphs, they need an NVIDIA GPU"
        raise UserError(f"execution={config.execution!r}: {why}; use execution=eager or execution=compile")
    if uses_compile(config.execution):
        # Compile one line, which needs a C++ compiler and Python's headers on a CPU, Triton on a GPU.
        number = 1 + secrets.randbelow(2**40)  # new each time, so that no cache replaces the compiler
        compiled = torch.compile(lambda x: x * number)
        try:
            compiled(torch.ones(2, device=device))
        except Exception as problem:
            raise UserError(
                f"execution={config.execution!r}: torch.compile does not work on {device} here "
                f"({type(problem).__name__}: {reason(problem)}); install a C++ compiler "
                f"(g++, clang, with Python's headers; Triton for a GPU), or use execution=eager"
            ) from None
