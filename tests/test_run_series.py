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
from support.hooks import before_forward
from support.outside import ManualClock, Outside
from support.quick import DROPOUT, QUICK
from support.same_run import assert_same_state, history
from torch._dynamo.utils import counters

from ampcompare import load_runs
from ampcompare.analysis.grouping.compared_metric import ComparedMetric
from ampcompare.analysis.grouping.run_metrics import seconds_to_target
from ampcompare.config.load import load_config
from ampcompare.experiment import ProcessHistory, run
from ampcompare.precision import REGISTRY
from ampcompare.runs import RunRecord
from ampcompare.system.process_state import list_switches, restored_process_state
from ampcompare.training.checkpoint.store import CheckpointStore, read_checkpoint
from ampcompare.training.torch_compile import forget_compiled_code

# Steps are skipped at the start, and the weights are saved at the end.
WORDS = (*QUICK, DROPOUT, "precision.init_scale=2097152", "log.every=1", "checkpoint.every_epochs=1")
ON_CPU = [name for name, backend in REGISTRY.items() if not backend.uses_tf32]
COMPILED = ("none", "native_bf16", "apex_o1_bf16")  # no two of them share a graph


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
    log = folder / "logs" / f"s{seed}.log"
    log.parent.mkdir(parents=True)
    done = faults.run(
        *WORDS,
        *words,
        f"output_dir={folder}",
        f"seed={seed}",
        env={"WANDB_RUN_ID": f"s{seed}", **environment},
    )
    assert done["code"] == 0, done["said"]
    log.write_text(done["said"])


def record_of(folder: Path, seed: int) -> RunRecord:
    (record,) = [record for record in load_runs([folder]) if record.id == f"s{seed}"]
    return record


def lines_of(folder: Path, seed: int) -> list[str]:
    """Return the log lines of a run that do not depend on the folder, without what depends on the clock."""
    text = re.sub(r"  [\d,.]+ samples/s|  \d+:\d\d left", "", (folder / "logs" / f"s{seed}.log").read_text())
    own = [line for line in text.splitlines() if str(folder) not in line]
    # PyTorch's own messages (`W1128 10:32:46 ...`) come where something is compiled.
    return sorted(line for line in own if not re.match(r"[IWE]\d{4} ", line))


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
    assert lines_of(one, seed) == lines_of(other, seed)


def check_series(tmp_path: Path, seeds: Sequence[int], *words: str) -> None:
    """Train the seeds in one process, and the third again in a process of its own."""
    done = run_series(tmp_path / "series", seeds, *words)
    assert done["code"] == 0, done["said"]
    run_alone(tmp_path / "alone", 3, *words)
    assert_same_run(tmp_path / "series", tmp_path / "alone", 3)


@pytest.mark.parametrize("backend", [pytest.param("native", marks=pytest.mark.slow), "apex_o1"])
def test_the_third_of_five_runs_equals_the_run_in_a_process_of_its_own(backend: str, tmp_path: Path):
    words = f"backend={backend}", "recipe=reference"
    check_series(tmp_path, range(1, 6), *words)
    series = tmp_path / "series"
    # Steps were skipped in the runs before.
    skipped = record_of(series, 2).summary["amp/skipped_steps"]
    assert 0 < skipped < 8
    records = [record_of(series, seed) for seed in range(1, 6)]
    assert [record.config["run"]["position_in_process"] for record in records] == [1, 2, 3, 4, 5]
    assert len({record.config["run"]["process"] for record in records}) == 1
    # On a CPU the peak is that of the process.
    assert ["memory/peak_mib" in record.summary for record in records] == [True] + 4 * [False]


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


