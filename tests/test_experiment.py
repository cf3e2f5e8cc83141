"""A whole run, from config to finished record."""

from __future__ import annotations

import io
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from support.properties import MECHANISMS, backends

from ampcompare import metrics
from ampcompare.config.load import Config, load_config
from ampcompare.data.dataset import ImageSet, build_dataset
from ampcompare.errors import UserError
from ampcompare.experiment import Result, run
from ampcompare.machine.device import effective_numerics, is_channels_last
from ampcompare.precision import REGISTRY
from ampcompare.records import RunRecord, load_runs


@pytest.fixture
def quick(tmp_path: Path, quick_overrides: tuple[str, ...]):
    """Run a quick experiment in a folder of its own; gives result, record and what was printed."""
    count = iter(range(100))

    def go(*words: str) -> tuple[Result, RunRecord, str]:
        out = tmp_path / f"run{next(count)}"
        text = io.StringIO()
        result = run(configure(*words, output=out), Console(file=text, width=200))
        (record,) = load_runs([out])
        return result, record, text.getvalue()

    def configure(*words: str, output: Path) -> Config:
        return load_config(None, [*quick_overrides, *words, f"output_dir={output}"])

    return go


def rows(record: RunRecord, key: str) -> list[float]:
    return record.history[key].dropna().tolist() if key in record.history else []


@pytest.mark.parametrize("backend", [*MECHANISMS, "bf16_sr"])
def test_record_holds_every_metric_and_no_other(quick, backend: str):
    result, record, _ = quick(f"backend={backend}")
    assert result.exit_code == 0
    assert record.state == "finished"
    # A histogram comes back as columns of its parts.
    logged = {key.partition(".")[0] for key in record.history if not key.startswith("_")}
    kept = {key for key in record.summary if not key.startswith("_")}
    listed = metrics.METRICS.values()
    elsewhere = (metrics.GPU, metrics.OF_TASK, metrics.OWN_LOOP)
    absent = {m.key for m in listed if m.needs in elsewhere} | {metrics.REFUSED, metrics.RESUMED_INEXACTLY}
    if not result.summary.keys() & {metrics.SCALE_COLLAPSED}:  # said of dynamic loss scales alone
        absent |= {metrics.SCALE_COLLAPSED, metrics.NONFINITE_AT}
        assert not REGISTRY[backend].scales
    if not REGISTRY[backend].updates_half:
        absent |= {m.key for m in listed if m.needs == metrics.HALF_UPDATES}
    if not result.summary.keys() & {metrics.NONFINITE_MODULES}:
        absent |= {m.key for m in listed if m.needs == metrics.SKIPPED_STEP}
        assert not any(rows(record, metrics.SKIPPED))
    assert {found.key for key in logged if (found := metrics.find(key))} == (
        {m.key for m in listed if m.when != metrics.END} - absent
    )
    assert {found.key for key in kept if (found := metrics.find(key))} == metrics.METRICS.keys() - absent
    assert [key for key in logged | kept if metrics.find(key) is None] == []
    assert {"grad/underflow_fraction/0", "grad/underflow_fraction/8"} <= logged  # by layer group
    for metric in listed:
        assert metric.when != metrics.ALWAYS or record.history[metric.key].notna().all(), metric.key
    assert record.config["backend"] == backend
    assert record.config["data"]["source"] == "synthetic"
    assert {"synthetic", backend} <= set(record.tags)
    environment = record.summary["environment"]
    assert environment["torch"] == torch.__version__
    assert environment["tf32"] is False
    assert environment["memory_format"] == "contiguous"


@pytest.mark.slow
def test_only_the_same_test_images_have_the_same_fingerprint():
    def fingerprint(**options: Any) -> str:
        data = build_dataset("synthetic", **options)
        return data.test.fingerprint(data.classes)

    assert fingerprint(test_limit=50) == fingerprint(test_limit=50, train_limit=64)
    assert fingerprint(test_limit=50) != fingerprint(test_limit=51)
    data = build_dataset("synthetic", test_limit=50).test
    turned = ImageSet(data.images, data.labels.flip(0))
    other = ImageSet(data.images + 1, data.labels)
    assert len({one.fingerprint(()) for one in (data, turned, other)}) == 3


