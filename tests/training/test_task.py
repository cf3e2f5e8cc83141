"""Losses and metrics of outputs of any kind: what a step learns by and an evaluation adds up."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.training import task_of, trainer
from torch import Tensor, nn

from ampcompare import metrics
from ampcompare.data.dataset import TensorSplit
from ampcompare.data.device_loaders import TensorLoader
from ampcompare.errors import TrainingError, UserError
from ampcompare.precision import build_precision
from ampcompare.training.evaluation import Evaluation
from ampcompare.training.losses_and_metrics import cross_entropy, flatten_by_class, mae, mse
from ampcompare.training.task import Task


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def classes(*shape: int, of: int = 5) -> Tensor:
    return torch.randint(0, of, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("wrong", [-1, 5])
def test_a_class_that_the_network_does_not_have_is_named_with_the_networks_classes(wrong: int):
    outputs, targets = drawn(4, 5), torch.tensor([0, -100, wrong, 4])
    message = f"the network has 5 outputs, for classes 0 to 4, but a target is {wrong}"
    with pytest.raises(TrainingError, match=message):
        cross_entropy(outputs.reshape(2, 2, 5), targets.reshape(2, 2))
    with pytest.raises(TrainingError, match=message):
        evaluate(task_of(), outputs, targets)


def evaluate(task: Task, outputs: Tensor, targets: Tensor, size: int = 4) -> dict[str, float]:
    """Return the scores of a network with these outputs."""
    loader = TensorLoader(TensorSplit(outputs, targets), batch_size=size, device="cpu")
    found = Evaluation(nn.Identity(), loader, build_precision("none"), task=task).run()
    assert found is not None
    return found


def test_classes_are_the_last_dimension_where_that_fits_and_else_the_second():
    outputs, targets = drawn(3, 7, 5), classes(3, 7)
    expected = F.cross_entropy(outputs.transpose(1, 2), targets)
    assert cross_entropy(outputs, targets) == pytest.approx(expected)
    assert cross_entropy(outputs.transpose(1, 2), targets) == pytest.approx(expected)
    square = drawn(3, 5, 5)  # fits both ways
    last = F.cross_entropy(square.flatten(0, 1), classes(3, 5).flatten())
    assert cross_entropy(square, classes(3, 5)) == pytest.approx(last)
    image = drawn(2, 5, 4, 6)
    assert cross_entropy(image, classes(2, 4, 6)) == pytest.approx(F.cross_entropy(image, classes(2, 4, 6)))


@pytest.mark.parametrize(
    ("outputs", "targets"), [((4, 5), (5,)), ((4, 5), (4, 5)), ((4,), (4,)), ((3, 7, 5), (3, 6))]
)
def test_shapes_that_do_not_go_together_are_named(outputs: tuple[int, ...], targets: tuple[int, ...]):
    with pytest.raises(TrainingError, match=r"outputs \[.*\] and targets \[.*\] do not match"):
        flatten_by_class(drawn(*outputs), classes(*targets))


def test_tokens_that_are_ignored_count_in_no_score():
    outputs, targets = drawn(6, 7, 5), classes(6, 7)
    targets[0], targets[1, 3:] = -100, -100
    found = evaluate(task_of("task.metrics=[accuracy]"), outputs, targets)
    kept = targets != -100
    right = outputs.argmax(2)[kept] == targets[kept]
    assert found == {
        metrics.EVAL_LOSS: pytest.approx(F.cross_entropy(outputs[kept], targets[kept])),
        metrics.EVAL_ACCURACY: pytest.approx(right.float().mean()),
    }


def test_errors_of_a_column_are_those_of_its_values_and_nothing_is_broadcast():
    outputs, targets = drawn(8, 1), drawn(8, seed=1)
    assert mse(outputs, targets) == pytest.approx((outputs[:, 0] - targets).square().mean())
    assert mae(outputs, targets) == pytest.approx((outputs[:, 0] - targets).abs().mean())
    assert mse(outputs.half(), targets.double()).dtype == torch.float64
    for wrong in (drawn(8, 2), drawn(1), drawn(4)):
        with pytest.raises(TrainingError, match="do not match; expected the same shape"):
            mse(wrong, targets)


def test_scores_over_uneven_batches_are_those_of_the_whole(tmp_path: Path):
    (tmp_path / "scores.py").write_text(
        "def mean_error(outputs, targets):\n    return (outputs - targets).abs().mean()\n\n"
        "def sample_error(outputs, targets):\n    return (outputs - targets).abs().mean(1)\n"
    )
    names = ("mean_error", "sample_error")
    listed = ",".join(f"{tmp_path}/scores.py:{name}" for name in names)
    task = task_of("task.loss=mse", f"task.metrics=[mae,{listed}]")
    outputs, targets = drawn(10, 3), drawn(10, 3, seed=1)
    found = evaluate(task, outputs, targets, size=7)
    assert found[metrics.EVAL_LOSS] == pytest.approx(F.mse_loss(outputs, targets))
    for key in (metrics.EVAL_MAE, *(f"eval/{name}" for name in names)):
        assert found[key] == pytest.approx(F.l1_loss(outputs, targets)), key
    assert [score.better for score in task.scores] == ["lower"] * 4


class Headed(nn.Module):
    """Takes two tensors by name; gives logits in a form."""

    def __init__(self, form: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.embed, self.head, self.form = nn.Embedding(9, 6), nn.Linear(7, 5), form

    def forward(self, tokens: Tensor, *, weight: Tensor) -> Any:
        return self.form(self.head(torch.cat([self.embed(tokens), weight[..., None]], -1)))


FORMS: dict[str, Callable[[Tensor], Any]] = {
    "tensor": lambda x: x,
    "dict": lambda x: {"logits": x, "hidden": x.sum()},
    "object": lambda x: SimpleNamespace(logits=x),
}


def named_batch(*shape: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    return {"tokens": classes(*shape, of=9), "weight": drawn(*shape)}, {"labels": classes(*shape)}


@pytest.mark.parametrize(
    ("backend", "tokens"), [("none", ()), ("none", (4,)), ("native", (4,)), ("apex_o1", (4,))]
)
def test_batches_in_names_and_outputs_in_any_form_train_alike(backend: str, tokens: tuple[int, ...]):
    found = {}
    for name, form in FORMS.items():
        torch.manual_seed(0)
        made = trainer(backend, Headed(form), task=task_of(), init_scale=256.0)
        with made.precision.session():
            found[name] = [made.step([named_batch(8 if n else 5, *tokens)]).loss.item() for n in range(3)]
    assert found["dict"] == found["object"] == found["tensor"]
    assert found["tensor"][-1] < found["tensor"][1]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (
            "def good(o, t): ...",
            "it is not known whether higher or lower values are better; write good.better = ",
        ),
        (
            "def good(o, t): ...\ngood.better = 'up'",
            'its attribute `better` is neither "higher" nor "lower"; write good.better = ',
        ),
        (
            "def mae(o, t): ...\nmae.better = 'higher'",
            "has better='higher', but eval/mae is a listed metric with better='lower'",
        ),
        (
            "def good(o, t): ...\ngood.better, good.counts_samples = 'higher', 'yes'",
            "its attribute `counts_samples` is 'yes', neither True nor False",
        ),
        ("error = {}", "is a dict; expected a function of outputs and targets"),
        (
            "import torch\nclass error(torch.nn.Linear):\n"
            "    def __init__(self):\n        super().__init__(1, 1)",
            "has parameters, but only those of the network are trained",
        ),
    ],
)
def test_a_metric_that_cannot_be_one_is_refused(tmp_path: Path, content: str, line: str):
    (tmp_path / "mine.py").write_text(content)
    name = next(name for name in ("good", "mae", "error") if name in content)
    with pytest.raises(UserError) as refusal:
        task_of("task.loss=mse", f"task.metrics=[{tmp_path}/mine.py:{name}]")
    assert line in str(refusal.value)
    assert str(refusal.value).startswith("task.metrics='")


@pytest.mark.parametrize(
    ("targets", "of_built_in"),
    [
        ((8,), True),
        ((8, 1), True),
        ((8, 7), False),  # of tokens
        ((8, 4, 6), False),  # of pixels
    ],
)
def test_the_record_says_which_scores_count_samples(
    tmp_path: Path, targets: tuple[int, ...], of_built_in: bool
):
    (tmp_path / "own.py").write_text(
        "def f1(o, t): ...\ndef exact_f1(o, t): ...\nexact_f1.counts_samples = True\n"
    )
    own = ",".join(f"{tmp_path}/own.py:{name}" for name in ("f1", "exact_f1"))
    task = task_of(f"task.metrics=[accuracy,top5_accuracy,mse,{own}]")
    scores = task.record({"labels": classes(*targets)})[metrics.TASK]["metrics"]
    assert {key for key, score in scores.items() if score["counts_samples"]} == {
        "eval/exact_f1",
        *(("eval/accuracy", "eval/top5_accuracy") if of_built_in else ()),
    }


def test_a_metric_of_a_wrong_shape_ends_an_evaluation_in_one_line(tmp_path: Path):
    (tmp_path / "mine.py").write_text("def error(o, t):\n    return (o - t).abs().sum(0)\n")
    task = task_of("task.loss=mse", f"task.metrics=[{tmp_path}/mine.py:error]")
    with pytest.raises(
        TrainingError, match=r"mine\.py:error': returned a tensor \[3\] for 8 samples; expected"
    ):
        evaluate(task, drawn(8, 3), drawn(8, 3, seed=1), size=8)


COMMONEST: dict[str, tuple[Tensor, Tensor, float]] = {
    "one for each sample": (drawn(10, 4), torch.tensor([0, 3, 3, 1, 3, 2, 3, 0, 3, 3]), 0.6),
    "ignored targets do not count": (drawn(6, 3), torch.tensor([0, -100, 1, 1, -100, 2]), 0.5),
    "tokens, classes last": (
        drawn(2, 5, 7),
        torch.tensor([[1, 1, 1, 2, 6], [1, 0, -100, -100, -100]]),
        4 / 7,
    ),
    "pixels, classes second": (drawn(2, 3, 2, 2), torch.tensor([[[2, 2], [2, 0]], [[1, 2], [2, 2]]]), 0.75),
}


@pytest.mark.parametrize("case", COMMONEST)
@pytest.mark.parametrize("size", [1, 4])
def test_the_first_evaluation_finds_the_fraction_of_the_commonest_class(case: str, size: int):
    outputs, targets, expected = COMMONEST[case]
    loader = TensorLoader(TensorSplit(outputs, targets), batch_size=size, device="cpu")
    evaluation = Evaluation(nn.Identity(), loader, build_precision("none"), task=task_of())
    for _ in range(2):
        evaluation.run()
        assert evaluation.commonest_class == pytest.approx(expected)
