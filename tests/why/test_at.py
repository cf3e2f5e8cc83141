"""`why ... --at RUN`: a run is replayed to the step at which it broke, and that step is explained."""

import importlib
import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from support import warm_python

from ampcompare.cli import main
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
# 10 steps an epoch, 40 steps.
WORDS = (
    *("model.name=./net.py:build", "data.source=synthetic", "data.train_limit=80", "data.test_limit=16"),
    *("batch_size=8", "epochs=4", "log.every=4", "log.warmup_steps=2", "device=cpu", "wandb.mode=offline"),
    *("precision.init_scale=256", "optimizer.name=adam", "optimizer.lr=1e-3"),
)


@pytest.fixture(autouse=True)
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


def train(*words: str, code: int = 0) -> str:
    """Run a training and return its id."""
    result = run(load_config(None, [*WORDS, *words]))
    assert result.exit_code == code
    assert result.record is not None
    return result.record.name.rpartition("-")[2]


def plant(first: int, last: int) -> list[str]:
    """The overflow in these calls. The check before the training calls the network once in training mode."""
    return [f"model.kwargs.first={first}", f"model.kwargs.last={last}"]


def why(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main(["why", *map(str, words)])
    shown = capsys.readouterr()
    assert end.value.code == code, shown.err
    return shown.out + shown.err


def step_of(output: str) -> int:
    match = re.search(r"^step ([\d,]+): ", output, flags=re.M)
    assert match, output
    return int(match[1].replace(",", ""))


EQUAL = "the replayed losses equal the recorded losses, bit for bit"


@pytest.mark.parametrize(
    ("words", "first", "last", "code", "step"),
    [
        (["backend=native"], 27, 27, 0, 27),
        (["backend=native_bf16"], 27, 27, 1, 27),
        (["backend=native"], 27, 99, 1, 27),  # skipped until the scale is 1, then the run fails
        (["backend=apex_o1"], 27, 27, 0, 27),
        (["backend=native", "training.accumulate=2", "batch_size=4"], 53, 53, 0, 27),
        (["backend=native", "training.clip_norm=1", "log.every=1"], 31, 31, 0, 31),
        (["backend=native", "log.every=50", "checkpoint.every_epochs=null"], 38, 38, 0, 38),
    ],
)
@pytest.mark.parametrize("size", [1e38, pytest.param(1e3, marks=pytest.mark.slow)])
def test_the_step_and_the_layer_of_a_planted_overflow_are_named(
    words: list[str],
    first: int,
    last: int,
    code: int,
    step: int,
    size: float,
    capsys: pytest.CaptureFixture[str],
):
    """The overflow is one of fp16 alone, or of every dtype."""
    if size < 1e38 and words == ["backend=native_bf16"]:
        pytest.skip("1e6 is within the range of bf16")
    name = train(*words, *plant(first, last), f"model.kwargs.size={size}", code=code)
    output = why(capsys, "diff", "--at", name)
    assert EQUAL in output
    assert step_of(output) == step
    if size == 1e38:
        assert "the first inf or nan of the step in fp32 is in the output of wide" in output
    else:
        where = "head" if words == ["backend=apex_o1"] else "wide"  # O1 multiplies in fp32 and casts after it
        assert f"the first inf or nan of the forward pass is in the output of {where}" in output
        assert f"inf or nan arises in the output of {where}" in output


def recorded_losses(name: str) -> dict[int, float]:
    (record,) = [one for one in load_runs(["runs"]) if one.id == name]
    rows, losses = record.logged_numbers("train/loss")
    return dict(zip(record.numbers("global_step")[rows].astype(int).tolist(), losses.tolist(), strict=True))


@pytest.mark.parametrize(
    "words",
    [
        ["backend=native_bf16", "log.every=1", "optimizer.name=sgd", "optimizer.momentum=0.9"],
        ["backend=fp16", "log.every=1", "optimizer.name=sgd", "training.clip_norm=0.5"],
        ["backend=bf16_sr", "log.every=1"],
        ["backend=apex_o2", "log.every=1", "eval.every=2"],
    ],
)
def test_the_step_is_that_of_the_run_with_its_dropout(words: list[str], capsys: pytest.CaptureFixture[str]):
    """The loss of the step under the backend is the recorded one: weights, batch, dropout."""
    name = train(*words)
    losses = recorded_losses(name)
    for step in (1, 11, 38):
        output = why(capsys, "diff", "--at", f"{name}@{step}", "--json", "diff.json")
        assert step_of(output) == step
        assert EQUAL in output
        assert json.loads(Path("diff.json").read_text())["loss"] == losses[step]


def test_without_an_anomaly_it_is_the_last_step_and_the_nearest_checkpoint(
    capsys: pytest.CaptureFixture[str],
):
    name = train("backend=native", "max_steps=33")
    best = [int(path.name[5:14]) for path in Path("runs/checkpoints", name).glob("*.pt")]
    start = max(step for step in best if step < 33) if min(best) < 33 else 0
    record = next(Path("runs/wandb").glob(f"*-{name}"))
    output = why(capsys, "diff", "--at", record)
    assert step_of(output) == 33
    where = f"from the checkpoint at step {start}" if start else "from step 0"
    assert f"replaying run {name} {where}: {33 - start} steps, about " in output
    assert EQUAL in output


def test_a_replay_that_differs_says_by_how_much(capsys: pytest.CaptureFixture[str], monkeypatch):
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
    assert EQUAL in why(capsys, "diff", "--at", name)
    importlib.import_module("factor").LATE = True
    output = why(capsys, "diff", "--at", name)
    size = re.search(
        r"the replayed losses differ from the recorded losses by up to (\S+) of the loss", output
    )
    assert size, output
    assert 1e-6 < float(size[1]) < 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "first", "last", "code", "anomaly", "kept"),
    [
        (["backend=native"], 23, 23, 0, 23, 20),
        (["backend=native", "checkpoint.every_epochs=null"], 23, 23, 0, 23, None),
        (["backend=native"], 5, 5, 0, None, None),  # the loss scale had not settled
        (["backend=native_bf16"], 23, 99, 1, 23, 20),
        (["backend=native"], 23, 99, 1, 23, 20),
        (["backend=native"], 99, 99, 0, None, None),
        (["backend=none"], 23, 23, 1, None, 20),  # fp32 is what a step is compared with
    ],
)
def test_the_checkpoint_before_an_anomaly_is_kept_and_the_last_line_explains_it(
    words: list[str],
    first: int,
    last: int,
    code: int,
    anomaly: int | None,
    kept: int | None,
    capsys: pytest.CaptureFixture[str],
):
    done = ampcompare("run", *WORDS, *words, *plant(first, last), "training.on_nan=stop")
    assert done.returncode == code, done.stderr
    (record,) = Path("runs/wandb").glob("offline-run-*")
    hints = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("why: ")]
    steps = sorted(int(path.name[5:14]) for path in Path("runs/checkpoints").glob("*/*.pt"))
    assert (kept is None) or kept in steps
    assert len(steps) <= 4
    if anomaly is None:
        assert hints == []
        return
    (hint,) = hints
    assert hint.endswith(f"why diff --at {record.resolve()} (explains step {anomaly})")
    output = why(capsys, "diff", "--at", record)
    assert step_of(output) == anomaly
    where = f"from the checkpoint at step {kept}: " if kept else "from step 0: "
    assert where in output
    assert EQUAL in output


