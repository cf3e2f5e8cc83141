"""`why ... --at RUN`: a run is replayed to the step at which it broke, and that step is explained."""

import importlib
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from support import warm_python
from support.why_command import Why

from ampcompare.config.load import load_config
from ampcompare.experiment import run
from ampcompare.runs.loader import load_runs

# The layer `wide` overflows in the training steps that PLANT names. A buffer counts its calls.
NET = """
import os
import signal
import time
from pathlib import Path

import torch
from torch import nn


class Wide(nn.Linear):
    def __init__(self, width, first, last, size):
        super().__init__(width, width)
        self.first, self.last, self.size = first, last, size
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        y = super().forward(x)
        if self.training:
            self.calls += 1
        if "DIES_AT" in os.environ and self.calls == int(os.environ["DIES_AT"]) and not Path("died").exists():
            Path("died").touch()
            time.sleep(float(os.environ["DIES_AFTER"]))  # W&B's client writes to the disk now and then
            os.kill(os.getpid(), signal.SIGKILL)
        planted = (self.calls >= self.first) & (self.calls <= self.last)
        return y * torch.where(planted, self.size, 1.0) * torch.where(planted, self.size, 1.0)


class Net(nn.Module):
    def __init__(self, num_classes, first, last, size):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(3072, 16), nn.ReLU(), nn.Dropout(0.2))
        self.wide, self.head = Wide(16, first, last, size), nn.Linear(16, num_classes)

    def forward(self, images):
        return self.head(self.wide(self.body(images)))


def build(num_classes, first=10**9, last=10**9, size=1e38):
    return Net(num_classes, first, last, size)
"""
FILES = {"net.py": NET}
# 10 steps an epoch, 40 steps.
WORDS = (
    *("model.name=./net.py:build", "data.source=synthetic", "data.train_limit=80", "data.test_limit=16"),
    *("batch_size=8", "epochs=4", "log.every=4", "log.warmup_steps=2", "device=cpu", "wandb.mode=offline"),
    *("precision.init_scale=256", "optimizer.name=adam", "optimizer.lr=1e-3"),
)


def train(*words: str, code: int = 0) -> str:
    """Run a training and return its id."""
    result = run(load_config(None, [*WORDS, *words]))
    assert result.exit_code == code
    assert result.record is not None
    return result.record.name.rpartition("-")[2]


def planted(first: int, last: int) -> list[str]:
    """The overflow in these calls. The check before the training calls the network once in training mode."""
    return [f"model.kwargs.first={first}", f"model.kwargs.last={last}"]


EQUAL = "the replayed losses equal the recorded losses, bit for bit"


@pytest.mark.parametrize(
    ("words", "call", "code", "size", "step"),
    [
        (["backend=native_bf16"], 27, 1, 1e38, 27),
        (["backend=native", "training.accumulate=2", "batch_size=4"], 53, 0, 1e38, 27),
        (["backend=apex_o1", "training.clip_norm=1", "log.every=1"], 31, 0, 1e3, 31),
        (["backend=native", "log.every=50", "checkpoint.every_epochs=null"], 38, 0, 1e3, 38),
    ],
)
def test_the_step_and_the_layer_of_a_planted_overflow_are_named(
    words: list[str], call: int, code: int, size: float, step: int, why: Why
):
    """The overflow is one of fp16 alone, or of every dtype."""
    name = train(*words, *planted(call, call), f"model.kwargs.size={size}", code=code)
    output = why("diff", "--at", name)
    assert EQUAL in output
    assert why.step(output) == step
    if size == 1e38:
        assert "the first inf or nan of the step in fp32 is in the output of wide" in output
    else:
        where = "head" if "backend=apex_o1" in words else "wide"  # O1 multiplies in fp32 and casts after it
        assert f"the first inf or nan of the forward pass is in the output of {where}" in output
        assert f"inf or nan arises in the output of {where}" in output


@pytest.mark.parametrize(
    "words",
    [
        ["backend=native_bf16", "optimizer.name=sgd", "optimizer.momentum=0.9"],
        ["backend=fp16", "optimizer.name=sgd", "training.clip_norm=0.5"],
        ["backend=bf16_sr"],
        ["backend=apex_o2", "eval.every=2"],
    ],
)
def test_the_step_is_that_of_the_run_with_its_dropout(words: list[str], why: Why):
    """The loss of the step under the backend is the recorded one: weights, batch, dropout."""
    name = train(*words, "log.every=1")
    (record,) = load_runs(["runs"])
    for step in (1, 11, 38):
        found, output = why.json("diff", "--at", f"{name}@{step}")
        assert why.step(output) == step
        assert EQUAL in output
        assert found["loss"] == record.values("train/loss")[step - 1]


