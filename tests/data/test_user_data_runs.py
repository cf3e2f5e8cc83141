"""Whole runs on data of one's own: recorded, pooled, killed and resumed."""

from pathlib import Path

import pytest
from support.refusals import line_of
from support.same_run import end_of, record_of
from support.training import play

from ampcompare import metrics
from ampcompare.config.load import load_config
from ampcompare.errors import UserError
from ampcompare.system.distributed import DistributedContext
from ampcompare.training.factory import load_data
from ampcompare.training.loaders import check_data, check_shared_batches

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x=None, **named):
        if "tokens" in named:
            x = named["tokens"].sum(1, keepdim=True).float().expand(-1, 6) / named["length"][:, None]
        return self.body(torch.cat([named["left"], named["right"]], 1) if "left" in named else x)

def build():
    return Net()

def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets["label"])

def error(outputs, targets):
    return (outputs.argmax(1) != targets["label"]).float()

error.better = "lower"
"""
# 90 samples, 3 steps an epoch.
WORDS = (
    *("model.name=./net.py:build", "data.train_limit=null", "data.test_limit=null", "batch_size=32"),
    *(
        "eval.batch_size=8",
        "log.every=1",
        "optimizer.name=sgd",
        "optimizer.momentum=0.9",
        "checkpoint.every_minutes=1e-9",
    ),
)
NAMED = ("task.loss=./net.py:loss", "task.metrics=[./net.py:error]", "task.metric=error")


@pytest.fixture(autouse=True)
def network(here: Path) -> None:
    (here / "net.py").write_text(NET)


def train(name: str, *words: str, folder: str = "runs", until: int | None = None) -> str:
    """Run to the end, or to the step at which it dies; returns what was printed."""
    task = NAMED if name.startswith("named") else ()
    where = (f"data.source=./data.py:{name}", f"output_dir={folder}")
    return play(*WORDS, *task, *where, *words, until=until)


@pytest.mark.parametrize(
    ("name", "images", "classes"),
    [("tensors", 33, 2), ("named_samples", 33, None), ("stream", None, None), ("restless_loader", 33, 2)],
)
def test_a_run_on_each_form_of_data_records_its_data(name: str, images: int | None, classes: int | None):
    message = train(name, *(["data.workers=0"] if "samples" in name else []))
    assert not any(word in message for word in ("crop", "flip", "RGB"))  # no sample is an image
    record = record_of(Path("runs"))
    assert record.state == "finished"
    assert record.values(metrics.STEP)[-1] == 6
    assert record.summary_number(metrics.TEST_IMAGES) == images
    assert record.summary_number(metrics.CLASSES) == classes
    assert metrics.RESUMED_INEXACTLY not in record.summary
    assert len(record.option("environment.data_fingerprint")) > 16
    assert (record.option("environment.data_source") is None) is (name == "tensors")


@pytest.mark.slow
def test_a_run_killed_within_an_epoch_and_resumed_equals_an_uninterrupted_run():
    """With workers in the second part alone."""
    train("samples", "data.workers=0", folder="whole")
    train("samples", "data.workers=0", folder="parts", until=5)
    assert "at step 4" in train("samples", "data.workers=2", "resume=auto", folder="parts")
    one, other = end_of(Path("whole")), end_of(Path("parts"))
    assert all(value.equal(other["model"][key]) for key, value in one["model"].items())
    assert one["fit"]["evals"] == other["fit"]["evals"]


def test_a_run_resumed_within_an_epoch_of_a_users_loader_says_that_it_is_inexact():
    train("stream", until=5)
    assert "epoch 2 continues inside your DataLoader" in train("stream", "resume=auto")
    record = record_of(Path("runs"))
    assert record.summary[metrics.RESUMED_INEXACTLY] is True
    assert len(record.values("train/loss")) == 6


@pytest.mark.parametrize(
    ("name", "word", "message"),
    [
        ("tensors", "data.mean=[0,0,0]", "data.mean=[0.0, 0.0, 0.0]: only RGB images of dtype uint8"),
        (
            "tensors",
            "data.workers=1",
            "data.workers=1: workers are for a map-style Dataset",
        ),
        (
            "loader",
            "data.workers=0",
            "data.workers=0: workers are for a map-style Dataset",
        ),
    ],
)
def test_an_option_that_does_not_fit_the_data_is_refused_in_one_line(name: str, word: str, message: str):
    assert line_of(train, name, word).startswith(message)


def test_a_cuda_graph_needs_tensors_in_memory():
    for name in ("samples", "stream"):
        config = load_config(None, [*WORDS, f"data.source=./data.py:{name}", "execution=cuda_graph"])
        with pytest.raises(UserError, match=f"{name} returns a Dataset or a DataLoader"):
            check_data(config, load_data(config), DistributedContext())


def test_a_loader_of_the_user_is_refused_in_several_processes():
    config = load_config(None, [*WORDS, "data.source=./data.py:stream"])
    data = load_data(config)
    check_shared_batches(config, data, 1)
    with pytest.raises(UserError, match="whose batches 2 processes cannot share; return the Dataset"):
        check_shared_batches(config, data, 2)


BREAKS = """
class Breaks(Stream):
    def __iter__(self):
        for number, batch in enumerate(super().__iter__()):
            if number == 2:
                raise OSError("gone")
            yield batch

def breaks(train, batch_size):
    return Breaks(train, batch_size)
"""


def test_data_that_fail_within_a_run_end_it_as_failed_rather_than_as_bad_input():
    with Path("data.py").open("a") as file:
        file.write(BREAKS)
    with pytest.raises(UserError, match=r"cannot get batch 2 of epoch 0 .*OSError: gone") as caught:
        train("breaks", "data.kwargs.batch_size=32")
    assert caught.value.exit_code == record_of(Path("runs")).exit_code == 1