def test_a_run_that_fails_has_told_its_test_set(quick):
    result, record, _ = quick("optimizer.lr=1e30", "epochs=1")
    assert result.exit_code == 1
    assert {metrics.TEST_IMAGES, metrics.CLASSES, metrics.TEST_SET} <= record.summary.keys()
    assert record.summary["environment"]["machine"]["host"]


def test_rows_come_at_their_steps(quick):
    _, record, _ = quick("log.every=3", "diagnostics.every=4", "epochs=2")  # 4 steps an epoch, 8 in all
    history = record.history
    assert history.loc[history["train/loss"].notna(), "global_step"].tolist() == [3, 4, 6, 8]
    assert history.loc[history["grad/underflow_fraction"].notna(), "global_step"].tolist() == [4, 8]
    assert history.loc[history["eval/accuracy"].notna(), "global_step"].tolist() == [4, 8]
    assert history.loc[history["eval/accuracy"].notna(), "epoch"].tolist() == [1.0, 2.0]
    assert history["global_step"].is_monotonic_increasing
    assert history["time/elapsed_seconds"].is_monotonic_increasing
    assert (history["time/train_seconds"] <= history["time/elapsed_seconds"]).all()


def test_throughput_leaves_the_warm_up_out(quick):
    _, record, _ = quick("log.every=1", "log.warmup_steps=3")
    history = record.history
    timed = history.loc[history["throughput/images_per_second"].notna(), "global_step"]
    assert timed.tolist() == [4, 5, 6, 7, 8]
    last = history[history["throughput/step_time_ms"].notna()].iloc[-1]
    assert last["throughput/images_per_second"] == pytest.approx(8 / last["throughput/step_time_ms"] * 1e3)


@backends(REGISTRY)
def test_same_seed_gives_the_same_run_twice(quick, backend: str):
    keys = ["train/loss", "eval/loss", "amp/scale_factor", "grad/underflow_fraction"]
    first, again, other = (quick(f"backend={backend}", f"seed={seed}")[1] for seed in (1, 1, 2))
    for key in keys:
        assert rows(first, key) == rows(again, key)
    assert rows(first, "train/loss") != rows(other, "train/loss")


@pytest.mark.parametrize(
    ("asked", "kind", "is_last"),
    [
        ("auto", "cuda", True),
        ("auto", "cpu", False),
        ("contiguous", "cuda", False),
        ("channels_last", "cpu", True),
    ],
)
def test_the_layout_is_as_asked_or_what_the_device_likes(asked: str, kind: str, is_last: bool):
    config = load_config(None, [f"memory_format={asked}"])
    assert is_channels_last(config, torch.device(kind)) is is_last
    recorded = effective_numerics(config, torch.device(kind))["memory_format"]
    assert recorded == ("channels_last" if is_last else "contiguous")


def test_options_that_change_numerics_are_recorded(quick):
    words = ("memory_format=channels_last", "optimizer.fused=true", "deterministic=true")
    _, record, _ = quick(*words)
    assert record.config["memory_format"] == "channels_last"
    assert record.config["optimizer"]["fused"] is True
    assert record.config["deterministic"] is True
    assert record.summary["environment"]["deterministic"] is True
    assert record.summary["environment"]["cudnn_benchmark"] is False
    torch.use_deterministic_algorithms(False)


def test_max_steps_stops_and_evaluates(quick):
    _, record, _ = quick("max_steps=5")
    assert record.history["global_step"].max() == 5
    assert record.history.loc[record.history["eval/accuracy"].notna(), "epoch"].tolist() == [1.0, 1.25]


def test_a_loss_that_is_not_finite_stops_the_run_as_failed(quick):
    result, record, printed = quick("optimizer.lr=1e30", "log.every=4")
    assert result.exit_code == 1
    assert record.state == "failed"
    assert "the training loss is not finite" in printed
    assert "training.on_nan=continue" in printed
    step = int(printed.split("error: step ")[1].split(":")[0])
    assert 1 < step <= 4  # the very step, not the interval's end
    assert not math.isfinite(record.history["train/loss"].iloc[-1])  # the row that shows it is kept


def test_a_loss_that_is_not_finite_can_be_let_go_on(quick):
    result, record, printed = quick("optimizer.lr=1e30", "training.on_nan=continue")
    assert result.exit_code == 0
    assert record.history["global_step"].max() == 8
    assert "going on" in printed


