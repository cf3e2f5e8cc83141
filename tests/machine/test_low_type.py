"""`precision.dtype=auto`: what it comes to, what it says, what is recorded."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console
from support.quick import ROOT

from ampcompare.config.backend_choice import settle
from ampcompare.config.load import load_config
from ampcompare.experiment import run
from ampcompare.machine import low_type
from ampcompare.machine.low_type import take_type, with_type
from ampcompare.machine.probe import Rates
from ampcompare.machine.processes import World
from ampcompare.precision import REGISTRY
from ampcompare.records import load_runs
from ampcompare.tracking.start import run_name
from ampcompare.train.build import build_trainer

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
AMX = Rates({"float32": 100.0, "float16": 0.5, "bfloat16": 450.0})
FP16 = Rates({"float32": 100.0, "float16": 200.0, "bfloat16": 50.0})


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch):
    """Let the probe find these."""

    def find(found: Rates) -> list:
        asked = []

        def probe(device, dtypes, *, channels_last):
            asked.append((list(dtypes), channels_last))
            return found

        monkeypatch.setattr(low_type, "probe", probe)
        return asked

    return find


def auto(backend: str, *words: str):
    return settle(load_config(None, [f"backend={backend}", "precision.dtype=auto", *words]))


@pytest.mark.parametrize("backend", ["native", "apex_o1"])
def test_on_a_cpu_it_is_the_faster_type_and_says_why(rates, backend: str):
    rates(AMX)
    taken = take_type(auto(backend), CPU)
    assert taken.dtype == "bfloat16"
    assert taken.words == (
        "precision.dtype=auto: bfloat16, the faster one here: a training convolution runs at 4.5 times "
        "fp32's rate, in float16 at 0.005"
    )
    rates(FP16)
    assert take_type(auto(backend), CPU).dtype == "float16"


def test_the_probe_measures_in_the_layout_of_the_run(rates):
    asked = rates(AMX)
    take_type(auto("native", "memory_format=channels_last"), CPU)
    take_type(auto("native"), CPU)
    types = ["float16", "bfloat16"]
    assert asked == [(types, True), (types, False)]


@pytest.mark.parametrize("backend", ["native", "apex_o1", "apex_o2", "fp16"])
def test_on_a_gpu_it_is_float16_without_a_measurement(rates, backend: str):
    asked = rates(AMX)
    taken = take_type(auto(backend), CUDA)
    assert (taken.dtype, asked) == ("float16", [])
    assert taken.words.startswith("precision.dtype=auto: float16, ")


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_a_backend_of_one_type_has_that_one(rates, device: torch.device):
    asked = rates(AMX)
    for name, backend in REGISTRY.items():
        if not backend.dtypes[1:]:
            taken = take_type(auto(name), device)
            assert taken.dtype == backend.dtypes[0]
            assert f"the only one that backend={name} takes" in taken.words
    assert not asked


def test_plain_fp32_is_float32_whatever_the_config_says(rates):
    asked = rates(AMX)
    for words in (("none",), ("native", "precision.enabled=false")):
        taken = take_type(auto(*words), CPU)
        assert taken.dtype == "float32"
        assert "plain fp32" in taken.words
    assert take_type(load_config(None, ["backend=none"]), CPU).words == ""
    assert not asked


def test_a_given_type_is_taken_in_silence():
    config = settle(load_config(None, ["backend=native", "precision.dtype=bfloat16"]))
    assert take_type(config, CPU) == low_type.Taken("bfloat16")
    assert take_type(load_config(None, ["backend=native"]), CPU).dtype == "float16"
    assert with_type(config, "float16") is config


def test_of_several_processes_the_first_one_decides(rates):
    class Second(World):
        def share(self, words):
            return ["float16", "as process 0 found"]

    asked = rates(AMX)
    taken = take_type(auto("native"), CPU, Second(rank=1, size=2))
    assert taken.dtype == "float16"
    assert not asked


@pytest.mark.parametrize("backend", list(REGISTRY))
def test_a_trainer_is_built_from_auto_under_every_backend(rates, backend: str):
    from ampcompare.data.dataset import build_dataset
    from ampcompare.train.build import make_loader

    rates(AMX)
    config = auto(backend, "model.name=tiny", "batch_size=8", "device=cpu")
    data = build_dataset(source="synthetic", root=None, train_limit=10, test_limit=10)
    train = make_loader(config, data.train, CPU, training=True)
    trainer = build_trainer(config, data, train, CPU)
    taken = {"native": "bfloat16", "apex_o1": "bfloat16"}.get(backend, REGISTRY[backend].dtypes[0])
    assert trainer.precision.options.dtype == taken


def test_the_record_keeps_auto_and_has_the_type_that_was_taken(rates, tmp_path: Path, quick_overrides):
    rates(AMX)
    words = (
        *quick_overrides,
        "backend=apex_o1",
        "precision.dtype=auto",
        "epochs=1",
        f"output_dir={tmp_path}",
    )
    text = io.StringIO()
    assert run(load_config(None, words), Console(file=text, width=300)).exit_code == 0
    assert text.getvalue().count("precision.dtype=auto: bfloat16, the faster one here") == 1
    (record,) = load_runs([tmp_path])
    assert record.option("precision.dtype") == "auto"
    for environment in (record.config["environment"], record.summary["environment"]):
        assert environment["precision_dtype"] == "bfloat16"
        assert environment["arithmetic"].keys() == {"bfloat16", "float16"}
    assert record.name == "apex-o1-bf16_tiny_synthetic"


@pytest.mark.parametrize(("backend", "taken"), [("none", "float32"), ("native", "float16")])
def test_every_run_records_its_type(backend: str, taken: str, tmp_path: Path, quick_overrides):
    words = (*quick_overrides, f"backend={backend}", "epochs=1", f"output_dir={tmp_path}")
    assert run(load_config(None, words), Console(file=io.StringIO())).exit_code == 0
    (record,) = load_runs([tmp_path])
    assert record.summary["environment"]["precision_dtype"] == taken


def test_no_run_in_bf16_is_called_nvidias_apex():
    config = load_config(None, ["backend=apex_o1", "precision.dtype=bfloat16"])
    assert run_name(config) == "apex-o1-bf16_resnet50_cifar"
    assert run_name(load_config(None, ["backend=apex_o1"])) == "nvidia-apex-amp_resnet50_cifar"


@pytest.mark.slow
def test_two_processes_take_one_type_and_say_it_once(tmp_path: Path, quick_overrides):
    import subprocess

    words = [*quick_overrides, "backend=native", "precision.dtype=auto", f"output_dir={tmp_path}"]
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run([*start, str(ROOT / "run_experiment.py"), *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("precision.dtype=auto: ") == 1
    (record,) = load_runs([tmp_path])
    assert json.dumps(record.summary["environment"]["precision_dtype"]) in ('"bfloat16"', '"float16"')
