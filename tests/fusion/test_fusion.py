"""With fuse=true a step has the numbers of one without, in fewer launches, passes and saved tensors."""

from __future__ import annotations

import copy
import io
import pickle
import random
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from support.properties import backends
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ampcompare.bench.throughput.traffic import megabytes, per_image
from ampcompare.checkpoint.resume import Identity
from ampcompare.config.load import load_config
from ampcompare.config.schema import TrainingConfig
from ampcompare.experiment import run
from ampcompare.fusion.modules import NormRelu, UncountedNorm, fuse_model
from ampcompare.fusion.norm_relu import norm_relu
from ampcompare.models import build_model
from ampcompare.precision import REGISTRY, build_precision
from ampcompare.records import load_runs
from ampcompare.tracking.start import run_name
from ampcompare.train.trainer import Trainer

REST = pytest.mark.slow  # each case is compiled, which takes seconds
QUICK = ["model.name=tiny", "data.source=synthetic", "device=cpu", "wandb.mode=offline", "fuse=true"]
# Rounded once instead of after each of three ops: a unit in the last place of fp16, or of fp32's sums over a
# batch.
TOLERANCES = {torch.float16: 2e-3, torch.float32: 1e-5}


class Launches(TorchDispatchMode):
    """Counts ops by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.counts[name] = self.counts.get(name, 0) + 1
        return func(*args, **(kwargs or {}))


def network(fuse: bool, name: str = "tiny", **options: object) -> nn.Module:
    torch.manual_seed(0)
    model = build_model(name, "cifar", 10)
    if fuse:
        fuse_model(model, **options)  # type: ignore[arg-type]
    return model


def trainer(
    backend: str, fuse: bool, compiled: bool = False, momentum: float = 0.9, **options: object
) -> Trainer:
    model = network(fuse, blocks=not compiled) if fuse else network(False)
    precision = build_precision(backend, init_scale=1024.0, fuse=fuse)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum, fused=True)
    model, optimizer = precision.prepare(model, optimizer)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    return Trainer(model, optimizer, schedule, precision, TrainingConfig(**options), compiled=compiled)  # type: ignore[arg-type]


def batch(seed: int, size: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 3, 32, 32, generator=generator), torch.randint(
        0, 10, (size,), generator=generator
    )


def close(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Equal to within TOLERANCES of the largest value."""
    assert found.dtype == expected.dtype
    assert found.stride() == expected.stride()
    off = (found.float() - expected.float()).abs().max()
    assert off <= TOLERANCES[dtype] * expected.float().abs().max().clamp(min=1e-3), off


class Case:
    """One BatchNorm with its inputs, to be run fused and as PyTorch does it."""

    def __init__(
        self, dtype: torch.dtype, weights: torch.dtype, layout: torch.memory_format, residual: bool
    ) -> None:
        torch.manual_seed(0)
        self.norm = nn.BatchNorm2d(6)
        with torch.no_grad():
            self.norm.weight.uniform_(0.5, 1.5)
            self.norm.bias.uniform_(-0.5, 0.5)
        self.norm.to(weights)
        shape = (4, 6, 5, 5)
        self.x = (3 * torch.randn(shape) + 1).to(dtype).contiguous(memory_format=layout)
        self.residual = torch.randn(shape).to(dtype).contiguous(memory_format=layout) if residual else None
        self.gradient = torch.randn(shape).to(dtype)  # in another layout, as a pooling's gradient comes

    def results(self, fused: bool) -> dict[str, Tensor]:
        norm = copy.deepcopy(self.norm)
        x = self.x.clone().requires_grad_()
        residual = None if self.residual is None else self.residual.clone().requires_grad_()
        y = self._forward(norm, x, residual, fused)
        y.backward(self.gradient)
        found = {"y": y.detach(), "x": x.grad, "weight": norm.weight.grad, "bias": norm.bias.grad}
        if residual is not None:
            found["residual"] = residual.grad
        found |= {"mean": norm.running_mean, "variance": norm.running_var}
        norm.eval()
        with torch.no_grad():
            found["evaluated"] = self._forward(norm, x, residual, fused)
        return found

    def _forward(self, norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None, fused: bool) -> Tensor:
        if fused:
            return norm_relu(norm, x, residual)
        y = norm(x)
        return torch.relu(y if residual is None else y + residual)


TYPES = {
    "fp32": (torch.float32, torch.float32),
    "fp16 with fp32 weights": (torch.float16, torch.float32),
    "pure fp16": (torch.float16, torch.float16),
}


@pytest.mark.parametrize(
    ("layout", "residual"),
    [(torch.channels_last, True), pytest.param(torch.contiguous_format, False, marks=REST)],
    ids=["channels_last residual", "contiguous alone"],
)
@pytest.mark.parametrize("types", list(TYPES))
def test_the_fused_op_has_the_results_gradients_and_statistics_of_three_ops(
    types: str, layout, residual: bool
):
    dtype, weights = TYPES[types]
    case = Case(dtype, weights, layout, residual)
    expected, found = case.results(fused=False), case.results(fused=True)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        close(found[name], value, torch.float16 if torch.float16 in (dtype, weights) else value.dtype)


