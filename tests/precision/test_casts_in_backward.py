"""O1's casts in Python code that autograd runs in the backward: custom functions and hooks, in any thread."""

import threading
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from ampcompare.precision import build_precision
from ampcompare.precision.base import Precision

HALF = {"apex_o1": torch.float16, "apex_o1_bf16": torch.bfloat16}
O1 = [*HALF]
SCALE = 128.0


class Product(Function):
    """A linear layer whose backward multiplies the gradient, which is in 16 bits, by fp32 tensors."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return gradient @ weight, gradient.T @ x


class CustomFwd(Product):
    forward = staticmethod(torch.amp.custom_fwd(Product.forward, device_type="cpu"))
    backward = staticmethod(torch.amp.custom_bwd(Product.backward, device_type="cpu"))


class SetupContext(Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return x @ weight.T

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    backward = staticmethod(Product.backward)


class Once(Product):
    backward = staticmethod(once_differentiable(Product.backward))


FUNCTIONS = [Product, CustomFwd, SetupContext, Once]


class Layer(nn.Module):
    def __init__(self, function: type[Function]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.randn(5, 6, generator=torch.Generator().manual_seed(2)))

    def forward(self, x: Tensor) -> Tensor:
        return self.function.apply(x, self.weight)


def run_here(work: Callable[[], Any]) -> None:
    work()


class Deep(Function):
    """Runs a backward within a backward: beyond 60 levels autograd takes a thread of its own, as on a GPU."""

    threads: ClassVar[list[int]] = []

    @staticmethod
    def forward(ctx: Any, x: Tensor, depth: int, inner: Callable[[], None]) -> Tensor:
        ctx.depth, ctx.inner = depth, inner
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        Deep.threads.append(threading.get_ident())
        with torch.enable_grad():
            if ctx.depth == 0:
                ctx.inner()
            else:
                x = torch.ones(1, requires_grad=True)
                Deep.apply(x, ctx.depth - 1, ctx.inner).sum().backward()
        return gradient, None, None


def run_in_autograds_thread(work: Callable[[], Any]) -> None:
    Deep.threads.clear()
    Deep.apply(torch.ones(1, requires_grad=True), 70, work).sum().backward()
    assert len(set(Deep.threads)) > 1


RUNNERS = [run_here, run_in_autograds_thread]


def prepare(name: str, layer: nn.Module) -> Precision:
    precision = build_precision(name, loss_scale=SCALE)
    precision.prepare(layer, torch.optim.SGD(layer.parameters(), lr=0.1))
    return precision


@pytest.mark.parametrize("run", RUNNERS)
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("name", O1)
def test_a_custom_backward_has_the_casts_of_its_forward(
    name: str, function: type[Function], run: Callable[[Callable[[], Any]], None]
):
    """By hand: the loss is the sum of the outputs in fp32, so their gradient is the scale, in 16 bits."""
    layer, x = Layer(function), torch.randn(4, 6, generator=torch.Generator().manual_seed(3))
    x.requires_grad_()
    precision, half = prepare(name, layer), HALF[name]
    with precision.training_context():
        with precision.forward_context():
            output = layer(x)
            loss = output.float().sum()
        assert output.dtype is half
        run(lambda: precision.backward(loss))
    gradient = torch.full((4, 5), SCALE).to(half)
    assert torch.equal(x.grad, (gradient @ layer.weight.to(half)).float())
    assert torch.equal(layer.weight.grad, (gradient.T @ x.to(half)).float() / SCALE)


def test_a_second_derivative_is_that_of_fp64():
    """The gradient of the squared gradient norm of sum(tanh(x W^T)); W is used through its fp16 copy."""
    layer, x = Layer(Product), 0.3 * torch.randn(4, 6, generator=torch.Generator().manual_seed(4))
    precision = prepare("apex_o1", layer)

    def differentiate(loss: Tensor, weight: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(loss, [weight], create_graph=True)
        return slope.float().square().sum()

    with precision.training_context():
        with precision.forward_context():
            loss = layer(x).tanh().float().sum()
        precision.backward(differentiate(loss, layer.weight))
    weight = layer.weight.detach().double().requires_grad_()
    differentiate((x.double() @ weight.T).tanh().sum(), weight).backward()
    error = (layer.weight.grad - weight.grad).norm() / weight.grad.norm()
    assert error < 8 * torch.finfo(torch.float16).eps


@pytest.mark.parametrize("run", RUNNERS)
@pytest.mark.parametrize("kind", ["tensor", "module_pre"])
@pytest.mark.parametrize("name", O1)
def test_hooks_of_the_backward_have_the_casts_of_the_forward(
    name: str, kind: str, run: Callable[[Callable[[], Any]], None]
):
    mixing, x, layer = torch.randn(5, 5), torch.randn(4, 6), nn.Linear(6, 5, bias=False)
    if kind == "module_pre":
        layer.register_full_backward_pre_hook(lambda m, outputs: (outputs[0] @ mixing,))
    precision = prepare(name, layer)
    with precision.training_context():
        with precision.forward_context():
            output = layer(x)
            if kind == "tensor":
                output.register_hook(lambda gradient: gradient @ mixing)
            loss = output.float().sum()
        run(lambda: precision.backward(loss))
    gradient = torch.full((4, 5), SCALE).to(HALF[name]) @ mixing.to(HALF[name])
    assert torch.equal(layer.weight.grad, (gradient.T @ x.to(HALF[name])).float() / SCALE)
