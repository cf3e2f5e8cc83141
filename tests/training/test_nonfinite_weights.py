"""What a loss that is not finite is blamed on: the weights are looked at first. And out of memory."""

from pathlib import Path

import pytest
from support.training import play

# Zeros in the input give zero gradients: in fp16 Adam's eps is 0, and 0 / 0 is NaN.
NET = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, classes, spoil=None):
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(48, 8), nn.BatchNorm1d(8), nn.Linear(8, classes)
        if spoil == "initial":
            nn.init.constant_(self.first.weight, float("nan"))

    def forward(self, x):
        x = nn.functional.avg_pool2d(x, 8).flatten(1)
        return self.head(self.norm(self.first(x * (torch.arange(48) > 5)).relu()))


class Loud(nn.Module):
    def forward(self, x):
        return x * 60000 * 60000


def dead(num_classes=10):
    return Net(num_classes)


def spoiled(num_classes=10):
    return Net(num_classes, "initial")


def loud(num_classes=10):
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 8), Loud(), nn.Linear(8, num_classes))


class Log(nn.Module):
    def forward(self, x):
        return torch.log(-x * x - 1)


def hopeless(num_classes=10):
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, num_classes), Log())


class Hungry(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.head = nn.Linear(3072, classes)

    def forward(self, x):
        if not self.training and len(x) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return self.head(x.flatten(1))


def hungry(num_classes=10):
    return Hungry(num_classes)
"""


@pytest.fixture(autouse=True)
def _net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)


def run(network: str, *words: str, code: int = 0) -> str:
    """Run a training of the network, which ends with this code, and return what it printed."""
    return play("wandb.mode=disabled", f"model.name=./net.py:{network}", *words, code=code)


def get_error_line(printed: str) -> str:
    (line,) = [line for line in printed.splitlines() if line.startswith("error: ")]
    return line


# The smallest positive number of the dtype in which the optimizer updates the weights.
SMALLEST = {"fp16": 2**-24, "bf16": 2**-133, "apex_o2": 2**-149}
ADAM = ("optimizer.name=adam", "optimizer.fused=false", "optimizer.lr=0.001", "log.every=1")


@pytest.mark.parametrize(
    ("scale", "every", "diagnostics"), [("dynamic", 1, "null"), ("1.0", 3, "1"), ("128.0", 1, "1")]
)
def test_adam_in_fp16_is_named_and_no_forward_pass(scale: str, every: int, diagnostics: str):
    words = (f"precision.loss_scale={scale}", f"diagnostics.every={diagnostics}", "epochs=12")
    printed = run("dead", "backend=fp16", *ADAM, f"log.every={every}", *words, code=1)
    assert "forward pass overflowed" not in printed
    assert "the weights of first were inf or nan before step" in printed
    line = get_error_line(printed)
    assert "an earlier update of the optimizer made them so" in line
    assert "fp32 weights" in line


def test_the_same_when_the_training_continues():
    words = ("precision.loss_scale=1.0", "training.on_nan=continue", "epochs=2")
    printed = run("dead", "backend=fp16", *ADAM, *words)
    assert printed.count("the weights of first were inf or nan before step") == 1
    assert "forward pass overflowed" not in printed


# By backend, eps and optimizer, in pairs.
EPS_OF_ADAM = [
    ("fp16", 1e-8, "adam"),
    ("fp16", 1e-4, "adamw"),
    ("bf16", 1e-8, "adamw"),
    ("apex_o2", 1e-9, "adam"),
]


@pytest.mark.parametrize(("backend", "eps", "name"), EPS_OF_ADAM)
def test_an_eps_that_is_0_in_the_dtype_of_the_weights_is_named_before_the_first_step(
    backend: str, eps: float, name: str
):
    is_zero = eps <= SMALLEST[backend] / 2  # rounds to the nearest, and halfway to 0
    options = ("training.on_nan=continue", "epochs=2", "log.every=1", "optimizer.fused=false")
    words = (f"backend={backend}", f"optimizer.name={name}", f"optimizer.eps={eps}")
    printed = run("dead", *words, *options)
    (before, after) = printed.split("step 1/", 1)
    assert before.count("optimizer.eps=1e-4") == int(is_zero)
    assert ("weights of first were inf or nan" in after) == is_zero


@pytest.mark.parametrize("backend", ["none", "native"])
def test_initial_weights_are_named(backend: str):
    printed = run("spoiled", f"backend={backend}", "epochs=12", code=1)
    assert "the initial weights of first are inf or nan" in printed
    assert "forward pass overflowed" not in printed


def test_weights_that_an_update_made_infinite_are_named():
    """The first update overflows, although the loss before it is finite."""
    reference = ("recipe=reference", "optimizer.fused=false", "epochs=2")
    words = ("optimizer.lr=1e38", "optimizer.weight_decay=1e10", *reference)
    printed = run("dead", "backend=none", *words, code=1)
    line = get_error_line(printed)
    assert "step 2: the training loss is NaN" in line
    assert "before step 2" in line


# By backend and loss scale; the other backends have none.
SCALES = [("none", None), ("native", "dynamic"), ("apex_o1", "1.0")]


@pytest.mark.parametrize(("backend", "scale"), SCALES)
def test_a_loss_that_is_nan_before_any_update_is_no_matter_of_the_learning_rate(
    backend: str, scale: str | None
):
    """While every step is skipped, the weights are the initial ones."""
    words = (f"backend={backend}", "epochs=12", "log.every=3", "optimizer.eps=1e-4", "optimizer.name=adam")
    if scale is not None:
        words += (f"precision.loss_scale={scale}",)
    printed = run("hopeless", *words, code=1)
    line = get_error_line(printed)
    assert "the training loss is NaN" in line
    assert "ampcompare why diff" in line
    assert "optimizer.lr" not in printed


@pytest.mark.parametrize("backend", ["native", "fp16"])
def test_a_forward_pass_that_overflows_is_still_named(backend: str):
    """Forward, loss and gradients are inf in fp16, and the weights are finite in every skipped step."""
    words = ("epochs=12", "log.every=1", "optimizer.fused=false")
    printed = run("loud", f"backend={backend}", *words, code=1)
    assert "the loss was inf or nan too, so the forward pass overflowed" in printed
    assert "weights of" not in printed


def test_out_of_memory_in_an_evaluation_names_its_own_batch_size():
    printed = run("hungry", "eval.batch_size=7", code=1)
    line = get_error_line(printed)
    assert "eval.batch_size=7" in line
    assert "with batch_size" not in line
    assert "training.accumulate" not in line