def test_a_second_derivative_through_the_fused_op_is_that_of_three_ops():
    case = Case(torch.float32, torch.float32, torch.contiguous_format, residual=True)
    found = {}
    for fused in (False, True):
        norm, x = copy.deepcopy(case.norm), case.x.clone().requires_grad_()
        residual = case.residual.clone().requires_grad_()
        y = case._forward(norm, x, residual, fused)
        wanted = (x, residual, norm.weight, norm.bias)
        first = torch.autograd.grad((y * case.gradient).sum(), wanted, create_graph=True)
        penalty = sum(g.square().sum() for g in first)
        found[fused] = torch.autograd.grad(penalty, (x, norm.weight))
    for one, other in zip(found[True], found[False], strict=True):
        close(one, other, torch.float32)


def test_the_fused_op_refuses_a_training_batch_of_one_value_a_channel_as_pytorch_does():
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        norm_relu(nn.BatchNorm2d(3), torch.randn(1, 3, 1, 1))


@pytest.mark.parametrize("residual", [False, True], ids=["alone", "residual"])
def test_the_backward_keeps_no_activation_that_a_convolution_does_not_keep(residual: bool):
    case = Case(torch.float16, torch.float32, torch.channels_last, residual)
    x = case.x.requires_grad_()
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        y = norm_relu(case.norm, x, case.residual)
    large = [t.data_ptr() for t in saved if t.numel() == x.numel()]
    # Its input, which is saved nowhere else, and with a residual the output, which the next convolution
    # saves.
    assert large == [x.data_ptr(), *([y.data_ptr()] if residual else [])]


@pytest.mark.parametrize("residual", [pytest.param(False, marks=REST), True], ids=["alone", "residual"])
def test_the_compilers_code_passes_over_activations_as_often_as_it_should(residual: bool, monkeypatch):
    """Counted by the compiler itself: nothing of an activation's size is written that is not asked for."""
    from torch._inductor import compile_fx, metrics

    log = SimpleNamespace(isEnabledFor=lambda level: True, info=lambda *args: None)
    monkeypatch.setattr(compile_fx, "inductor_metrics_log", log)  # else it does not count at all
    torch.manual_seed(0)
    shape = (8, 7 + residual, 16, 16)
    norm = nn.BatchNorm2d(
        shape[1], eps=1e-5 * (1 + random.random())
    )  # never seen: what is cached is not counted
    x = torch.randn(shape).half().contiguous(memory_format=torch.channels_last).requires_grad_()
    other = torch.randn(shape).half().contiguous(memory_format=torch.channels_last) if residual else None
    size = 2 * x.numel()
    metrics.reset()
    y = norm_relu(norm, x, None if other is None else other.requires_grad_())
    forward = metrics.num_bytes_accessed
    y.backward(torch.ones_like(y))
    backward = metrics.num_bytes_accessed - forward
    small = 0.1 * size
    assert forward == pytest.approx((3 + residual) * size, abs=small)
    assert backward == pytest.approx((8 if residual else 5) * size, abs=small)


@pytest.mark.parametrize(
    "name", ["tiny", pytest.param("resnet18", marks=REST), pytest.param("resnet50", marks=REST)]
)
def test_a_fused_network_has_the_states_names_and_types_of_the_plain_one(name: str):
    plain, fused = network(False, name), network(True, name)
    expected, found = plain.state_dict(), fused.state_dict()
    assert list(found) == list(expected)
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    norms = [m for m in fused.modules() if isinstance(m, nn.BatchNorm2d)]
    joined = sum(isinstance(m, NormRelu) for m in norms)
    assert (len(norms), joined) == {"tiny": (2, 2), "resnet18": (20, 17), "resnet50": (53, 49)}[name]
    assert all(isinstance(m, UncountedNorm) for m in norms)


def test_a_fused_network_can_be_copied_and_pickled():
    model = network(True)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        twin(batch(0)[0])
        assert [int(twin[i].num_batches_tracked) for i in (1, 4)] == [1, 1]
    assert int(model[1].num_batches_tracked) == 0


def test_counters_move_in_one_launch_where_their_batch_norm_trains():
    model = network(True)
    model[4].eval()
    with Launches() as seen:
        model(batch(0)[0])
    assert seen.counts["_foreach_add_"] == 1
    assert [int(model[i].num_batches_tracked) for i in (1, 4)] == [1, 0]
    model.eval()
    model(batch(0)[0])
    assert [int(model[i].num_batches_tracked) for i in (1, 4)] == [1, 0]


