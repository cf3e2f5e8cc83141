"""Several processes: how they meet, what they are refused, how they agree."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.quick import ROOT
from support.torchrun import torchrun
from support.wandb_server.clients import wait_until

from ampcompare.config.load import load_config
from ampcompare.errors import UserError
from ampcompare.machine import world as distributed
from ampcompare.machine.world import (
    CollectiveFlags,
    World,
    check_config,
    check_last_batch,
    device_name,
    join,
    this_world,
)
from ampcompare.records import load_runs

TWO = World(rank=1, size=2, local_rank=1)


@pytest.mark.slow
def test_torchrun_runs_the_experiment_with_one_record(tmp_path: Path, quick_overrides: tuple[str, ...]):
    words = [*quick_overrides, "backend=apex_o1", f"output_dir={tmp_path}"]
    done = torchrun(2, str(ROOT / "run_experiment.py"), *words)
    (record,) = load_runs([tmp_path])
    assert record.state == "finished"
    assert record.summary["environment"]["processes"] == 2
    machine = record.config["environment"]["machine"]
    assert machine["others"] == [{"host": machine["host"], "gpu": None}]
    assert record.history["global_step"].max() == 8
    assert done.stdout.count("record: ") == 1


@pytest.mark.slow
def test_a_mistake_ends_all_processes_before_training_and_is_said_once(
    tmp_path: Path, quick_overrides: tuple[str, ...]
):
    given = [*quick_overrides, "batch_size=1", f"output_dir={tmp_path}"]  # all see it
    done = torchrun(2, str(ROOT / "run_experiment.py"), *given, check=False)
    assert done.returncode != 0
    assert done.stderr.count("error: ") == 1
    assert "error: batch_size=1: with 2 processes each needs an image" in done.stderr
    assert "exitcode: 2" in done.stderr
    assert not list(tmp_path.rglob("*.wandb"))


def meet(store: dist.Store, *ranks: int) -> list[dist.Store]:
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(lambda rank: distributed._meet(store, World(rank, len(ranks), rank)), ranks))


def test_processes_that_were_started_again_do_not_see_what_the_dead_left():
    store = dist.HashStore()
    for start in range(3):
        first, second, third = meet(store, 1, 0, 2)  # in any order
        assert not second.check(["address"])
        first.set("address", str(start))
        assert third.get("address") == str(start).encode()


def test_a_process_that_comes_before_the_new_first_one_waits_for_it():
    store = dist.HashStore()
    meet(store, 0, 1)
    of_the_dead = f"{store.get(distributed.MEETING).decode()}/1"
    before = store.get(of_the_dead)
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(distributed._meet, store, World(1, 2, 1))
        wait_until(lambda: store.get(of_the_dead) != before)
        late = distributed._meet(store, World(0, 2, 0))
        late.set("address", "new")
        assert early.result().get("address") == b"new"


def test_what_several_processes_cannot_do_is_refused_with_what_works():
    for key, word, said in (("execution", "compile", "'compile'"), ("training.gradient_penalty", "1", "1")):
        with pytest.raises(UserError, match=f"{key}={said}: with 2 processes"):
            check_config(load_config(None, [f"{key}={word}"]), TWO)
    message = r"the last batch of an epoch has 1 of 65 images.*data\.train_limit=64"
    with pytest.raises(UserError, match=message):
        check_last_batch(65, 32, TWO)
    check_last_batch(66, 32, TWO)
    check_last_batch(64, 32, TWO)
    assert (device_name("cpu", TWO), device_name("cuda:1", World())) == ("cpu", "cuda:1")
    with pytest.raises(UserError, match="device='cuda:1': 2 processes need a device each"):
        device_name("cuda:1", TWO)


def test_who_is_who_is_said_by_torchrun_in_whole_numbers(monkeypatch: pytest.MonkeyPatch):
    with join(load_config(None)) as world:
        assert world == World()
    monkeypatch.setenv("RANK", "1")
    assert this_world() == World()  # of one
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert this_world() == World(rank=1, size=2)
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(UserError, match="WORLD_SIZE='two': expected a whole number"), join(load_config(None)):
        pass


def test_a_request_to_stop_is_heard_within_seconds_where_a_log_interval_lasts_longer(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(distributed.time, "monotonic", lambda: clock[0])
    ask, heard = CollectiveFlags(Alike(size=2), 1000), []
    for step in range(501, 1000):  # of a run that goes on
        clock[0] += 0.1 if step < 900 else 3.0
        if ask.at(step, lambda: True) == [True]:
            heard.append(step)
    fast = [step for step in heard if 520 < step < 900]
    assert max(b - a for a, b in itertools.pairwise(fast)) <= 20
    assert len(fast) < 30  # and it costs something
    assert [step for step in heard if step > 920] == list(range(921, 1000))


def test_at_both_ends_of_an_epoch_all_are_asked_however_fast_its_steps(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(distributed.time, "monotonic", lambda: clock[0])
    ask, heard = CollectiveFlags(Alike(size=2), 1000), []
    for epoch in range(1, 9):
        clock[0] += 40  # an evaluation, which says nothing of the steps
        ask.begin(4 * epoch)
        for step in range(4 * epoch + 1, 4 * epoch + 5):
            clock[0] += 0.001
            if ask.at(step, lambda: True, ends=step == 4 * epoch + 4) == [True]:
                heard.append(step)
    assert [step for step in heard if step > 12] == [s for s in range(13, 37) if s % 4 in (1, 0)]


class Alike(World):
    """As if all processes had the same numbers."""

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.mul_(self.size)
