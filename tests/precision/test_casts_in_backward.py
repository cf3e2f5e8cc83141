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


class CastFwd(Product):
    forward = staticmethod(
        torch.amp.custom_fwd(Product.forward, device_type="cpu", cast_inputs=torch.float32)
    )
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


class Vjp(Function):
    forward = staticmethod(Product.forward)
    vjp = staticmethod(Product.backward)


FUNCTIONS = [Product, CustomFwd, CastFwd, SetupContext, Once, Vjp]


class Layer(nn.Module):
    def __init__(self, function: type[Function], width: int = 5) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.randn(width, 6, generator=torch.Generator().manual_seed(2)))

    def forward(self, x: Tensor) -> Tensor:
        return self.function.apply(x, self.weight)


def run_here(work: Callable[[], Any]) -> None:
    work()


def run_in_a_thread(work: Callable[[], Any]) -> None:
    problems = []

    def run() -> None:
        try:
            work()
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if problems:
        raise problems[0]


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


RUNNERS = [run_here, run_in_a_thread, run_in_autograds_thread]


def expect(x: Tensor, weight: Tensor, half: torch.dtype, scale: float = SCALE) -> tuple[Tensor, Tensor]:
    """By hand: the loss is the sum of the outputs in fp32, so their gradient is the scale, in 16 bits."""
    gradient = torch.full((len(x), len(weight)), scale).to(half)
    return (gradient @ weight.to(half)).float() / scale, (gradient.T @ x.to(half)).float() / scale


@pytest.mark.parametrize("run", RUNNERS)
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("name", O1)
def test_a_custom_backward_has_the_casts_of_its_forward(
    name: str, function: type[Function], run: Callable[[Callable[[], Any]], None]
):
    layer, x = Layer(function), torch.randn(4, 6, generator=torch.Generator().manual_seed(3))
    x.requires_grad_()
    precision = build_precision(name, loss_scale=SCALE)
    precision.prepare(layer, torch.optim.SGD(layer.parameters(), lr=0.1))
    with precision.training_context():
        with precision.forward_context():
            output = layer(x)
            loss = output.float().sum()
        assert output.dtype is HALF[name]
        run(lambda: precision.backward(loss))
    of_x, of_weight = expect(x.detach(), layer.weight.detach(), HALF[name])
    torch.testing.assert_close(x.grad / SCALE, of_x, rtol=0, atol=0)
    torch.testing.assert_close(layer.weight.grad, of_weight, rtol=0, atol=0)


def test_a_second_derivative_is_that_of_fp64():
    """The gradient of the squared gradient norm of sum(tanh(x W^T)), where W is used through its fp16 copy."""
    layer, x = Layer(Product), 0.3 * torch.randn(4, 6, generator=torch.Generator().manual_seed(4))
    precision = build_precision("apex_o1", loss_scale=1.0)
    precision.prepare(layer, torch.optim.SGD(layer.parameters(), lr=0.1))

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
    precision = build_precision(name, loss_scale=SCALE)
    precision.prepare(layer, torch.optim.SGD(layer.parameters(), lr=0.1))
    with precision.training_context():
        with precision.forward_context():
            output = layer(x)
            if kind == "tensor":
                output.register_hook(lambda gradient: gradient @ mixing)
            loss = output.float().sum()
        run(lambda: precision.backward(loss))
    gradient = torch.full((4, 5), SCALE).to(HALF[name]) @ mixing.to(HALF[name])
    expected = (gradient.T @ x.to(HALF[name])).float() / SCALE
    torch.testing.assert_close(layer.weight.grad, expected, rtol=0, atol=0)