@pytest.mark.parametrize("folder", ["runs/ladder", "elsewhere/ladder"])
def test_a_run_is_found_by_its_id_in_the_folder_of_a_sweep(folder: str, capsys: pytest.CaptureFixture[str]):
    """The anomaly is recorded, so that the step is known without the losses."""
    name = train("backend=native", *plant(27, 27), f"output_dir={folder}")
    (record,) = load_runs([folder])
    assert record.summary["anomaly/first_step"] == 27
    output = why(capsys, "diff", "--at", name)
    assert (step_of(output), EQUAL in output) == (27, True)


def test_a_replay_changes_nothing_in_the_folder_of_the_run(capsys: pytest.CaptureFixture[str]):
    name = train("backend=native", *plant(27, 27))
    before = {path: path.stat().st_mtime_ns for path in Path("runs").rglob("*")}
    damaged = max(Path("runs/checkpoints", name).glob("*.pt"))
    assert EQUAL in why(capsys, "diff", "--at", f"runs/checkpoints/{name}")
    assert {path: path.stat().st_mtime_ns for path in Path("runs").rglob("*")} == before
    damaged.write_bytes(damaged.read_bytes()[:-200])
    assert EQUAL in why(capsys, "diff", "--at", name)
    assert damaged.exists()


def ampcompare(
    *words: str, dies_at: int | None = None, after: float = 0.0
) -> subprocess.CompletedProcess[str]:
    command = [warm_python.python(), "-m", "ampcompare", *words]
    environment = {**os.environ, **({"DIES_AT": str(dies_at), "DIES_AFTER": str(after)} if dies_at else {})}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_run_that_was_killed_has_recorded_its_first_anomaly(capsys: pytest.CaptureFixture[str]):
    words = [*WORDS, "backend=native", *plant(19, 19)]
    assert ampcompare("run", *words, dies_at=36, after=2).returncode == -signal.SIGKILL
    output = why(capsys, "diff", "--at", "runs")
    assert (step_of(output), EQUAL in output) == (19, True), output


