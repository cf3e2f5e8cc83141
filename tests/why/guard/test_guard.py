"""`why guard`: the hunt in trials that are told, the modules of a network, the command with real trials."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from ampcompare.cli import app
from ampcompare.config.arguments import parse
from ampcompare.errors import UserError
from ampcompare.why.guard.command import run_guard
from ampcompare.why.guard.costs import costs, doubts
from ampcompare.why.guard.hunt import Hunt
from ampcompare.why.guard.modules import Network, look_at
from ampcompare.why.guard.trials import Trial, Trials

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
"""


class Told(Trials):
    """Trials that end as a rule says: NaN where it says that they do not cure."""

    def __init__(self, cures: Callable[[set[str]], bool], workers: int = 1) -> None:
        super().__init__(parse(["backend=fp16"]), Path(), 10, workers)
        self.rule = cures

    def baseline(self) -> Trial:
        return Trial("base", 2.0, 10.0, 10.5, 100.0)

    def of(self, sets):
        return [
            Trial("x", 2.05 if self.rule({*one}) else math.nan, 10.0 + len(one), 10.5 + len(one), 100.0)
            for one in sets
        ]


CALLED = ("a", "a.x", "a.y", "b", "b.x", "b.x.u", "b.x.v", "c")
NETWORK = Network(CALLED, ("a.x", "a.y", "b.x.u", "b.x.v", "c"), "a device")


def below(kept: set[str], name: str) -> bool:
    """Whether a module is kept, itself or with one above it."""
    return any(k == "*" or k == name or name.startswith(f"{k}.") for k in kept)


def hunt(cures: Callable[[set[str]], bool]) -> tuple[Hunt, list[str]]:
    said: list[str] = []
    made = Hunt(Told(cures), NETWORK, 0.05, said.append)
    made.begin()
    return made, said


@pytest.mark.parametrize("name", NETWORK.work)
def test_one_planted_module_is_named_in_few_trials(name: str):
    made, _ = hunt(lambda kept: below(kept, name))
    assert made.find() == [name]
    assert len(made.asked) <= 2 * math.log2(len(NETWORK.work))
    assert len(made.frame) == 3  # fp32, nothing kept, all kept


def test_two_that_need_each_other_are_both_named():
    made, _ = hunt(lambda kept: below(kept, "a.y") and below(kept, "c"))
    assert made.find() == ["a.y", "c"]


@pytest.mark.parametrize(("loss", "is_well"), [(2.09, True), (1.2, True), (2.11, False), (math.inf, False)])
def test_a_loss_is_well_up_to_the_margin_above_the_baseline(loss: float, is_well: bool):
    made, _ = hunt(lambda kept: True)
    assert made.cures(Trial("x", loss)) is is_well
    assert not made.cures(Trial("x", loss, trained=False))


def test_costs_are_told_together_and_alone_beside_the_plain_trial():
    found = costs(Told(lambda kept: True), ["a", "b"])
    assert [(cost.kept, cost.ms) for cost in found] == [(("a", "b"), 2.0), (("a",), 1.0), (("b",), 1.0)]
    assert all(cost.is_told for cost in found)
    assert not doubts(30, 1, False, found)
    assert "too few to tell" in doubts(3, 1, False, found)[0]
    assert "side by side" in doubts(30, 2, False, found)[0]


def test_the_modules_are_those_that_a_forward_calls_in_its_order(tmp_path: Path):
    (tmp_path / "net.py").write_text(NET)
    words = (f"model.name={tmp_path / 'net.py'}:build", *SMALL, "backend=none")
    network = look_at(parse([*words]))
    assert network.work == ("flat", "first", "block.0", "block.1", "head")
    assert network.parts("") == ("flat", "first", "block", "head")
    assert network.parts("block") == ("block.0", "block.1")
    kept = look_at(parse([*words, "precision.keep_fp32=block,head"]))
    assert kept.work == ("flat", "first")


@pytest.mark.parametrize(
    ("words", "how", "said"),
    [
        (["backend=none"], {}, "backend=none: is fp32 here"),
        (["backend=fp16"], {"margin": -1.0}, "--margin -1.0: expected a number above 0"),
        (["backend=fp16", "precision.keep_fp32=nowhere", "model.name=tiny", *SMALL], {}, "no module of the"),
    ],
)
def test_a_bad_request_is_one_line(words, how, said: str):
    with pytest.raises(UserError, match=said):
        run_guard(words, Console(quiet=True), **how)


@pytest.mark.slow
def test_the_planted_module_is_named_by_trials_of_a_sweep_and_again_without_them(tmp_path, monkeypatch):
    """The whole command; a second time it finds its trials there and starts none."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)
    words = ["why", "guard", "backend=fp16", "model.name=./net.py:plain", *SMALL, "epochs=2"]
    words += ["--steps", "2", "--json", "out.json", "--out", "trials"]
    said = []
    for _ in range(2):
        result = CliRunner().invoke(app, words, catch_exceptions=False)
        assert result.exit_code == 0
        said.append(result.output)
        assert len([*Path("trials/wandb").glob("*run-*")]) == 3 + 2
    assert said[0] == said[1]
    assert said[0].rstrip().endswith("use: precision.keep_fp32=0")
    found = json.loads(Path("out.json").read_text())
    assert found["kept"] == ["0"]
    assert found["trials"]["search"] <= 2 * math.log2(len(found["modules"]))
    assert found["plain"]["loss"] == "nan"