@pytest.mark.parametrize("backend", ["native", "apex_o1"])
def test_a_run_after_one_that_failed_equals_a_run_of_its_own(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The failed run ends in the middle of a step, under the backend's casts."""
    words = [*WORDS, "recipe=reference", f"backend={backend}"]
    series, history_ = tmp_path / "series", ProcessHistory()

    def fail(network: torch.nn.Module, images: torch.Tensor) -> None:
        if network.training:
            leave_traces()
            raise RuntimeError("a fault of the network")

    def train(seed: int) -> int:
        config = load_config(None, [*words, f"seed={seed}", f"output_dir={series}"])
        console = Console(file=io.StringIO())
        with restored_process_state():
            monkeypatch.setenv("WANDB_RUN_ID", f"s{seed}")
            return run(config, console, history=history_).exit_code

    with before_forward(fail), pytest.raises(RuntimeError, match="a fault of the network"):
        train(1)
    assert train(2) == 0
    run_alone(tmp_path / "alone", 2, f"backend={backend}", "recipe=reference")
    assert_same_state_and_rows(series, tmp_path / "alone", 2)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ON_CPU)
def test_the_third_run_of_any_backend_equals_a_run_of_its_own(backend: str, tmp_path: Path):
    check_series(tmp_path, (1, 2, 3), f"backend={backend}", "recipe=reference")


@pytest.fixture(scope="module")
def compiler_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the compiler's cache that all backends share."""
    return tmp_path_factory.mktemp("compiler-cache")


def list_graphs(cache: Path) -> set[str]:
    """Return the keys of the compiled graphs in the compiler's cache."""
    return {folder.name for folder in (cache / "fxgraph").glob("*/*")}


@pytest.mark.slow
@pytest.mark.parametrize("backend", COMPILED)
def test_the_third_compiled_run_equals_a_run_in_another_process_that_shares_the_cache(
    backend: str, tmp_path: Path, compiler_cache: Path
):
    """The second process finds the graphs of the first in the cache, and no graph of another backend."""
    words = f"backend={backend}", "recipe=reference", "execution=compile"
    before = list_graphs(compiler_cache)
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(compiler_cache)}
    done = run_series(tmp_path / "series", (1, 2, 3), *words, env=environment)
    assert done["code"] == 0, done["said"]
    graphs = list_graphs(compiler_cache)
    checks = 1  # Each process compiles a graph that no other has, to see whether the compiler works.
    assert len(graphs - before) == 2 + checks  # forward and backward
    run_alone(tmp_path / "alone", 3, *words, **environment)
    assert len(list_graphs(compiler_cache) - graphs) == checks
    assert_same_run(tmp_path / "series", tmp_path / "alone", 3)


def count_compilations() -> tuple[int, int]:
    """Return the graphs that were compiled in this process, and the frames that the compiler looked at."""
    return counters["stats"]["unique_graphs"], counters["frames"]["total"]


def train_compiled(folder: Path, history_: ProcessHistory, *words: str) -> None:
    """Train in this process, and count compilations."""
    config = load_config(None, [*QUICK, *words, "execution=compile", f"output_dir={folder}"])
    with restored_process_state():
        assert run(config, Console(file=io.StringIO()), history=history_).exit_code == 0


