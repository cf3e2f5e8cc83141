"""A user's network in another dtype than fp32, from its run to the report."""

from pathlib import Path

import pytest
from support.training import play

from ampcompare import analyse_runs, load_runs
from ampcompare.cli import main
from ampcompare.errors import UserError

NET = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, classes, frozen):
        super().__init__()
        self.first = nn.Linear(192, 8)
        if frozen:
            self.first.requires_grad_(False)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, classes)

    def forward(self, x):
        x = nn.functional.avg_pool2d(x, 4).flatten(1).to(self.first.weight.dtype)
        return self.head(self.norm(self.first(x).relu()))


def in_fp16(num_classes=10):
    return Net(num_classes, False).half()


def encoder_in_bf16(num_classes=10):
    return Net(num_classes, True).bfloat16()


def hard_cast(num_classes=10):
    return nn.Sequential(Cast(), nn.Flatten(), nn.Linear(3072, num_classes)).bfloat16()


class Cast(nn.Module):
    def forward(self, x):
        return x.bfloat16()
"""


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)
    return tmp_path


# tests/precision/test_weight_dtypes.py tells of the losses under every backend.


def test_a_report_never_calls_a_run_with_16_bit_weights_fp32(net: Path):
    words = ("epochs=1", "diagnostics.every=null", "recipe=reference")
    play("model.name=./net.py:in_fp16", "precision.weights=keep", "optimizer.lr=0.01", *words)
    play("model.name=./net.py:in_fp16", *words)
    runs = load_runs(["runs"])
    kept = next(run for run in runs if run.option("precision.weights") == "keep")
    assert kept.environment["weight_dtypes"] == ["float16"]
    assert kept.environment["precision_dtype"] == "float16"
    analysis = analyse_runs(runs)
    names = sorted(group.display_name for group in analysis.groups)
    assert names == ["fp16 weights (backend=none)", "fp32 (none)"]
    alone = analyse_runs([kept])
    assert "fp32" not in str([group.display_name for group in alone.groups])
    assert "fp32" not in " ".join(alone.caveats)


def test_frozen_parts_are_named_in_the_record(net: Path):
    printed = play("model.name=./net.py:encoder_in_bf16", "epochs=1")
    (line,) = [line for line in printed.splitlines() if "converted to float32" in line]
    assert "first (bfloat16)" in line
    (run,) = load_runs(["runs"])
    assert run.environment["frozen_weights"] == {"first": "bfloat16"}
    assert run.environment["weight_dtypes"] == ["float32"]


def test_a_network_that_casts_to_bf16_itself_is_told_of_the_option(net: Path):
    with pytest.raises(UserError, match=r"precision\.weights=keep"):
        play("model.name=./net.py:hard_cast")
    words = ("epochs=1", "wandb.mode=disabled")
    play("model.name=./net.py:hard_cast", "precision.weights=keep", *words)


def test_why_compares_with_fp32(net: Path, capsys: pytest.CaptureFixture[str]):
    options = ["model.name=./net.py:encoder_in_bf16", "data.source=synthetic", "device=cpu", "batch_size=4"]
    options += ["backend=bf16", "precision.weights=keep"]
    with pytest.raises(SystemExit) as ended:
        main(["why", "diff", *options])
    assert ended.value.code == 0
    shown = capsys.readouterr()
    assert "compared with fp32" in shown.out
    assert (shown.out + shown.err).count("converted to float32") == 1
    assert "Traceback" not in shown.err
