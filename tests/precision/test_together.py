"""Weights cast together: the numbers of autocast's own casts, in few launches, in eager and traced steps."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ampcompare.precision import build_precision
from ampcompare.precision.base import Precision
from ampcompare.train.execution import build_forward

LAYERS = 20  # more than one launch's


class Seen(TorchDispatchMode):
    """The names of the ops, and the optimizer's own options."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.half_casts = 0
        self.grad_scales: list[Tensor | None] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        if self.names[-1] == "_fused_sgd_":
            self.grad_scales.append((kwargs or {}).get("grad_scale"))
        result = func(*args, **(kwargs or {}))
        self.half_casts += self.names[-1] == "_to_copy" and torch.float16 in (args[0].dtype, result.dtype)
        return result


class Network(nn.Sequential):
    """Linear layers, the last of them used twice and the first frozen, and a convolution."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(*(nn.Linear(6, 6, bias=number % 2 == 0) for number in range(LAYERS)))
        self.convolution = nn.Conv1d(1, 1, 3, padding=1)
        self[0].requires_grad_(False)
        self.fails = False

    def forward(self, x: Tensor) -> Tensor:
        for number in range(LAYERS):
            x = self[number](x)
        if self.fails:
            raise RuntimeError("in the middle")
        return self[LAYERS - 1](self.convolution(x[:, None])[:, 0])


def built(backend: str, fuse: bool, **options: object) -> tuple[Precision, nn.Module, torch.optim.Optimizer]:
    model = Network()
    precision = build_precision(backend, init_scale=8.0, fuse=fuse, **options)
    wanted = [p for p in model.parameters() if p.requires_grad]
    return precision, *precision.prepare(model, torch.optim.SGD(wanted, lr=0.1, momentum=0.9, fused=True))


def step(
    precision: Precision, model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[Seen, list[Tensor]]:
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    with Seen() as seen:
        with precision.forward_context():
            loss = model(x).float().square().mean()
        precision.backward(loss)
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        precision.step(optimizer)
    optimizer.zero_grad()
    return seen, [loss.detach(), *gradients]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_losses_gradients_and_weights_are_bit_for_bit_those_of_autocasts_casts(dtype: str):
    plain, fused = built("native", False, dtype=dtype), built("native", True, dtype=dtype)
    for _ in range(3):
        expected, found = step(*plain)[1], step(*fused)[1]
        assert len(found) == len(expected)
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    for one, other in zip(plain[1].parameters(), fused[1].parameters(), strict=True):
        assert torch.equal(one, other)


def test_sixteen_weights_are_a_launch_and_so_are_their_gradients():
    (plain, _), (fused, _) = step(*built("native", False)), step(*built("native", True))
    weights = sum(p.requires_grad for p in Network().parameters())
    assert 16 < weights <= 32
    assert fused.names.count("_foreach_copy_") == 2 * 2
    assert fused.half_casts == plain.half_casts - 2 * weights


def test_nothing_is_cast_outside_autocast():
    _, model, _ = built("native", True)
    with Seen() as seen:
        out = model(torch.ones(2, 6))
    assert out.dtype == torch.float32
    assert not {"_foreach_copy_", "_to_copy"} & set(seen.names)


def test_the_parameters_are_found_again_after_a_forward_that_failed():
    precision, model, _ = built("native", True)
    model.fails = True
    with pytest.raises(RuntimeError, match="in the middle"), precision.forward_context():
        model(torch.ones(2, 6))
    assert model[1].weight is dict(model.named_parameters())["1.weight"]


def test_gradients_are_written_once_on_their_way_into_a_fused_step():
    (plain, _), (fused, _) = step(*built("native", False)), step(*built("native", True))
    assert [scale is None for scale in plain.grad_scales] == [
        False
    ]  # the kernel unscales, and writes them again
    assert [scale is None for scale in fused.grad_scales] == [True]
    for seen in (plain, fused):
        assert seen.names.count("_amp_foreach_non_finite_check_and_unscale_") == 1


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "fuse"), [("native", True), ("apex_o1", False)])
def test_a_traced_step_casts_weights_together_too(backend: str, fuse: bool, monkeypatch: pytest.MonkeyPatch):
    from torch._dynamo.backends.common import aot_autograd

    graphs: list[list[str]] = []

    def look(graph: torch.fx.GraphModule, inputs: list[Tensor]):
        from functorch.compile import make_boxed_func

        graphs.append([str(node.target) for node in graph.graph.nodes])
        return make_boxed_func(graph.forward)

    compiler, real = aot_autograd(fw_compiler=look, bw_compiler=look), torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda function, **options: real(function, backend=compiler, **options)
    )
    precision, model, _ = built(backend, fuse)
    with precision.session():
        forward = build_forward(model, lambda x, y: F.mse_loss(x.float(), y), True)
        with precision.forward_context():
            _, loss = forward(torch.randn(4, 6), torch.randn(4, 6))
        precision.backward(loss)
    together = [sum("_foreach_copy" in target for target in targets) for targets in graphs]
    assert together == [2, 2]  # of a launch's sixteen, forward and backward