def use_compiler(outside: Outside, name: str, clock: ManualClock | None = None) -> None:
    """Compile with this compiler. "aot_eager" leaves out the last stage, which generates and builds C++ code.

    Whether a call is traced again is decided before that stage.

    Args:
        outside: Replaces `torch.compile`.
        name: The compiler, a backend of `torch.compile`.
        clock: Each call of compiled code takes a second of it, and 1000 s more if something is compiled.
    """
    compile_ = torch.compile

    def compile_with_name(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        compiled = compile_(function, **{"backend": name, **options})
        if clock is None:
            return compiled

        def call(*args: Any, **kwargs: Any) -> Any:
            before = count_compilations()
            result = compiled(*args, **kwargs)
            clock.now += 1 if count_compilations() == before else 1001
            return result

        return call

    outside.replace(torch, "compile", compile_with_name)


@pytest.fixture
def quick_compiler(outside: Outside) -> None:
    use_compiler(outside, "aot_eager")


def check_compiled_once(
    folder: Path, caplog: pytest.LogCaptureFixture, seeds: Sequence[int], *words: str
) -> None:
    """Train the seeds; only the first may compile anything."""
    forget_compiled_code()
    history_, counts = ProcessHistory(), []
    for seed in seeds:
        train_compiled(folder, history_, f"seed={seed}", *words)
        counts.append(count_compilations())
    assert counts[0][0] > 0
    assert counts[1:] == [counts[0]] * (len(seeds) - 1)
    assert "compiling again" not in caplog.text


@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_only_the_first_seed_compiles_and_no_time_to_target_counts_it(
    compiler: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, outside: Outside
):
    """Each step takes a second by the clock of the training, and 1000 s more if it compiles something."""
    clock = outside.stop_clock()
    use_compiler(outside, compiler, clock)
    words = "backend=native_bf16", "data.train_limit=20"  # the last batch of an epoch has 4 samples
    check_compiled_once(tmp_path, caplog, (1, 2, 3), *words)
    first, second, third = sorted(load_runs([tmp_path]), key=lambda run: run.config["seed"])
    metric = ComparedMetric(target=0.0)  # the first evaluation reaches it, after 3 steps
    assert [seconds_to_target(run, metric) for run in (first, second, third)] == [1, 1, 1]
    # The first step, and the first with a short batch.
    assert [run.summary["time/startup_seconds"] for run in (first, second, third)] == [2002, 2, 2]
    assert [run.summary["time/train_seconds"] for run in (first, second, third)] == [2006, 6, 6]


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
@pytest.mark.parametrize("backend", ["none", "apex_o1_bf16"])
def test_only_the_first_seed_compiles_the_networks_of_timm_and_our_own(
    backend: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, quick_compiler: None
):
    (tmp_path / "networks.py").write_text(ALL_NETWORKS)
    network = f"model.name={tmp_path / 'networks.py'}:build"
    short = "data.train_limit=8", "data.test_limit=8", "epochs=1", "diagnostics.every=1"
    check_compiled_once(tmp_path / "runs", caplog, (1, 2), network, f"backend={backend}", *short)


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


@pytest.mark.parametrize(("factor", "compiles_again"), [("2.0", False), ("2.0 + next(numbers)", True)])
def test_a_network_with_other_attributes_is_compiled_again_and_that_is_said_once(
    factor: str, compiles_again: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture, quick_compiler: None
):
    (tmp_path / f"net{compiles_again}.py").write_text(NETWORK.format(factor=factor))
    network = f"model.name={tmp_path / f'net{compiles_again}.py'}:build"
    history_, graphs = ProcessHistory(), []
    forget_compiled_code()
    for seed in (1, 2, 3):
        train_compiled(
            tmp_path / "runs", history_, network, "backend=none", f"seed={seed}", "diagnostics.every=null"
        )
        graphs.append(count_compilations()[0])
    assert (graphs[1] > graphs[0]) == (graphs[2] > graphs[1]) == compiles_again
    message = "compiling again for each seed: network.factor is not that of the network before"
    assert caplog.text.count(message) == compiles_again


KEPT = """
from functools import cache
from torch import nn

BODY = nn.Linear(3072, 8)

def build_from_global(num_classes):
    return nn.Sequential(nn.Flatten(), BODY, nn.Linear(8, num_classes))

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


@pytest.mark.parametrize(
    ("build", "is_kept"), [("build_from_global", True), ("build_once", True), ("build_in_a_cycle", False)]
)
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
        ("{", "cannot be read"),
        ('[{"seed": 1}]', "entry 0 is {'seed': 1}; expected an object with the keys overrides"),
        (
            '[{"overrides": ["seed=1"]}, {"overrides": ["seed=2", "batch_size=9"]}]',
            "batch_size is 9 in entry 1 and 8 in entry 0; .* may differ only in the seed",
        ),
        ('[{"overrides": ["seed=1"]}, {"overrides": ["epochs=no"]}]', "epochs"),
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
