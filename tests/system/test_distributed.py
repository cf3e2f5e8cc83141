"""Several processes: how they meet, what they are refused, how they agree."""

from pathlib import Path

import pytest
from support.quick import QUICK, ROOT
from support.torchrun import torchrun

from ampcompare import load_runs
from ampcompare.config.load import load_config
from ampcompare.errors import UserError
from ampcompare.system.distributed import (
    DistributedContext,
    check_last_batch,
    connect_processes,
    find_distributed_context,
    local_device_name,
)
from ampcompare.training.loaders import check_processes

TWO = DistributedContext(rank=1, size=2, local_rank=1)


@pytest.mark.slow
def test_torchrun_runs_the_experiment_with_one_record(tmp_path: Path):
    words = [*QUICK, "backend=apex_o1", f"output_dir={tmp_path}"]
    done = torchrun(2, str(ROOT / "run_experiment.py"), *words)
    (record,) = load_runs([tmp_path])
    assert record.state == "finished"
    assert record.summary["environment"]["processes"] == 2
    machine = record.config["environment"]["machine"]
    assert machine["others"] == [{"host": machine["host"], "gpu": None}]
    assert record.history["global_step"].max() == 8
    assert done.stdout.count("record: ") == 1


@pytest.mark.slow
def test_a_user_error_ends_all_processes_and_is_printed_once(tmp_path: Path):
    given = [*QUICK, "batch_size=1", f"output_dir={tmp_path}"]  # all see it
    done = torchrun(2, str(ROOT / "run_experiment.py"), *given, check=False)
    assert done.returncode != 0
    assert done.stderr.count("error: ") == 1
    assert "error: batch_size=1: with 2 processes each needs at least one sample" in done.stderr
    assert "exitcode: 2" in done.stderr
    assert not list(tmp_path.rglob("*.wandb"))


def test_options_without_multi_process_support_are_refused():
    for key, word, said in (("execution", "compile", "'compile'"), ("training.gradient_penalty", "1", "1")):
        with pytest.raises(UserError, match=f"{key}={said}: with 2 processes"):
            check_processes(load_config(None, [f"{key}={word}"]), 2)
    message = r"the last batch of an epoch has 1 of 65 samples.*data\.train_limit=64"
    with pytest.raises(UserError, match=message):
        check_last_batch(65, 32, TWO)
    check_last_batch(66, 32, TWO)
    check_last_batch(64, 32, TWO)
    assert (local_device_name("cpu", TWO), local_device_name("cuda:1", DistributedContext())) == (
        "cpu",
        "cuda:1",
    )
    with pytest.raises(UserError, match="device='cuda:1': each of the 2 processes needs its own device"):
        local_device_name("cuda:1", TWO)


def test_processes_without_a_rendezvous_are_pointed_to_torchrun(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with (
        pytest.raises(UserError, match=r"^WORLD_SIZE=2: .*MASTER_ADDR.*; start the processes with torchrun"),
        connect_processes("cpu"),
    ):
        pass


def test_ranks_come_from_the_variables_of_torchrun(monkeypatch: pytest.MonkeyPatch):
    with connect_processes("auto") as world:
        assert world == DistributedContext()
    monkeypatch.setenv("RANK", "1")
    assert find_distributed_context() == DistributedContext()  # of one
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert find_distributed_context() == DistributedContext(rank=1, size=2)
