"""`why guard`: the search with scripted trials, the modules of a network, the command with real trials."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.outside import Outside
from support.why_command import Why

from ampcompare.why.guard import (
    MinimalSetSearch,
    Trial,
    list_called_modules,
)
from ampcompare.why.step import from_options

SMALL = ("data.source=synthetic", "data.train_limit=64", "data.test_limit=32", "batch_size=16", "device=cpu")
NET = """
import torch
from torch import nn


class Loud(nn.Module):
    def forward(self, x):
        return (x.abs() + 1.0) * 6e4 * 6e4 / 3.6e9


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.flat, self.first = nn.Flatten(), nn.Linear(3072, 16)
        self.block = nn.Sequential(nn.ReLU(), Loud())
        self.again = self.block[0]
        self.never = nn.Linear(3, 3)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.again(self.block(self.first(self.flat(x)))))


def build(num_classes=10):
    return Net()


def plain(num_classes=10):
    return nn.Sequential(Loud(), nn.Flatten(), nn.ReLU(), nn.Linear(3072, 10))


class Mixed(nn.Module):
    # It does not run with another module in fp32.
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(3072, 16), nn.Linear(16, 10)

    def forward(self, x):
        half = self.first.weight.dtype == self.head.weight.dtype
        return self.head(self.first(x.flatten(1)) if half else self.first.weight @ self.head.weight.sum(1))


def mixed(num_classes=10):
    return Mixed()


class Amplified(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 1e30 if gradient.dtype == torch.float16 else gradient


class Amplifier(nn.Module):
    # The loss is finite, and its gradients are so at no loss scale.
    def forward(self, x):
        return Amplified.apply(x)


def amplified(num_classes=10):
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 16), Amplifier(), nn.Linear(16, 10))


def quiet(num_classes=10):
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 16), nn.ReLU(), nn.Linear(16, 10))


class Outside(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.full((1,), 6e4)), nn.Linear(3072, 10)

    def forward(self, x):
        return self.head(x.flatten(1) * self.scale * self.scale / 3.6e9)


def outside(num_classes=10):
    return Outside()
