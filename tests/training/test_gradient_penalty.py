"""The gradient penalty with weights that take no part, and with operations without a second derivative."""

from typing import Any

import pytest
import torch
from support.properties import MECHANISMS
from support.training import batch, trainer
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from ampcompare.config.schema import TrainingConfig
from ampcompare.errors import TrainingError
from ampcompare.precision.registry import REGISTRY

TOLERANCE = {"float32": 1e-5, "float16": 0.02, "bfloat16": 0.1}


class Partly(nn.Module):
    """A network with weights that its loss does not reach."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(192, 4), nn.Linear(7, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x.flatten(1)).tanh()


@pytest.mark.parametrize("backend", [*MECHANISMS, "bf16"])
def test_an_unused_weight_counts_0(backend: str):
    """By hand in fp64: the loss and the norm of the gradients of the used weights, and their step."""
    torch.manual_seed(0)
    model, (images, labels) = Partly(), batch()
    weight, bias = (p.detach().double().requires_grad_() for p in model.used.parameters())
    loss = nn.functional.cross_entropy((images.double().flatten(1) @ weight.T + bias).tanh(), labels)
    gradients = torch.autograd.grad(loss, [weight, bias], create_graph=True)
    total = loss + 0.3 * torch.cat([g.flatten() for g in gradients]).norm()
    (of_weight,) = torch.autograd.grad(total, [weight])
    scale = {"loss_scale": 128.0} if REGISTRY[backend].scales else {}
    made = trainer(backend, model, TrainingConfig(gradient_penalty=0.3), **scale)
    unused = model.unused.weight.detach().clone()
    with made.precision.training_context():
        found = made.step([(images, labels)]).loss
    tolerance = TOLERANCE[REGISTRY[backend].dtype]
    assert float(found) == pytest.approx(total.item(), rel=tolerance)
    if not REGISTRY[backend].half_weights:
        change = model.used.weight.detach().double() - weight.detach()
        torch.testing.assert_close(change, -0.1 * of_weight, rtol=tolerance, atol=tolerance * 0.1)
    assert torch.equal(model.unused.weight, unused)


class Once(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * gradient


class OnceLayer(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Once.apply(x)


class Attention(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x.reshape(len(x), 1, 12, 16)
        return nn.functional.scaled_dot_product_attention(x, x, x).flatten(1)


@pytest.mark.parametrize("backend", ["none", "apex_o1_bf16"])
@pytest.mark.parametrize(
    ("layer", "named"), [(Attention, "scaled_dot_product"), (OnceLayer, "differentiate twice")]
)
def test_an_operation_without_second_derivative_is_named_in_one_line(
    backend: str, layer: type[nn.Module], named: str
):
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 192), layer(), nn.Linear(192, 4))
    made = trainer(backend, model, TrainingConfig(gradient_penalty=0.1))
    with made.precision.training_context(), pytest.raises(TrainingError) as refused:
        made.step([batch()])
    message = str(refused.value)
    assert message.startswith("training.gradient_penalty=0.1: ")
    assert named in message
    assert message.isprintable()
