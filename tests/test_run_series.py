"""Several runs in one process: each equals the run in a process of its own."""

import io
import json
import os
import random
import re
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console
from support import faults
from support.outside import ManualClock, Outside
from support.properties import MECHANISMS
from support.quick import DROPOUT, QUICK
from support.same_run import assert_same_state, history
from torch._dynamo.utils import counters

from ampcompare import load_runs
from ampcompare.analysis.grouping.compared_metric import ComparedMetric
from ampcompare.analysis.grouping.run_metrics import seconds_to_target
from ampcompare.config.load import load_config
from ampcompare.experiment import ProcessHistory, run
from ampcompare.runs import RunRecord
from ampcompare.system.process_state import list_switches, restored_process_state
from ampcompare.training.checkpoint.store import CheckpointStore, read_checkpoint
from ampcompare.training.torch_compile import forget_compiled_code

# Steps are skipped at the start, and the weights are saved at the end.
WORDS = (*QUICK, DROPOUT, "precision.init_scale=2097152", "log.every=1", "checkpoint.every_epochs=1")


def run_series(
    folder: Path, seeds: Sequence[int], *words: str, name: str = "series", **job: Any
) -> dict[str, Any]:
    """Train one run for each seed in one process, which runs s1, s2, ... share."""
    folder.mkdir(exist_ok=True)
    file = folder / f"{name}.json"
    runs = [
        {
            "overrides": [f"seed={seed}"],
            "environment": {"WANDB_RUN_ID": f"s{seed}"},
            "log": str(folder / "logs" / f"s{seed}.log"),
        }
        for seed in seeds
    ]
    file.write_text(json.dumps(runs))
    return faults.run(*WORDS, *words, f"output_dir={folder}", "--runs", str(file), **job)


def run_alone(folder: Path, seed: int, *words: str, **environment: str) -> None:
    """Train the run of a seed in a process of its own."""
    done = faults.run(
        *WORDS,
        *words,
        f"output_dir={folder}",
        f"seed={seed}",
        env={"WANDB_RUN_ID": f"s{seed}", **environment},
    )
    assert done["code"] == 0, done["said"]


def record_of(folder: Path, seed: int) -> RunRecord:
    (record,) = [record for record in load_runs([folder]) if record.id == f"s{seed}"]
    return record


def assert_same_state_and_rows(one: Path, other: Path, seed: int) -> None:
    checkpoints = [
        read_checkpoint(CheckpointStore(folder / "checkpoints" / f"s{seed}").files()[0])
        for folder in (one, other)
    ]
    for part in ("model", "optimizer", "scheduler", "precision", "random", "step"):
        assert_same_state(checkpoints[0][part], checkpoints[1][part], f"seed {seed}: {part}")
    first, second = (record_of(folder, seed) for folder in (one, other))
    assert first.state == second.state == "finished"
    pd.testing.assert_frame_equal(history(first), history(second))


def assert_same_run(one: Path, other: Path, seed: int) -> None:
    assert_same_state_and_rows(one, other, seed)
    first, second = (record_of(folder, seed) for folder in (one, other))
    assert set(first.history) >= {"train/loss", "amp/scale_factor", "eval/accuracy", "grad/norm"}
    own = {"run", "output_dir"}
    assert {k: v for k, v in first.config.items() if k not in own} == {
        k: v for k, v in second.config.items() if k not in own
    }
    clock = ("_", "time/", "throughput/", "memory/")
    kept = [
        {key: value for key, value in record.summary.items() if not key.startswith(clock)}
        for record in (first, second)
    ]
    assert json.dumps(kept[0], sort_keys=True) == json.dumps(kept[1], sort_keys=True)


def check_series(tmp_path: Path, *words: str) -> None:
    """Train three seeds in one process, and the third again in a process of its own."""
    done = run_series(tmp_path / "series", (1, 2, 3), *words)
    assert done["code"] == 0, done["said"]
    run_alone(tmp_path / "alone", 3, *words)
    assert_same_run(tmp_path / "series", tmp_path / "alone", 3)


def test_the_third_run_equals_the_run_in_a_process_of_its_own(tmp_path: Path):
    check_series(tmp_path, "backend=apex_o1", "recipe=reference")
    series = tmp_path / "series"
    # Steps were skipped in the runs before.
    skipped = record_of(series, 2).summary["amp/skipped_steps"]
    assert 0 < skipped < 8
    records = [record_of(series, seed) for seed in (1, 2, 3)]
    assert [record.config["run"]["position_in_process"] for record in records] == [1, 2, 3]
    assert len({record.config["run"]["process"] for record in records}) == 1
    # On a CPU the peak is that of the process.
    assert ["memory/peak_mib" in record.summary for record in records] == [True, False, False]


