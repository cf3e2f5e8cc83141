"""The training step and evaluation, with small real networks under every backend."""

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.properties import MECHANISMS
from support.training import batch, task_of, trainer
from torch import Tensor, nn

from ampcompare.config.schema import TrainingConfig
from ampcompare.data.dataset import TensorSplit
from ampcompare.data.device_loaders import TensorLoader
from ampcompare.errors import TrainingError
from ampcompare.models import tiny
from ampcompare.precision import REGISTRY, build_precision
from ampcompare.precision.base import Precision
from ampcompare.precision.registry import BackendInfo
from ampcompare.system.distributed import DistributedContext
from ampcompare.training.evaluation import Evaluation
from ampcompare.training.task import Task
from ampcompare.training.trainer import Trainer, learning_rate_factor


def near(tolerance: float, backend: str) -> float:
    """Return the tolerance for a backend: bf16 has 8 significant bits, fp16 11."""
    return tolerance * (8 if REGISTRY[backend].dtype == "bfloat16" else 1)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 32), nn.ReLU(), nn.Linear(32, 4))


def applied_gradients(made: Trainer, batches: list) -> Tensor:
    """Return the gradients that a step gives the optimizer, flat in fp32."""
    seen = []
    step = made.precision.step

    def record_gradients(optimizer: torch.optim.Optimizer) -> torch.Tensor | None:
        seen.append(
            torch.cat([p.grad.float().flatten() for g in optimizer.param_groups for p in g["params"]])
        )
        return step(optimizer)

    made.precision.step = record_gradients
    made.step(batches)
    return seen[0]


@settings(max_examples=25)
@given(
    backend=st.sampled_from(MECHANISMS),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    exponent=st.integers(0, 12),
)
def test_any_split_into_micro_batches_gives_the_gradients_of_the_whole(
    backend: str, sizes: list[int], exponent: int
):
    images, labels = batch(sum(sizes))
    parts = list(zip(images.split(sizes), labels.split(sizes), strict=True))
    split = applied_gradients(trainer(backend, network(), init_scale=2.0**exponent), parts)
    whole = applied_gradients(trainer(backend, network(), init_scale=2.0**exponent), [(images, labels)])
    assert (split - whole).norm() <= near(5e-3, backend) * whole.norm()


@settings(max_examples=25)
@given(
    backend=st.sampled_from(MECHANISMS),
    # Not smaller: fp16 gradients are stored in fp16, and below about 1e-5 an element rounds by more than a
    # per cent.
    bound=st.floats(0.1, 10),
    value=st.none() | st.floats(1e-2, 1),
    exponent=st.integers(0, 12),
    count=st.integers(1, 3),
)
def test_clipping_equals_that_of_fp32(
    backend: str, bound: float, value: float | None, exponent: int, count: int
):
    config = TrainingConfig(clip_norm=bound, clip_value=value)
    batches = [batch(8, seed=i) for i in range(count)]
    ours = applied_gradients(trainer(backend, network(), config, init_scale=2.0**exponent), batches)
    truth = applied_gradients(trainer("none", network(), config), batches)
    plain = applied_gradients(trainer("none", network()), batches)
    by_value = plain if value is None else plain.clamp(-value, value)
    expected = by_value * min(1.0, bound / by_value.norm().item())
    assert (truth - expected).norm() <= 1e-4 * expected.norm()
    assert (ours - truth).norm() <= near(0.02, backend) * truth.norm()


def test_an_error_of_a_step_notes_the_shapes_of_the_batch():
    images, labels = batch(8)
    with pytest.raises(TrainingError, match="a target is 4") as caught:
        trainer("none", network()).step([(images, torch.full_like(labels, 4))])
    assert caught.value.__notes__ == ["in a batch of inputs float32 [8, 3, 8, 8], targets int64 [8]"]


@pytest.mark.parametrize("autocast", [False, True])
def test_an_evaluation_is_in_fp32_unless_it_is_asked_to_be_as_the_training(autocast: bool):
    data = TensorSplit(*batch())
    made, seen = trainer("native", tiny(4)), set()
    made.model[0].register_forward_hook(lambda module, args, output: seen.add(output.dtype))
    loader = TensorLoader(data, batch_size=12, device="cpu")
    how = {"task": task_of(), "autocast": autocast}
    evaluation = Evaluation(made.model, loader, made.precision, **how)
    before = evaluation.run()
    assert seen == {torch.float16 if autocast else torch.float32}
    made.step([batch()])
    assert evaluation.run() == Evaluation(made.model, loader, made.precision, **how).run() != before