@pytest.mark.slow
def test_a_run_that_was_killed_and_resumed_is_replayed_as_one(capsys: pytest.CaptureFixture[str]):
    words = [*WORDS, "backend=native", *plant(37, 37), "resume=auto"]
    assert ampcompare("run", *words, dies_at=24).returncode == -signal.SIGKILL
    assert ampcompare("run", *words, dies_at=24).returncode == 0
    (folder,) = Path("runs/checkpoints").iterdir()
    parts = sorted(Path("runs/wandb").glob(f"offline-run-*{folder.name}*"))
    assert len(parts) == 2
    assert EQUAL in why(capsys, "diff", "--at", f"{folder.name}@7")
    # W&B's client may have written nothing when the run was killed.
    for content in (None, b":W&B\xe1\xbe\x00", b""):
        if content is not None:
            (parts[0] / f"run-{folder.name}.wandb").write_bytes(content)
        for run_folder in (folder.name, parts[-1]):
            output = why(capsys, "diff", "--at", run_folder)
            assert (step_of(output), EQUAL in output) == (37, True), output


@pytest.mark.slow
def test_a_compiled_run_is_replayed_compiled(capsys: pytest.CaptureFixture[str]):
    name = train("backend=native", "execution=compile", *plant(27, 27))
    output = why(capsys, "diff", "--at", name)
    assert "and the time to compile" in output
    assert (step_of(output), EQUAL in output) == (27, True), output
    assert "is in the output of wide" in output


def test_explain_and_guard_begin_at_the_step(capsys: pytest.CaptureFixture[str]):
    name = train("backend=native", *plant(27, 27), "model.kwargs.size=1e3")
    output = why(capsys, "explain", "--at", name, "--seconds", 0)
    assert f"native compared with none in run {name}, step 27: " in output
    why(capsys, "diff", "--at", name, "--json", "diff.json")
    first_loss = json.loads(Path("diff.json").read_text())["loss_fp32"]
    output = why(capsys, "guard", "--at", name, "--steps", 8)
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new", "named"),
    [
        ("net.py", "nn.ReLU()", "nn.GELU()", "the code of model.name=./net.py:build"),
        ("data.py", "5 + train", "6 + train", "the data of data.source=./data.py:build"),
        ("data.py", "seed(5 + train)", "seed(5 + 2 * train)", "the training data"),
        ("loss.py", "- 1", "- 2", "the code of task.loss=./loss.py:loss"),
        ("own.py", "pass", "x = 1", "the code of backend=./own.py:Mine"),
    ],
)
def test_changed_code_and_data_are_refused_by_name(
    file: str, old: str, new: str, named: str, capsys: pytest.CaptureFixture[str]
):
    Path("data.py").write_text(DATA)
    Path("loss.py").write_text(LOSS)
    Path("own.py").write_text(
        "from ampcompare.precision.native import Native\n\n\nclass Mine(Native):\n    pass\n"
    )
    words = ["data.source=./data.py:build", "data.train_limit=null", "data.test_limit=null"]
    words += ["task.loss=./loss.py:loss", "task.metrics=[]", "backend=./own.py:Mine", "epochs=2"]
    name = train(*words)
    done = ampcompare("why", "diff", "--at", name)
    assert done.returncode == 0, done.stderr
    assert EQUAL in done.stdout
    text = Path(file).read_text()
    assert old in text
    Path(file).write_text(text.replace(old, new))
    done = ampcompare("why", "diff", "--at", name)
    assert done.returncode == 2
    assert re.fullmatch(r"error: [^\n]+\n", done.stderr), done.stderr
    assert named in done.stderr
    assert "restore them" in done.stderr


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Return a folder with a run of `native` and one of `none`, and their ids. Tests do not change it."""
    folder = tmp_path_factory.mktemp("two-runs")
    (folder / "net.py").write_text(NET)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return folder, {"name": train("backend=native"), "plain": train("backend=none", "epochs=1")}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--at", "nobody"], "--at nobody: no such folder, and no run with this id in runs"),
        (["--at", "{name}@0"], "--at {name}@0: the record has no such step; name one from 1 to 40"),
        (["--at", "{name}@41"], "--at {name}@41: the record has no such step"),
        (["--at", "{name}", "backend=bf16"], "backend: --at takes the options of the run; leave it out"),
        (["--at", "{name}", "--config", "demo"], "--config demo: --at takes the options of the run"),
        (["--at", "{name}", "output_dir=other"], "no run with this id in other"),
        (["--at", "runs"], "--at runs: 2 runs are there; name one of them: "),
        (["--at", "{plain}"], "backend=none computes in fp32, so there is nothing to compare"),
    ],
)
def test_wrong_uses_are_one_line(
    words: list[str],
    expected: str,
    two_runs: tuple[Path, dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    folder, names = two_runs
    monkeypatch.chdir(folder)
    output = why(capsys, "diff", *(word.format(**names) for word in words), code=2)
    (error,) = [line for line in output.splitlines() if line.startswith("error: ")]
    assert expected.format(**names) in error