def leave_traces() -> None:
    """Change what a user's code may change in the process."""
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.mkldnn.enabled = False
    torch.set_autocast_cache_enabled(False)
    torch.autograd.set_detect_anomaly(True)
    torch.set_num_threads(torch.get_num_threads() + 1)
    torch.set_float32_matmul_precision("medium")
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    np.seterr(all="raise")
    warnings.simplefilter("error")
    os.environ["WANDB_RUN_GROUP"] = "of the run before"


def take_fingerprint() -> tuple[Any, ...]:
    return (
        *(read() for read, _ in list_switches()),
        torch.get_float32_matmul_precision(),
        torch.initial_seed(),
        random.getstate(),
        np.random.get_state()[1].tolist(),
        np.geterr(),
        list(warnings.filters),
        dict(os.environ),
        Path.cwd(),
    )


@pytest.mark.parametrize("failure", [None, ValueError, KeyboardInterrupt])
def test_what_a_run_changes_in_the_process_is_restored(failure: type[BaseException] | None):
    before = take_fingerprint()
    with nullcontext() if failure is None else pytest.raises(failure), restored_process_state():
        leave_traces()
        if failure is not None:
            raise failure
    assert take_fingerprint() == before


@pytest.mark.slow
@pytest.mark.parametrize("backend", [name for name in MECHANISMS if name != "apex_o1"])
def test_the_third_run_of_any_backend_equals_a_run_of_its_own(backend: str, tmp_path: Path):
    check_series(tmp_path, f"backend={backend}", "recipe=reference")


def count_compilations() -> tuple[int, int]:
    """Return the graphs that were compiled in this process, and the frames that the compiler looked at."""
    return counters["stats"]["unique_graphs"], counters["frames"]["total"]


def train_compiled(folder: Path, history_: ProcessHistory, *words: str) -> None:
    """Train in this process, and count compilations."""
    config = load_config(None, [*QUICK, *words, "execution=compile", f"output_dir={folder}"])
    with restored_process_state():
        assert run(config, Console(file=io.StringIO()), history=history_).exit_code == 0


NETWORK = """
import itertools
from torch import nn
numbers = itertools.count()

class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.flat, self.last = nn.Flatten(), nn.Linear(3072, num_classes)
        self.factor = {factor}

    def forward(self, x):
        return self.last(self.flat(x)) * self.factor

def build(num_classes):
    return Net(num_classes)
"""


def use_compiler(outside: Outside, clock: ManualClock) -> None:
    """Leave out the last stage of compiling, which generates and builds C++ code.

    Whether a call is traced again is decided before that stage.

    Args:
        outside: Replaces `torch.compile`.
        clock: Each call of compiled code takes a second of it, and 1000 s more if something is compiled.
    """
    compile_ = torch.compile

    def compile_without_code(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        compiled = compile_(function, **{"backend": "aot_eager", **options})

        def call(*args: Any, **kwargs: Any) -> Any:
            before = count_compilations()
            result = compiled(*args, **kwargs)
            clock.now += 1 if count_compilations() == before else 1001
            return result

        return call

    outside.replace(torch, "compile", compile_without_code)


@pytest.mark.parametrize(
    ("factor", "compiles_again"),
    [("2.0", False), pytest.param("2.0 + next(numbers)", True, marks=pytest.mark.slow)],
)
def test_only_the_first_seed_compiles_unless_the_network_has_other_attributes(
    factor: str, compiles_again: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture, outside: Outside
):
    """Each step takes a second by the clock of the training, and 1000 s more if it compiles something."""
    use_compiler(outside, outside.stop_clock())
    file = tmp_path / f"net{compiles_again}.py"
    file.write_text(NETWORK.format(factor=factor))
    # The last batch of an epoch has 4 samples.
    words = (
        f"model.name={file}:build",
        "backend=native_bf16",
        "data.train_limit=20",
        "diagnostics.every=null",
    )
    forget_compiled_code()
    history_, graphs = ProcessHistory(), []
    for seed in (1, 2, 3):
        train_compiled(tmp_path / "runs", history_, f"seed={seed}", *words)
        graphs.append(count_compilations()[0])
    assert graphs[0] > 0
    assert (graphs[2] > graphs[1] > graphs[0]) == (graphs[2] > graphs[0]) == compiles_again
    assert caplog.text.count("compiling again for each seed: ") == compiles_again
    runs = sorted(load_runs([tmp_path / "runs"]), key=lambda run: run.config["seed"])
    metric = ComparedMetric(target=0.0)  # the first evaluation reaches it, after 3 steps
    assert [seconds_to_target(run, metric) for run in runs] == [1, 1, 1]
    # The first step, and the first with a short batch.
    compiled = 2002 if compiles_again else 2
    assert [run.summary["time/startup_seconds"] for run in runs] == [2002, compiled, compiled]
    assert [run.summary["time/train_seconds"] - run.summary["time/startup_seconds"] for run in runs] == [
        4,
        4,
        4,
    ]


# The blocks of all built-in networks and, if timm is installed, of three kinds of its networks: attention
# with layer scale and stochastic depth, ConvNeXt's block, and EfficientNet's with squeeze-and-excitation.
ALL_NETWORKS = """
from importlib.util import find_spec
from torch import nn
from torchvision.models.resnet import Bottleneck, ResNet
from ampcompare.models.builtin import resnet20, tiny

class Sum(nn.Module):
    def __init__(self, networks):
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, x):
        return sum(network(x) for network in self.networks)

def build(num_classes):
    first_blocks = resnet20(num_classes)  # its other blocks are as these
    for stage in ("layer1", "layer2", "layer3"):
        setattr(first_blocks, stage, getattr(first_blocks, stage)[:1])
    networks = [tiny(num_classes), first_blocks]
    networks += [ResNet(Bottleneck, [1, 1, 1, 1], num_classes, width_per_group=4)]
    if find_spec("timm"):
        import timm
        options = {"num_classes": num_classes, "drop_path_rate": 0.1}
        vit = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "num_heads": 2, "depth": 1}
        networks += [
            timm.create_model("test_vit", init_values=1e-4, **vit, **options),
            timm.create_model("test_convnext", depths=(1, 1, 1, 1), dims=(8, 8, 8, 8), **options),
            timm.create_model("test_efficientnet", drop_rate=0.1, **options),
        ]
    return Sum(networks)
"""


@pytest.mark.slow
def test_only_the_first_seed_compiles_the_networks_of_timm_and_our_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, outside: Outside
):
    use_compiler(outside, outside.stop_clock())
    (tmp_path / "networks.py").write_text(ALL_NETWORKS)
    words = f"model.name={tmp_path / 'networks.py'}:build", "data.train_limit=8", "data.test_limit=8"
    forget_compiled_code()
    history_, graphs = ProcessHistory(), []
    for seed in (1, 2):
        train_compiled(
            tmp_path / "runs", history_, f"seed={seed}", "backend=apex_o1_bf16", "epochs=1", *words
        )
        graphs.append(count_compilations()[0])
    assert graphs[0] == graphs[1] > 0
    assert "compiling again" not in caplog.text


