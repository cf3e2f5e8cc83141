"""The batch size stands once: in the option, or in the user's DataLoader; never above the training set."""

from pathlib import Path
from typing import Any

import pytest
from support.refusals import line_of
from support.same_run import record_of

from ampcompare.bench.worker import make_config
from ampcompare.config.load import config_from_cli
from ampcompare.entrypoint import main
from ampcompare.training.loaders import data_warnings
from ampcompare.training.run_context import RunContext, prepare_run

DATA = """
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler
from torch.nn.utils.rnn import pad_sequence

class Texts(Dataset):
    classes = ("a", "b")

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.full((2 + index % 5,), 1 + index % 9), index % 2

def pad(samples):
    texts, labels = zip(*samples)
    lengths = torch.tensor([len(text) for text in texts])
    return {"tokens": pad_sequence(texts, batch_first=True), "lengths": lengths}, torch.tensor(labels)

def loader(train, size=24, count=60):
    return DataLoader(Texts(count), batch_size=size, shuffle=train, collate_fn=pad)

def sampled(train, size=24, count=60):
    data = Texts(count)
    return DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), size, False), collate_fn=pad)

class Stream:
    def __len__(self):
        return 3

    def __iter__(self):
        data = Texts(60)
        for first in (0, 20, 40):
            yield pad([data[i] for i in range(first, first + 20)])

def stream(train):
    return Stream()

def by_option(train, batch_size):
    return loader(train, batch_size)

def samples(train, count=60):
    class Fixed(Texts):
        def __getitem__(self, index):
            return {"tokens": torch.ones(4, dtype=torch.long), "lengths": torch.tensor(4)}, index % 2
    return Fixed(count)

def tensors(train, count=60):
    tokens = torch.arange(count * 4).reshape(count, 4) % 9 + 1
    return {"tokens": tokens, "lengths": torch.full((count,), 4)}, torch.arange(count) % 2
"""
NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes=2):
        super().__init__()
        self.embedding, self.head = nn.Embedding(10, 8), nn.Linear(8, num_classes)

    def forward(self, tokens, lengths):
        return self.head(self.embedding(tokens).sum(1) / lengths[:, None])

def build(num_classes=2):
    return Net(num_classes)
"""


@pytest.fixture(autouse=True)
def files(here: Path) -> None:
    (here / "data.py").write_text(DATA)
    (here / "net.py").write_text(NET)


def words(name: str, *more: str) -> list[str]:
    return ["model.name=./net.py:build", f"data.source=./data.py:{name}", "device=cpu", *more]


def prepare(name: str, *more: str) -> RunContext:
    return prepare_run(config_from_cli(words(name, *more)))


@pytest.mark.parametrize(
    ("name", "size"),
    [("loader", 24), ("loader", 7), ("sampled", 24), ("sampled", 1), ("stream", 20)],
)
def test_a_loader_gives_the_batch_size(name: str, size: int):
    more = [] if name == "stream" else [f"data.kwargs.size={size}"]
    for make in (config_from_cli, make_config):
        context = prepare_run(make(words(name, *more)))
        assert context.config.batch_size == size
        batches = [len(targets) for _, targets in context.train.epoch(0)]
        assert batches[0] == size
        assert sum(batches) == 60
    assert not any("batch_size" in line for line in data_warnings(context.config, context.data))


def test_a_batch_size_that_is_given_still_has_to_agree(here: Path):
    assert prepare("loader", "batch_size=24").config.batch_size == 24
    (here / "mine.yaml").write_text("batch_size: 32\n")
    for more in (["batch_size=32"], ["--config", "mine.yaml"]):
        line = line_of(prepare, "loader", *more)
        assert line.startswith("batch_size=32: the DataLoader of ./data.py:loader has batches of 24")
    # A function with a parameter batch_size makes the loader of the option.
    assert prepare("by_option", "batch_size=16").config.batch_size == 16


@pytest.mark.parametrize(
    ("name", "more", "numbers"),
    [
        ("tensors", ["batch_size=61"], (61, 60)),
        ("tensors", ["data.kwargs.count=100"], (128, 100)),
        ("tensors", ["batch_size=32", "data.train_limit=31"], (32, 31)),
        ("loader", ["data.kwargs.size=90"], (90, 60)),
        ("by_option", ["batch_size=100"], (100, 60)),
    ],
)
def test_a_batch_size_above_the_training_set_is_refused(name: str, more: list[str], numbers: tuple[int, int]):
    line = line_of(prepare, name, *more)
    size, count = numbers
    assert line.startswith(f"batch_size={size}: ./data.py:{name} has only {count} training samples")
    assert f"at most {count}" in line


def test_a_run_on_padded_text_records_the_loaders_batch_size_and_has_words_for_text(capfd):
    assert main(words("loader", "epochs=1", "log.every=1", "backend=native_bf16", "wandb.mode=offline")) == 0
    printed = capfd.readouterr().out
    assert "60 training samples in 3 training batches, batch 24" in printed
    assert not any(word in printed for word in ("crop", "image", "flip"))
    record: Any = record_of(Path("runs"))
    assert record.option("batch_size") == 24
    assert record.summary_number("data/test_images") == 60