def test_without_an_anomaly_it_is_the_last_step_and_the_nearest_checkpoint(
    why: Why,
):
    name = train("backend=native", "max_steps=33")
    best = [int(path.name[5:14]) for path in Path("runs/checkpoints", name).glob("*.pt")]
    start = max(step for step in best if step < 33) if min(best) < 33 else 0
    record = next(Path("runs/wandb").glob(f"*-{name}"))
    output = why("diff", "--at", record)
    assert why.step(output) == 33
    where = f"from the checkpoint at step {start}" if start else "from step 0"
    assert f"replaying run {name} {where}: {33 - start} steps, about " in output
    assert EQUAL in output


def test_a_replay_that_differs_says_by_how_much(why: Why, monkeypatch):
    """The network changes in another file: nothing but some of the losses shows it."""
    monkeypatch.syspath_prepend(Path.cwd())
    Path("factor.py").write_text(
        "def get(calls):\n    return 1.01 if LATE and calls > 5 else 1.0\n\nLATE = False\n"
    )
    text = (
        Path("net.py")
        .read_text()
        .replace("self.body(images)", "self.body(images * factor.get(self.wide.calls))")
    )
    Path("net.py").write_text(f"import factor\n{text}")
    name = train("backend=native_bf16", "log.every=1", "max_steps=8", "checkpoint.every_epochs=null")
    assert EQUAL in why("diff", "--at", name)
    importlib.import_module("factor").LATE = True
    output = why("diff", "--at", name)
    size = re.search(
        r"the replayed losses differ from the recorded losses by up to (\S+) of the loss", output
    )
    assert size, output
    assert 1e-6 < float(size[1]) < 1


def test_a_run_is_found_by_its_id_in_the_folder_of_a_sweep(why: Why):
    name = train("backend=native", "max_steps=4", "output_dir=elsewhere/ladder")
    output = why("diff", "--at", name)
    assert (why.step(output), EQUAL in output) == (4, True)


def test_a_replay_changes_nothing_in_the_folder_of_the_run(why: Why):
    name = train("backend=native", *planted(27, 27))
    before = {path: path.stat().st_mtime_ns for path in Path("runs").rglob("*")}
    damaged = max(Path("runs/checkpoints", name).glob("*.pt"))
    assert EQUAL in why("diff", "--at", f"runs/checkpoints/{name}")
    assert {path: path.stat().st_mtime_ns for path in Path("runs").rglob("*")} == before
    damaged.write_bytes(damaged.read_bytes()[:-200])
    assert EQUAL in why("diff", "--at", name)
    assert damaged.exists()


def ampcompare(
    *words: str, dies_at: int | None = None, after: float = 0.0
) -> subprocess.CompletedProcess[str]:
    command = [warm_python.python(), "-m", "ampcompare", *words]
    environment = {**os.environ, **({"DIES_AT": str(dies_at), "DIES_AFTER": str(after)} if dies_at else {})}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_run_that_was_killed_has_recorded_its_first_anomaly(why: Why):
    words = [*WORDS, "backend=native", *planted(19, 19)]
    assert ampcompare("run", *words, dies_at=36, after=2).returncode == -signal.SIGKILL
    output = why("diff", "--at", "runs")
    assert (why.step(output), EQUAL in output) == (19, True), output


@pytest.mark.slow
def test_a_run_that_was_killed_and_resumed_is_replayed_as_one(why: Why):
    words = [*WORDS, "backend=native", *planted(37, 37), "resume=auto"]
    assert ampcompare("run", *words, dies_at=24).returncode == -signal.SIGKILL
    assert ampcompare("run", *words, dies_at=24).returncode == 0
    (folder,) = Path("runs/checkpoints").iterdir()
    parts = sorted(Path("runs/wandb").glob(f"offline-run-*{folder.name}*"))
    assert len(parts) == 2
    assert EQUAL in why("diff", "--at", f"{folder.name}@7")
    # W&B's client may have written nothing when the run was killed.
    for content in (None, b":W&B\xe1\xbe\x00", b""):
        if content is not None:
            (parts[0] / f"run-{folder.name}.wandb").write_bytes(content)
        for run_folder in (folder.name, parts[-1]):
            output = why("diff", "--at", run_folder)
            assert (why.step(output), EQUAL in output) == (37, True), output