KEPT = """
from functools import cache
from torch import nn

@cache
def build_once(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, num_classes))

class Holder:
    pass

def build_in_a_cycle(num_classes):
    network = build_once.__wrapped__(num_classes)
    network.holder = Holder()
    network.holder.owner = network.forward
    return network
"""


@pytest.mark.parametrize(("build", "is_kept"), [("build_once", True), ("build_in_a_cycle", False)])
def test_a_network_that_the_users_code_keeps_is_not_trained_further(
    build: str, is_kept: bool, tmp_path: Path
):
    (tmp_path / "kept.py").write_text(KEPT)
    done = run_series(tmp_path / "series", [1, 2], f"model.name={tmp_path / 'kept.py'}:{build}")
    assert done["code"] == (2 if is_kept else 0)
    assert [record.id for record in load_runs([tmp_path / "series"])] == (["s1"] if is_kept else ["s1", "s2"])
    log = (tmp_path / "series" / "logs" / "s1.log").read_text()
    assert ("keeps the network that it returned, so entry 1 would train it further" in log) == is_kept


def test_a_series_is_checked_before_it_begins(tmp_path: Path):
    file = tmp_path / "runs.json"
    for content, message in (
        ("[]", "expected a list of runs"),
        ('[{"seed": 1}]', "entry 0 is {'seed': 1}; expected an object with the keys overrides"),
        (
            '[{"overrides": ["seed=1"]}, {"overrides": ["seed=2", "batch_size=9"]}]',
            "batch_size is 9 in entry 1 and 8 in entry 0; .* may differ only in the seed",
        ),
    ):
        file.write_text(content)
        done = faults.run(*QUICK, f"output_dir={tmp_path / 'runs'}", "--runs", str(file))
        assert done["code"] == 2
        assert re.search(f"error: .*{message}", done["said"]), done["said"]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("number", [15, pytest.param(2, marks=pytest.mark.slow)])
def test_a_stopped_run_ends_the_process_and_the_next_process_continues(number: int, tmp_path: Path):
    """A signal stops the second of three runs. The next process resumes it and trains the third."""
    words = "backend=native", "recipe=reference"
    jobs = {"signal_at": [5, number], "once_in": str(tmp_path / "series" / "checkpoints" / "s2")}
    done = run_series(tmp_path / "series", (1, 2, 3), *words, **jobs)
    assert done["code"] == 128 + number
    series = tmp_path / "series"
    assert (series / "series.json.progress").read_text() == "begin 0\nend 0\nbegin 1\n"
    assert record_of(series, 1).state == "finished"
    done = run_series(series, (2, 3), *words, "resume=auto", name="rest")
    assert done["code"] == 0, done["said"]
    run_alone(tmp_path / "alone", 2, *words)
    assert_same_state_and_rows(series, tmp_path / "alone", 2)
    assert record_of(series, 3).state == "finished"
