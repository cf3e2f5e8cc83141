"""`why explain`: its table, its file, the cause of what it finds, and one line for what is wrong."""

from __future__ import annotations

from contextlib import contextmanager
from typing import ClassVar

import pytest
import torch
from support.why_command import Why

from ampcompare.training.interval import StepResult
from ampcompare.training.run_context import make_config, prepare_run
from ampcompare.why.explain import StepProfile, summarize
from ampcompare.why.memory_estimate import estimate_memory
from ampcompare.why.op_dtypes import trace_forward
from ampcompare.why.op_profile import (
    CASTS,
    IDLE,
    OPTIMIZER,
    StepTimes,
    measure_interleaved,
    speed_ratio,
)

TINY = ["model.name=tiny", "data.source=synthetic", "batch_size=8", "device=cpu"]
TINY += ["data.train_limit=32", "data.test_limit=8"]
# Each so slow in its own way that other work on the machine hides nothing.
SLOW = """
import time

import torch
from torch import nn


class Back(nn.Module):
    def forward(self, x):
        large = torch.zeros(2_000_000)
        for _ in range(4):
            large = large.double().float()
        return x + large[0]


class Pieces(nn.Module):
    def forward(self, x):
        time.sleep(0.03)
        return x


def casts(num_classes):
    return nn.Sequential(nn.Flatten(), Back(), nn.Linear(3072, 10))


class Looks(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3072, 10)

    def forward(self, x):
        return self.layer(x.flatten(1) * (2 if x.sum().item() > 0 else 1))


def looks(num_classes):
    return Looks()


def idles(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 10), Pieces())
"""
FILES = {"slow.py": SLOW}


def test_native_is_explained_where_no_backend_is_named_on_forty_lines(why: Why, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    content, output = why.json("explain", *TINY, "--seconds", "0.5")
    assert "native compared with none" in output
    assert "x as fast as none (" in output
    assert len(output.splitlines()) <= 40
    assert [side["backend"] for side in content["backends"]] == ["none", "native"]
    for side in content["backends"]:
        assert {IDLE, OPTIMIZER, "convolution"} <= side["ms"]["kinds"].keys()
        assert side["ms"]["rounds"]
    assert content["backends"][1]["casts"]["tensors"] == 6


def profile_of(name: str, rounds: list[float], kinds: dict[str, float]) -> StepProfile:
    config = make_config([*TINY, f"backend={name}"])
    context = prepare_run(config)
    trace = trace_forward(context.build_trainer(config), context.first_steps(1)[0][0])
    return StepProfile(config, trace, estimate_memory(trace, config), StepTimes(tuple(rounds), kinds))


@pytest.mark.parametrize(("name", "kind"), [("casts", CASTS), ("idles", IDLE)])
def test_casts_or_idle_time_are_named_where_they_make_a_network_slow(name: str, kind: str, why: Why):
    words = [f"model.name=./slow.py:{name}", *TINY[1:], "backend=native_bf16", "--seconds", "0.1"]
    for side in why.json("explain", *words)[0]["backends"]:
        times = side["ms"]["kinds"]
        # On a busy machine idle time grows, and ops' own does not.
        assert max({*times} if kind == IDLE else {*times} - {IDLE}, key=times.get) == kind


class ExclusiveTrainer:
    """A trainer and its precision; a step fails while another trainer's context is open."""

    open: ClassVar[set[ExclusiveTrainer]] = set()

    def __init__(self) -> None:
        self.precision = self

    @contextmanager
    def training_context(self):
        self.open.add(self)
        yield
        self.open.remove(self)

    def compute(self, batches) -> StepResult:
        assert self.open == {self}
        return StepResult(0.0, 1)


def test_a_step_is_timed_in_the_context_of_its_own_backend_alone():
    rounds = measure_interleaved([ExclusiveTrainer(), ExclusiveTrainer()], [], torch.device("cpu"), 0.1)
    assert len(rounds[0]) == len(rounds[1]) > 0  # a round has a turn of each


def test_a_ratio_is_that_of_rounds_and_has_an_interval_where_there_are_enough():
    assert speed_ratio([2.0, 4.0, 6.0], [1.0, 2.0, 2.0]) == (2.0, "3 rounds")
    assert speed_ratio([2.0], [1.0]) == (2.0, "one step each")
    value, basis = speed_ratio([2.0] * 20, [1.0] * 10 + [2.0] * 10)
    assert (value, basis) == (1.5, "95% CI 1.00 to 2.00, 20 rounds")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--on", "cuda"], "--on"),
        (["backend=native", "--against", "native"], "--against native: backend=native is the same backend"),
        (["--against", "nativ"], "nativ"),
        (["model.nam=x"], "model.nam"),
        (["--json", "/proc/none/x.json", "--seconds", "0"], "cannot be written"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words, expected, why: Why):
    assert expected in why("explain", *TINY, *words, code=2)


def test_a_network_that_reads_tensor_values_can_be_explained(why: Why):
    assert "linear" in why("explain", "model.name=./slow.py:looks", *TINY[1:], "--seconds", 0)


def test_a_cause_is_named_where_the_rounds_show_a_difference_that_bench_resolves():
    """From 12 rounds on there is an interval. Differences below 2% of one start are chance for `bench`."""
    base = profile_of("none", [1.0, 2.0] * 10, {"convolution": 1.0})
    for rounds, cause, shown in (
        ([2.0, 1.0] * 10, {"convolution": 1.0, CASTS: 0.2}, "no evidence for a difference in speed"),
        ([0.99, 1.98] * 10, {"convolution": 0.4}, "no evidence for a difference in speed"),
        ([0.5, 1.0] * 10, {"convolution": 0.4}, "Largest change: convolution, from 1 ms to 0.4 ms."),
        ([1.0] * 11, {"convolution": 0.4}, "it takes 12 rounds, of which 11 were measured"),
        ([1.0], {"convolution": 0.4}, "it takes 12 rounds, of which 1 was measured"),
    ):
        other = profile_of("native_bf16", rounds, cause)
        output = "\n".join(summarize(base, other, torch.device("cpu")))
        assert shown in output
        assert ("Largest change" in output) == ("Largest change" in shown)


def test_without_a_network_it_is_the_small_one_on_a_cpu_and_without_seconds_no_time_is_measured(why: Why):
    output = why("explain", "--against", "native", "backend=fp16", "--seconds", 0)
    setting = "model tiny, data synthetic, batch 128 x 3 x 32 x 32, device cpu"
    assert f"fp16 compared with native in one training step: {setting}" in output
    assert "Time was not measured" in output
    assert " ms" not in output