@pytest.mark.slow
def test_a_compiled_run_is_replayed_compiled(why: Why):
    name = train("backend=native", "execution=compile", *planted(27, 27))
    output = why("diff", "--at", name)
    assert "and the time to compile" in output
    assert (why.step(output), EQUAL in output) == (27, True), output
    assert "is in the output of wide" in output


def test_explain_and_guard_begin_at_the_step(why: Why):
    name = train("backend=native", *planted(27, 27), "model.kwargs.size=1e3")
    output = why("explain", "--at", name, "--seconds", 0)
    assert f"native compared with none in run {name}, step 27: " in output
    first_loss = why.json("diff", "--at", name)[0]["loss_fp32"]
    output = why("guard", "--at", name, "--steps", 8)
    assert f"under native, beginning with run {name}, step 27: 7 modules, 8 steps per trial" in output
    assert f"fp32: loss {first_loss:.4g} to " in output
    assert "result: " in output


DATA = """
import torch


def build(train, seed, shift=0.0):
    generator = torch.Generator().manual_seed(5 + train)
    images = torch.randn(40, 3, 32, 32, generator=generator) + shift
    return images, torch.arange(40) % 4
"""
LOSS = "def loss(outputs, targets):\n    return (outputs.float() - 1).square().mean()\n"
CHANGES = {
    "net.py": ("nn.ReLU()", "nn.GELU()", "the code of model.name=./net.py:build"),
    "data.py": ("5 + train", "6 + train", "the data of data.source=./data.py:build"),
    "loss.py": ("- 1", "- 2", "the code of task.loss=./loss.py:loss"),
    "own.py": ("pass", "x = 1", "the code of backend=./own.py:Mine"),
}


@pytest.mark.slow
def test_changed_code_and_data_are_refused_by_name(subtests: pytest.Subtests):
    Path("data.py").write_text(DATA)
    Path("loss.py").write_text(LOSS)
    backend = "from ampcompare.precision.native import Native\n\n\nclass Mine(Native):\n    pass\n"
    Path("own.py").write_text(backend)
    words = ["data.source=./data.py:build", "data.train_limit=null", "data.test_limit=null"]
    words += ["task.loss=./loss.py:loss", "task.metrics=[]", "backend=./own.py:Mine", "epochs=2"]
    name = train(*words)
    assert EQUAL in ampcompare("why", "diff", "--at", name).stdout
    for file, (old, new, named) in CHANGES.items():
        with subtests.test(file):
            text = Path(file).read_text()
            assert old in text
            Path(file).write_text(text.replace(old, new))
            done = ampcompare("why", "diff", "--at", name)
            Path(file).write_text(text)
            assert done.returncode == 2
            assert re.fullmatch(r"error: [^\n]+\n", done.stderr), done.stderr
            assert named in done.stderr
            assert "restore them" in done.stderr


def test_wrong_uses_are_one_line(why: Why, subtests: pytest.Subtests):
    names = {
        "name": train("backend=native", "max_steps=4"),
        "plain": train("backend=none", "max_steps=4"),
    }
    for words, expected in WRONG.items():
        with subtests.test(words):
            assert expected.format(**names) in why("diff", "--at", *words.format(**names).split(), code=2)


WRONG = {
    "nobody": "--at nobody: no such folder, and no run with this id in runs",
    "{name}@0": "--at {name}@0: the record has no such step; name one from 1 to 4",
    "{name}@5": "--at {name}@5: the record has no such step",
    "{name} backend=bf16": "backend: --at takes the options of the run; leave it out",
    "{name} --config demo": "--config demo: --at takes the options of the run",
    "{name} output_dir=other": "no run with this id in other",
    "runs": "--at runs: 2 runs are there; name one of them: ",
    "{plain}": "backend=none computes in fp32, so there is nothing to compare",
}


@pytest.mark.slow
def test_the_last_line_of_a_failed_run_explains_its_anomaly(why: Why):
    words = ["backend=native", *planted(23, 99), "training.on_nan=stop"]
    done = ampcompare("run", *WORDS, *words)
    assert done.returncode == 1, done.stderr
    (record,) = Path("runs/wandb").glob("offline-run-*")
    (hint,) = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("why: ")]
    assert hint.endswith(f"why diff --at {record.resolve()} (explains step 23)")
    output = why("diff", "--at", record)
    assert why.step(output) == 23
    assert "from the checkpoint at step 20: " in output
    assert EQUAL in output
