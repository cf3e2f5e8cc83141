"""`why explain`: its table, its file, the cause of what it finds, and one line for what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from ampcompare.cli import main
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
    is_difference_shown,
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
        large = torch.zeros(4_000_000)
        for _ in range(5):
            large = large.double().float()
        return x + large[0]


class Pieces(nn.Module):
    def forward(self, x):
        time.sleep(0.05)
        return x


def casts(num_classes):
    return nn.Sequential(nn.Flatten(), Back(), nn.Linear(3072, 10))


def idles(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 10), Pieces())
"""


def explain(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["why", "explain", *words])
    return ended.value.code or 0


def test_native_is_explained_where_no_backend_is_named_on_forty_lines(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    file = tmp_path / "new" / "explained.json"
    assert explain(*TINY, "--seconds", "0.5", "--json", str(file)) == 0
    output = capsys.readouterr().out
    assert "native compared with none" in output
    assert "x as fast as none (" in output
    assert len(output.splitlines()) <= 40
    content = json.loads(file.read_text())
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


def test_no_cause_is_named_where_the_interval_contains_1():
    base = profile_of("none", [1.0, 2.0] * 10, {"convolution": 1.0})
    other = profile_of("native_bf16", [2.0, 1.0] * 10, {"convolution": 1.0, CASTS: 0.2})
    output = "\n".join(summarize(base, other, torch.device("cpu")))
    assert "no evidence for a difference in speed" in output
    assert "Largest change" not in output
    faster = profile_of("native_bf16", [0.5, 1.0] * 10, {"convolution": 0.4})
    output = "\n".join(summarize(base, faster, torch.device("cpu")))
    assert "no evidence" not in output
    assert "Largest change: convolution, from 1 ms to 0.4 ms." in output


def test_without_a_network_it_is_the_small_one_on_a_cpu(capsys):
    assert explain("--seconds", "0") == 0
    setting = "model tiny, data synthetic, batch 128 x 3 x 32 x 32, device cpu"
    assert f"native compared with none in one training step: {setting}" in capsys.readouterr().out


def test_without_seconds_there_are_types_and_memory_and_no_times(capsys):
    words = ("--config", "demo", "model.name=tiny", "device=cpu", "--against", "native", "backend=fp16")
    assert explain(*words, "--seconds", "0") == 0
    output = capsys.readouterr().out
    assert "fp16 compared with native in one training step: " in output
    assert "Time was not measured" in output
    assert " ms" not in output


@pytest.mark.parametrize(("name", "kind"), [("casts", CASTS), ("idles", IDLE)])
def test_casts_or_idle_time_are_named_where_they_make_a_network_slow(name: str, kind: str, tmp_path: Path):
    (tmp_path / "slow.py").write_text(SLOW)
    file = tmp_path / "explained.json"
    words = [f"model.name={tmp_path}/slow.py:{name}", *TINY[1:]]
    assert explain(*words, "backend=native_bf16", "--seconds", "0.5", "--json", str(file)) == 0
    for side in json.loads(file.read_text())["backends"]:
        times = side["ms"]["kinds"]
        # On a busy machine idle time grows, and ops' own does not.
        assert max({*times} if kind == IDLE else {*times} - {IDLE}, key=times.get) == kind


class ExclusiveTrainer:
    """A trainer and its precision; a step fails while another trainer's context is open."""

    open: ClassVar[set[ExclusiveTrainer]] = set()

    def __init__(self) -> None:
        self.precision, self.steps = self, 0

    @contextmanager
    def training_context(self):
        self.open.add(self)
        yield
        self.open.remove(self)

    def compute(self, batches) -> StepResult:
        assert self.open == {self}
        self.steps += 1
        return StepResult(0.0, 1)


def test_a_step_is_timed_in_the_context_of_its_own_backend_alone():
    trainers = [ExclusiveTrainer(), ExclusiveTrainer()]
    rounds = measure_interleaved(trainers, [], torch.device("cpu"), 0.1)
    assert len(rounds[0]) == len(rounds[1]) > 0  # a round has a turn of each
    assert all(trainer.steps > len(own) for trainer, own in zip(trainers, rounds, strict=True))


def test_a_ratio_is_that_of_rounds_and_has_an_interval_where_there_are_enough():
    assert speed_ratio([2.0, 4.0, 6.0], [1.0, 2.0, 2.0]) == (2.0, "3 rounds")
    assert speed_ratio([2.0], [1.0]) == (2.0, "one step each")
    value, basis = speed_ratio([2.0] * 20, [1.0] * 10 + [2.0] * 10)
    assert (value, basis) == (1.5, "95% CI 1.00 to 2.00, 20 rounds")


@pytest.mark.parametrize(
    ("times", "shown"), [((1.0, 1.0), False), ((1.0, 1.01), False), ((1.01, 1.0), False), ((1.0, 1.05), True)]
)
def test_a_difference_that_bench_does_not_resolve_is_none_here(times: tuple[float, float], shown: bool):
    """`bench` calls differences below 2% of one start chance, however narrow the interval is."""
    own, other = ([value] * 20 for value in times)
    assert is_difference_shown(own, other) is shown


@pytest.mark.parametrize("rounds", [1, 3, 11])
def test_as_many_rounds_as_bench_needs_are_needed_for_an_interval(rounds: int):
    base, other = (profile_of(name, [2.0] * rounds, {"convolution": 1.0}) for name in ("none", "native"))
    output = " ".join(summarize(base, other, torch.device("cpu")))
    assert f"it takes 12 rounds, of which {rounds} w" in output
    assert "evidence" not in output


WARNS = """
import warnings

from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3072, 10)

    def forward(self, x):
        warnings.warn("a warning of the network")
        return self.layer(x.flatten(1))


def build(num_classes=10):
    return Net()
"""


@pytest.mark.slow
def test_profiling_warns_of_nothing_and_the_warnings_of_the_network_are_shown(tmp_path: Path):
    """With torch 2.11, the profiler warned of cycles that it does not have here."""
    (tmp_path / "net.py").write_text(WARNS)
    command = [sys.executable, "-m", "ampcompare", "why", "explain", f"model.name={tmp_path}/net.py:build"]
    done = subprocess.run([*command, *TINY[1:], "--seconds", "0.1"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "a warning of the network" in done.stderr
    assert "torch" not in done.stderr


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
def test_bad_input_is_one_line_and_exit_code_2(capsys, words, expected):
    assert explain(*TINY, *words) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1


def test_a_network_that_reads_tensor_values_can_be_explained(tmp_path, capsys):
    lines = "import torch\nfrom torch import nn\nclass N(nn.Module):\n  def __init__(s):\n"
    lines += "    super().__init__()\n    s.l = nn.Linear(3 * 32 * 32, 10)\n  def forward(s, x):\n"
    lines += "    return s.l(x.flatten(1) * (2 if x.sum().item() > 0 else 1))\n"
    (tmp_path / "looks.py").write_text(f"{lines}def build(num_classes):\n    return N()\n")
    assert explain(f"model.name={tmp_path}/looks.py:build", *TINY[1:], "--seconds", "0") == 0
    assert "linear" in capsys.readouterr().out