def test_a_type_that_is_emulated_is_said_before_the_first_step(quick, monkeypatch: pytest.MonkeyPatch):
    emulated = {metrics.ARITHMETIC: {"float16": metrics.EMULATED}}
    monkeypatch.setattr("ampcompare.train.setting.arithmetic_of", lambda device: emulated)
    _, _, printed = quick("backend=native", "max_steps=1")
    assert printed.index("float16 is emulated on this processor") < printed.index("step 1/1")
    assert "is emulated on" not in quick("backend=native_bf16", "max_steps=1")[2]


@pytest.mark.parametrize("backend", ["native", "apex_o1"])
def test_a_collapsed_scale_is_reported_once(quick, backend: str):
    words = (
        f"backend={backend}",
        "precision.init_scale=65536",
        "data.std=[1e-30,1e-30,1e-30]",
        "log.every=1",
    )
    result, record, printed = quick(*words, "epochs=6", "training.on_nan=continue")
    assert printed.count("look at inputs") == 1
    assert record.summary["amp/scale_collapsed_at_step"] > 0
    assert result.summary["amp/scale_collapsed_at_step"] == record.summary["amp/scale_collapsed_at_step"]


def test_an_interrupted_run_keeps_its_record(tmp_path: Path, quick_overrides: tuple[str, ...], monkeypatch):
    from ampcompare.train import step as engine

    calls = iter(range(100))
    step = engine.Trainer.step

    def interrupted(self, *args, **kwargs):
        if next(calls) == 5:
            raise KeyboardInterrupt
        return step(self, *args, **kwargs)

    monkeypatch.setattr(engine.Trainer, "step", interrupted)
    text = io.StringIO()
    result = run(load_config(None, [*quick_overrides, f"output_dir={tmp_path}"]), Console(file=text))
    assert result.exit_code == 130
    (record,) = load_runs([tmp_path])
    assert record.state == "failed"
    assert record.history["global_step"].max() == 4
    assert "interrupted at step" in text.getvalue()


def test_bad_data_starts_nothing(tmp_path: Path, quick_overrides: tuple[str, ...]):
    words = [*quick_overrides, "data.source=image_folder", "data.root=nowhere", f"output_dir={tmp_path}"]
    with pytest.raises(UserError, match="nowhere"):
        run(load_config(None, words), Console(file=io.StringIO()))
    assert not list(tmp_path.rglob("*.wandb"))


@pytest.mark.slow
def test_training_loads_none_of_the_reports_libraries(tmp_path: Path, quick_overrides: tuple[str, ...]):
    words = ["--config=demo", *quick_overrides, f"output_dir={tmp_path}"]
    code = (
        f"import sys, run_experiment; assert run_experiment.main({words!r}) == 0; "
        "report = {'vl_convert', 'jinja2', 'pandas', 'scipy', 'typer'}; "
        "found = report & set(sys.modules); assert not found, found"
    )
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# One process for all, as a fork has what it began with: what was set before, and the first of the values.
SWITCHES = """
import os
import torch
from ampcompare.machine.device import allow_tf32
def legacy():
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=None):
        pass  # reads them all, to put them back
    return (
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32,
        torch.get_float32_matmul_precision() == "high",
    )
def new():
    cudnn = torch.backends.cudnn
    parts = torch.backends.cuda.matmul, cudnn, cudnn.conv, cudnn.rnn
    return tuple(part.fp32_precision == "tf32" for part in parts)
def set_and_read(before, first):
    exec(before)
    for on in (first, not first, first):
        allow_tf32(on)
        assert {*legacy(), *new()} == {on}, (before, on, legacy(), new())
        assert torch.backends.mkldnn.matmul.fp32_precision == "ieee"
calls = [(lambda b=b, f=f: set_and_read(b, f)) for b in BEFORE for f in (True, False)]
for call in calls:
    if not (child := os.fork()):
        call()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.slow
def test_old_and_new_switches_of_tf32_agree_whatever_they_were():
    before = (
        "",
        "torch.backends.cuda.matmul.fp32_precision = torch.backends.cudnn.conv.fp32_precision = 'tf32'",
        "torch.backends.cudnn.conv.fp32_precision = torch.backends.cudnn.rnn.fp32_precision = 'ieee'",
        "torch.backends.cuda.matmul.allow_tf32 = True; torch.backends.cudnn.allow_tf32 = False",
        "torch.set_float32_matmul_precision('medium')",
        "torch.backends.fp32_precision = torch.backends.cudnn.fp32_precision = 'tf32'",
    )
    code = f"BEFORE = {before}\n{SWITCHES}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