"""
FILES = {"net.py": NET}
CALLED = ("a", "a.x", "a.y", "b", "b.x", "b.x.u", "b.x.v", "c")
WORK = ("a.x", "a.y", "b.x.u", "b.x.v", "c")


@pytest.fixture(autouse=True)
def fast(outside: Outside) -> None:
    """Let the seconds that measure the cost pass quickly."""
    outside.scale_time(20)


BAD = {
    "backend=none computes in fp32": ["backend=none"],
    "--margin -1.0: expected a number above 0": ["--margin=-1"],
    "no module of the": ["precision.keep_fp32=nowhere"],
    "learns too little": ["optimizer.lr=1e-9", "--steps", "4"],
    "is a directory": ["--json", "."],
}


def is_kept(kept: set[str], name: str) -> bool:
    """Return whether a module is kept, itself or with a module above it."""
    return any(k == "*" or k == name or name.startswith(f"{k}.") for k in kept)


def search_with(passes: Callable[[set[str]], bool]) -> MinimalSetSearch:
    """Return a search with scripted trials: a loss of 2 if the set passes, else NaN. Fp32 learns 2.5 to 2."""

    def train(backend: str, kept: tuple[str, ...]) -> Trial:
        is_within = backend == "none" or passes({*kept})
        return Trial(kept, 2.5, 2.0 if is_within else math.nan)

    search = MinimalSetSearch(train, "fp16", 0.05, lambda line: None)
    assert search.start() is passes(set())
    return search


@pytest.mark.parametrize(
    ("needed", "found"),
    [*(((name,), [name]) for name in (*WORK, "a", "b.x")), (("a.y", "c"), ["a.y", "c"]), ((), None)],
)
def test_the_modules_that_need_fp32_are_found_in_few_trials(needed: tuple[str, ...], found: list[str] | None):
    """One module, one that calls others, two that need each other; none, where no set passes."""
    search = search_with(lambda kept: bool(needed) and all(is_kept(kept, name) for name in needed))
    assert search.find(CALLED) == found
    most = max(1, len(needed)) * (math.ceil(math.log2(len(CALLED) + 1)) + 1)
    assert len(search.trials) - 2 <= most  # beside nothing and all of it


@pytest.mark.parametrize(("loss", "is_within"), [(2.02, True), (1.2, True), (2.03, False), (math.nan, False)])
def test_a_loss_is_within_the_margin_up_to_a_fraction_of_what_fp32_learned(loss: float, is_within: bool):
    search = search_with(lambda kept: True)
    assert search.is_within_margin(Trial((), 2.5, loss)) is is_within
    assert not search.is_within_margin(Trial((), 2.5, loss, trained=False))


def test_the_modules_are_those_that_a_forward_calls_in_its_order():
    words = ("model.name=./net.py:build", *SMALL, "backend=none")
    called = list_called_modules(from_options(words))
    assert called == ["flat", "first", "block", "block.0", "block.1", "head"]
    kept = from_options((*words, "precision.keep_fp32=block,head"))
    assert list_called_modules(kept) == ["flat", "first"]


@pytest.mark.parametrize("expected", BAD)
def test_a_bad_request_is_one_line(expected: str, why: Why):
    assert expected in why("guard", "backend=fp16", "model.name=tiny", *SMALL, *BAD[expected], code=2)


ADAM = ["backend=fp16", "optimizer.name=adam", "optimizer.lr=1e-3", "schedule.warmup_epochs=0"]
PLAIN = ["backend=fp16", "recipe=reference", "optimizer.lr=1e-4", "--margin", "0.2"]
EPS = "optimizer.eps=0.0001"
SEARCHES = {
    "only the planted module": ("plain", PLAIN, "found", ["0"], ["precision.keep_fp32=0"]),
    "no set of modules": ("outside", PLAIN, "no set of modules", [], []),
    "every step skipped": (
        "amplified",
        [*ADAM, "backend=native", "--margin", "9"],
        "found",
        ["1"],
        ["precision.keep_fp32=1"],
    ),
    "does not run": (
        "mixed",
        [*ADAM, EPS],
        "found",
        ["first", "head"],
        ["precision.keep_fp32=first,head"],
    ),
    # The moments of Adam are those of fp16 weights: without an eps, 0 is divided by 0.
    "an eps": ("quiet", [*ADAM, "--margin", "0.9"], "an option", [], [EPS]),
    "an eps of saved weights": (
        "quiet",
        [*ADAM, "--margin", "0.9", "--weights", "weights.pt"],
        "an option",
        [],
        [EPS],
    ),
    "an eps and modules": (
        "plain",
        [*ADAM, "optimizer.lr=1e-4", "--margin", "0.9"],
        "found",
        ["0"],
        [EPS, "precision.keep_fp32=0"],
    ),
    "kept modules": (
        "quiet",
        [*ADAM, "precision.keep_fp32=3", "--margin", "0.1"],
        "found",
        ["1"],
        [EPS, "precision.keep_fp32=3,1"],
    ),
}
SAYS = {
    "only the planted module": r"cost: a step takes [\d.]+x as long",
    "no set of modules": "parameters that belong to no called module: scale",
    "every step skipped": r"native as it is: loss [\d.]+, every step skipped",
    "does not run": r"first in fp32: failed \(",
}


@pytest.mark.parametrize("name", SEARCHES)
def test_the_smallest_set_or_the_option_that_helps_is_found(name: str, why: Why):
    network, words, outcome, kept, use = SEARCHES[name]
    if "weights.pt" in words:
        space: dict = {}
        exec(NET, space)
        torch.save(space[network]().state_dict(), "weights.pt")
    words = [f"model.name=./net.py:{network}", *SMALL, "--steps", "8", "--json", "found.json", *words]
    output = why("guard", *words, code=int(outcome == "no set of modules"))
    found = json.loads(Path("found.json").read_text())
    assert (found["outcome"], found["kept"], found["use"]) == (outcome, kept, " ".join(use) or None)
    assert (f"use: {' '.join(use)}" in output) if use else "use: " not in output
    assert re.search(SAYS.get(name, ""), output)
    assert (found["cost"] is not None) == (outcome == "found")
