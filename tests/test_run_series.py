"""Several runs in one process: each equals the run in a process of its own."""

import io
import json
import os
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from rich.console import Console
from support import zygote
from support.quick import DROPOUT, QUICK, ROOT
from support.same_run import assert_same_state, history
from support.training import Killed, play
from torch._dynamo.utils import counters

from ampcompare import load_runs
from ampcompare.config.load import load_config
from ampcompare.errors import UserError
from ampcompare.experiment import ProcessHistory, run
from ampcompare.precision import REGISTRY
from ampcompare.run_series import read_progress, read_runs
from ampcompare.runs import RunRecord
from ampcompare.system.process_state import restored_process_state
from ampcompare.training.checkpoint.store import CheckpointStore, read_checkpoint
from ampcompare.training.display import TrainingDisplay

# Steps are skipped at the start, and the weights are saved at the end.
WORDS = (*QUICK, DROPOUT, "precision.init_scale=2097152", "log.every=1", "checkpoint.every_epochs=1")
ON_CPU = [name for name, backend in REGISTRY.items() if not backend.uses_tf32]


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
    return zygote.run(*WORDS, *words, f"output_dir={folder}", "--runs", str(file), **job)


def run_alone(folder: Path, seed: int, *words: str) -> None:
    """Train the run of a seed in a process of its own."""
    log = folder / "logs" / f"s{seed}.log"
    log.parent.mkdir(parents=True)
    done = zygote.run(
        *WORDS, *words, f"output_dir={folder}", f"seed={seed}", env={"WANDB_RUN_ID": f"s{seed}"}
    )
    assert done["code"] == 0, done["said"]
    log.write_text(done["said"])


def record_of(folder: Path, seed: int) -> RunRecord:
    (record,) = [record for record in load_runs([folder]) if record.id == f"s{seed}"]
    return record


def lines_of(folder: Path, seed: int) -> list[str]:
    """Return the log lines of a run that do not depend on the folder, without what depends on the clock."""
    text = re.sub(r"  [\d,.]+ samples/s|  \d+:\d\d left", "", (folder / "logs" / f"s{seed}.log").read_text())
    return sorted(line for line in text.splitlines() if str(folder) not in line)


def assert_same_run(one: Path, other: Path, seed: int) -> None:
    checkpoints = [
        read_checkpoint(CheckpointStore(folder / "checkpoints" / f"s{seed}").files()[0])
        for folder in (one, other)
    ]
    for part in ("model", "optimizer", "scheduler", "precision", "random", "step"):
        assert_same_state(checkpoints[0][part], checkpoints[1][part], f"seed {seed}: {part}")
    first, second = (record_of(folder, seed) for folder in (one, other))
    assert first.state == second.state == "finished"
    pd.testing.assert_frame_equal(history(first), history(second))
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


def check_series(tmp_path: Path, *words: str) -> None:
    done = run_series(tmp_path / "series", range(1, 6), *words)
    assert done["code"] == 0, done["said"]
    run_alone(tmp_path / "alone", 3, *words)
    assert_same_run(tmp_path / "series", tmp_path / "alone", 3)


@pytest.mark.parametrize("backend", ["native", "apex_o1"])
def test_the_third_of_five_runs_equals_the_run_in_a_process_of_its_own(backend: str, tmp_path: Path):
    words = f"backend={backend}", "recipe=reference"
    check_series(tmp_path, *words)
    series = tmp_path / "series"
    # Steps were skipped in the runs before.
    skipped = record_of(series, 2).summary["amp/skipped_steps"]
    assert 0 < skipped < 8
    records = [record_of(series, seed) for seed in range(1, 6)]
    assert [record.config["run"]["position_in_process"] for record in records] == [1, 2, 3, 4, 5]
    assert len({record.config["run"]["process"] for record in records}) == 1
    # On a CPU the peak is that of the process.
    assert ["memory/peak_mib" in record.summary for record in records] == [True] + 4 * [False]


@pytest.mark.slow
@pytest.mark.parametrize("execution", ["eager", "compile"])
@pytest.mark.parametrize("backend", ON_CPU)
def test_the_third_of_five_runs_of_any_backend_equals_a_run_of_its_own(
    backend: str, execution: str, tmp_path: Path
):
    check_series(tmp_path, f"backend={backend}", "recipe=reference", f"execution={execution}")


def count_compilations() -> tuple[int, int]:
    """Return the graphs that were compiled in this process, and the frames that the compiler looked at."""
    return counters["stats"]["unique_graphs"], counters["frames"]["total"]


def train_compiled(folder: Path, history_: ProcessHistory, *words: str) -> None:
    """Train in this process, and count compilations."""
    config = load_config(None, [*QUICK, *words, "execution=compile", f"output_dir={folder}"])
    with restored_process_state():
        assert run(config, Console(file=io.StringIO()), history=history_).exit_code == 0


def check_compiled_once(folder: Path, caplog: pytest.LogCaptureFixture, *words: str) -> None:
    """Train three seeds; the second and the third must compile nothing, not even the last, short batch."""
    history_, counts = ProcessHistory(), []
    for seed in (1, 2, 3):
        train_compiled(folder, history_, f"seed={seed}", "data.train_limit=20", *words)
        counts.append(count_compilations())
    assert counts[0][0] > 0
    assert counts[1] == counts[2] == counts[0]
    assert "compiling again" not in caplog.text


@pytest.mark.parametrize("backend", ["native_bf16", "apex_o1_bf16"])
def test_only_the_first_seed_compiles(backend: str, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    check_compiled_once(tmp_path, caplog, f"backend={backend}")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ON_CPU)
def test_only_the_first_seed_compiles_under_any_backend(
    backend: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    check_compiled_once(tmp_path, caplog, f"backend={backend}")
