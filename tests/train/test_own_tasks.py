"""Other people's network, data, loss and metrics, from `ampcompare run` to what the report says of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support.own_tasks import GPT, TEXT

from ampcompare.cli import main
from ampcompare.records import RunRecord, load_runs

NET = """
from torch import nn


class Named(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x, shift):
        return self.layers(x) + shift


def build():
    return Named(4)


def other():
    return Named(5)
"""
TABLE = """
import torch


def build(train):
    draw = torch.Generator().manual_seed(int(train))
    x = torch.randn(150 if train else 60, 4, generator=draw)
    return {"x": x, "shift": torch.ones(len(x), 1)}, x.sum(1)
"""
SCORES = """
def spread(outputs, targets):
    return (outputs.flatten() - targets).abs()


def third_error(outputs, targets):
    return outputs[:, 2] - targets
"""
BACKENDS = ("none", "native", "apex_o1")
QUICK = (
    *("model.name=./net.py:build", "data.source=./data.py:build", "device=cpu", "wandb.mode=offline"),
    *("batch_size=16", "log.every=4", "log.warmup_steps=2", "diagnostics.every=4", "resume=never"),
)
TEXT_WORDS = ("epochs=2", "optimizer.name=adamw", "optimizer.lr=0.01")


@pytest.fixture
def of_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return here(tmp_path, monkeypatch, GPT, TEXT)


@pytest.fixture
def of_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return here(tmp_path, monkeypatch, NET, TABLE)


def here(folder: Path, monkeypatch: pytest.MonkeyPatch, net: str, data: str) -> Path:
    """A folder with a user's files in it, in which the test is."""
    for name, content in {"net.py": net, "data.py": data, "scores.py": SCORES}.items():
        (folder / name).write_text(content)
    monkeypatch.chdir(folder)
    return folder


def ampcompare(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


def train(*words: str) -> RunRecord:
    """The record of a run, in the folder `runs` unless the words name another."""
    named = (word.removeprefix("output_dir=") for word in words if word.startswith("output_dir="))
    folder = Path(next(named, "runs"))
    known = {run.id for run in load_runs([folder])} if folder.exists() else set()
    assert ampcompare("run", *QUICK, *words) == 0
    (run,) = (run for run in load_runs([folder]) if run.id not in known)
    return run


@pytest.fixture
def refused(capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The line that a run is refused with, before its record is started."""

    def refuse(*words: str) -> str:
        assert ampcompare("run", *QUICK, *words) == 2
        *_, line = capfd.readouterr().err.splitlines()  # above it where the part failed
        assert not list(Path().glob("runs/wandb/*run-*"))
        return line.removeprefix("error: ")

    return refuse


def report(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[str, str]:
    """What the terminal and the page say, each as one line."""
    capfd.readouterr()
    assert ampcompare("report", "runs", "--format", "html,json", *words) == 0
    page = re.sub(
        r"<script.*?</script>|<style.*?</style>|<[^>]+>",
        "",
        Path("report/index.html").read_text(),
        flags=re.S,
    )
    return " ".join(capfd.readouterr().out.split()), " ".join(page.split())


def values(run: RunRecord, key: str) -> list[float]:
    return run.values(key).tolist()


@pytest.mark.slow
def test_a_gpt_learns_text_under_each_backend_and_is_compared_by_its_accuracy(
    of_text: Path, capfd: pytest.CaptureFixture[str]
):
    for backend in BACKENDS:
        run = train(f"backend={backend}", *TEXT_WORDS, "task.metrics=[accuracy]")
        assert values(run, "eval/loss")[-1] < values(run, "eval/loss")[0] < 3.4  # ln 33 = 3.50
        assert run.summary["best/eval_accuracy"] == max(values(run, "eval/accuracy")) > 0.1
        assert 0 < values(run, "train/accuracy")[-1] < 1
    terminal, page = report(capfd)
    for said in (terminal, page):
        assert "accuracy" in said
        assert "by guessing" not in said
        assert "binomial" not in said


REFUSALS = {
    "task.loss=nothing": "task.loss='nothing': expected one of cross_entropy, mse, mae, pkg.mod:Name",
    "task.loss=mse task.metric=acc": "task.metric='acc': expected one of mse, mae, loss, or null",
    "task.loss=mse training.label_smoothing=0.1": "training.label_smoothing=0.1: only task.loss=cross",
    "task.loss=./scores.py:spread": "task.loss='./scores.py:spread': gave a tensor [2]; expected the batch's "
    "mean, a 0-d tensor with a gradient",
    "task.loss=./scores.py:none": "task.loss='./scores.py:none': no none in ./scores.py",
    "task.loss=mse task.metrics=[./scores.py:spread]": "task.metrics='./scores.py:spread': nothing says "
    'which way is better; write spread.better = "higher" or "lower" beside it',
    "task.loss=mse task.metrics=[./scores.py:third_error]": "task.metrics='./scores.py:third_error': cannot "
    "take outputs [2, 1] and targets [2] (line 7: IndexError: ",
    "task.loss=mse task.metrics=[accuracy]": "task.metrics='accuracy': the targets are torch.float32; ",
    "epochs=1": "task.loss='cross_entropy': the targets are torch.float32; expected classes, as whole "
    "numbers (of a regression task.loss=mse, or mae)",
    "task.loss=mse model.name=./net.py:other": "model.name='./net.py:other': cannot take inputs x [2, 4], "
    "shift [2, 1] (line 11: RuntimeError: ",
}


@pytest.mark.parametrize("words", REFUSALS)
def test_what_does_not_go_together_is_one_line_before_the_record(
    of_table: Path, refused: Callable[..., str], words: str
):
    said = refused(*words.split())
    assert said.startswith(REFUSALS[words]), said