@pytest.mark.parametrize("images", [1, 8, 9])
def test_each_of_several_processes_asks_equally_often_in_an_evaluation(images: int):
    """Else one would wait for an answer of another that has no batch left."""

    class Alone(DistributedContext):
        """As if the others had nothing to add."""

        def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
            return tensor

    data, asked = TensorSplit(torch.zeros((images, 6)), torch.zeros(images).long()), []

    def ask(rank: int) -> bool:
        asked.append(rank)
        return False

    for rank in range(3):
        loader = TensorLoader(data, batch_size=8, device="cpu", rank=rank, processes=3)
        evaluation = Evaluation(nn.Linear(6, 4), loader, build_precision("none"), task=task_of())
        evaluation.run(partial(ask, rank), Alone(rank, 3))
    assert asked == sorted([0, 1, 2] * -(-images // 8))


def test_learning_rate_warms_up_and_falls_along_a_cosine():
    def factor(step: int, warmup: float = 0, name: str = "cosine") -> float:
        return learning_rate_factor(step, name=name, warmup_steps=warmup, total_steps=100)

    assert [factor(s, warmup=4) for s in range(5)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert factor(52, warmup=4) == pytest.approx(0.5)  # halfway from the warm-up's end to the last step
    assert factor(99, name="constant") == 1.0
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    truth = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
    for step in range(100):
        assert factor(step) == pytest.approx(truth.get_last_lr()[0], abs=1e-9)
        optimizer.step()
        truth.step()


# Parts of a step, micro-batches and processes, whose targets do not all count: the gradient of the whole.


def weighing(task: Task, backend: str = "none", features: int = 4) -> Trainer:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, features))
    return trainer(backend, model, task=task, lr=1.0, init_scale=1024.0)


def tokens(*lengths: int, most: int = 5) -> tuple[Tensor, Tensor]:
    """Return inputs [N, T, 3] and targets [N, T], of which the first `lengths` of each row count."""
    generator = torch.Generator().manual_seed(1)
    targets = torch.randint(0, 4, (len(lengths), most), generator=generator)
    for row, length in zip(targets, lengths, strict=True):
        row[length:] = -100
    return torch.randn(len(lengths), most, 3, generator=generator), targets


def moved(one: Trainer, batches: list[Any]) -> tuple[float, Tensor]:
    """Return the loss of a step and the change of the weights."""
    before = torch.cat([p.detach().flatten().clone() for p in one.model.parameters()])
    loss = one.step(batches).loss.item()
    return loss, torch.cat([p.detach().flatten() for p in one.model.parameters()]).float() - before


def parts_of(batch: tuple[Tensor, Tensor], *sizes: int) -> list[tuple[Tensor, Tensor]]:
    return list(zip(*(field.split(list(sizes)) for field in batch), strict=True))


@pytest.mark.parametrize("backend", MECHANISMS)
def test_micro_batches_with_ignored_targets_are_as_one_batch(backend: str):
    whole = tokens(5, 1, 3, 0, 0, 2, 4)
    task = task_of("training.label_smoothing=0.1")
    (loss, change), (split_loss, split) = (
        moved(weighing(task.weighted_by_targets() if sizes[1:] else task, backend), parts_of(whole, *sizes))
        for sizes in ((7,), (3, 2, 2))  # the second of them has nothing that counts
    )
    tolerance = 1e-5 if backend == "none" else near(5e-3, backend)
    assert split_loss == pytest.approx(loss, rel=tolerance)
    assert (split - change).norm() <= tolerance * change.norm()
    assert change.norm() > 0


class AsTwo(DistributedContext):
    """As if another process had the same numbers."""

    def sum_(self, tensor: Tensor) -> Tensor:
        return tensor.mul_(2)


def test_processes_weight_their_parts_by_the_targets_of_all():
    batch = tokens(5, 1, 0, 3)
    alone = moved(weighing(task_of().weighted_by_targets()), [batch])
    one = weighing(task_of().weighted_by_targets())
    one.world = AsTwo(size=2)
    together = moved(one, [(batch, 8)])  # with how many samples they have together
    assert together[0] == pytest.approx(alone[0])
    assert torch.allclose(together[1], alone[1])


class Forgetful(Precision):
    """A backend whose step does not say whether it was skipped."""

    def __init__(self, scales: bool) -> None:
        super().__init__()
        self.metadata = BackendInfo("own", "a test", scales=scales)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        super().step(optimizer)


def test_a_backend_that_scales_the_loss_must_tell_whether_it_skipped_the_step():
    def step(precision: Precision) -> Any:
        made = trainer("none", network())
        made.precision = precision
        return made.step([batch()])

    with pytest.raises(TrainingError, match=r"backend=own: step\(\) returned None"):
        step(Forgetful(scales=True))
    assert step(Forgetful(scales=False)).skipped is None


@pytest.mark.parametrize("scale", ["dynamic", 64.0])
@pytest.mark.parametrize("backend", MECHANISMS)
def test_the_step_of_every_backend_tells_of_the_skips_that_the_backend_counts(backend: str, scale: Any):
    options = {"loss_scale": scale} if REGISTRY[backend].scales else {}
    made = trainer(backend, network(), **options)
    inputs, targets = batch()
    for factor in (1.0, torch.inf, 1.0):
        before = int(made.precision.skipped_steps())
        skipped = made.step([(inputs * factor, targets)]).skipped
        assert bool(skipped) == int(made.precision.skipped_steps()) - before
        assert (skipped is not None) == REGISTRY[backend].scales