@backends(REGISTRY)
def test_fused_steps_give_the_losses_weights_and_statistics_of_plain_ones(backend: str):
    found = {}
    for fuse in (False, True):
        made = trainer(backend, fuse, clip_norm=10.0)
        with made.precision.session():
            losses = [made.step([batch(i, 5 if i == 3 else 8)]).loss.item() for i in range(5)]
        states = {key: value.float() for key, value in made.model.state_dict().items()}
        found[fuse] = losses, states, made.precision.skipped_steps().item()
    (expected, plain, _), (losses, fused, skipped) = found[False], found[True]
    tolerance = 1e-4 if backend == "none" else 2e-2  # fp16 rounds elsewhere, and steps pass it on
    assert losses == pytest.approx(expected, rel=tolerance)
    assert skipped == 0
    for key, value in plain.items():
        assert (fused[key] - value).norm() <= 2 * tolerance * value.norm().clamp(min=0.1), key


@backends(["none", "native"])
def test_a_gradient_penalty_is_that_of_plain_steps(backend: str):
    losses = [
        trainer(backend, fuse, gradient_penalty=0.1).step([batch(0)]).loss.item() for fuse in (False, True)
    ]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


@pytest.mark.slow
def test_a_compiled_step_is_the_same_with_fuse():
    losses = []
    for fuse in (False, True):
        made = trainer("apex_o1", fuse, compiled=True)
        with made.precision.session():
            losses.append([made.step([batch(i)]).loss.item() for i in range(3)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


def test_a_step_that_compiled_a_block_is_no_step_to_time():
    made = trainer("none", True)
    made.step([batch(0, 11)])  # a size that no other test has
    cold = [made.step([batch(i, size)]).cold for i, size in enumerate((11, 11, 13, 13))]
    assert cold == [False, False, True, False]


def test_what_an_evaluation_compiled_makes_no_step_cold():
    made = trainer("none", True)
    made.step([batch(0, 11)])
    made.model.eval()
    with torch.no_grad():
        made.model(batch(0, 17)[0])  # a size that no other test has
    made.begin()
    assert not made.step([batch(1, 11)]).cold


def test_a_fused_op_is_one_op_and_bytes_come_near_to_those_of_merged_ops():
    plain, fused = (per_image("native", "resnet50", "cifar", fuse=fuse) for fuse in (False, True))
    assert len(fused["eager"]) < len(plain["eager"]) / 2
    before, after = megabytes(plain["eager"]), megabytes(fused["eager"])
    assert after < 0.85 * before
    assert megabytes(fused["ideal"]) == pytest.approx(megabytes(plain["ideal"]), rel=0.01)  # the limit stays
    assert megabytes(fused["merged"]) == pytest.approx(megabytes(plain["merged"]), rel=0.03)


def test_a_run_is_not_resumed_with_another_fuse():
    config = load_config(None, QUICK)
    there = {"identity": Identity(config, "data", "cpu").values()}
    assert there["identity"]["fuse"] is True
    other = Identity(load_config(None, [*QUICK, "fuse=false"]), "data", "cpu")
    assert other.differences(there) == ["fuse (True there, False here)"]


def test_a_fused_run_says_so_in_name_config_and_environment(tmp_path, quick_overrides):
    config = load_config(None, [*quick_overrides, "fuse=true", f"output_dir={tmp_path}"])
    assert run_name(config) == "standard-fuse_tiny_synthetic"
    assert run(config, Console(file=io.StringIO())).exit_code == 0
    (record,) = load_runs(tmp_path)
    assert record.option("fuse") is True
    assert record.option("environment")["fuse"] is True
    assert record.option("environment")["fused"] is False  # the optimizer: another thing


def test_a_batch_norm_that_is_not_the_usual_one_stays_as_it_is():
    kinds = [{"momentum": None}, {"affine": False}, {"track_running_stats": False}]
    for kind in kinds:
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, **kind), nn.ReLU())
        plain = copy.deepcopy(model)
        fuse_model(model)
        x = torch.randn(2, 3, 8, 8)
        assert torch.equal(model(x), plain(x)), kind
        assert all(torch.equal(a, b) for a, b in zip(model.buffers(), plain.buffers(), strict=True)), kind


def test_a_nan_passes_the_gradient_on_as_pytorchs_relu_does():
    x = torch.randn(4, 3, 5, 5)
    x[0, 0, 0, 0] = torch.nan
    gradients = []
    for fuse in (False, True):
        model = nn.Sequential(nn.BatchNorm2d(3), nn.ReLU())
        if fuse:
            fuse_model(model)
        model(x).sum().backward()
        gradients.append(model[0].bias.grad)
    assert torch.equal(*gradients)


def test_a_frozen_weight_does_not_stand_in_the_way_of_a_second_derivative():
    model = nn.Sequential(nn.BatchNorm2d(3), nn.ReLU())
    fuse_model(model)
    model[0].weight.requires_grad_(False)
    x = torch.randn(4, 3, 5, 5, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    gradient.square().sum().backward()
    assert x.grad is not None
