"""When a checkpoint is due, and what is written when it is saved."""

import logging
import time
from pathlib import Path

import pytest
import torch
from support.training import RowList

from ampcompare.config.load import load_config
from ampcompare.identity.run_identity import RunIdentity
from ampcompare.training.checkpoint.manager import CheckpointManager
from ampcompare.training.checkpoint.store import CheckpointStore

HOUR = 3600.0


def manager(folder: Path, *words: str, is_main_process: bool = True) -> CheckpointManager:
    config = load_config(None, words)
    identity = RunIdentity({}, {})
    return CheckpointManager(
        RowList(), CheckpointStore(folder), config, identity, {"host": "a"}, is_main_process=is_main_process
    )


@pytest.mark.parametrize(
    ("every", "expected"),
    [("1", [1, 2, 3, 4, 5, 6, 7]), ("2", [2, 4, 6]), ("3", [3, 6]), ("10", []), ("null", [])],
)
def test_a_checkpoint_is_due_after_every_so_many_epochs(tmp_path: Path, every: str, expected: list[int]):
    made = manager(tmp_path, f"checkpoint.every_epochs={every}", "checkpoint.every_minutes=1e-9")
    assert [epochs for epochs in range(1, 8) if made.is_due(epochs)] == expected


@pytest.mark.parametrize(
    ("minutes", "hours_ago", "expected"),
    [("30", 1.0, True), ("120", 1.0, False), ("30", -1.0, False), ("null", 1.0, False)],
)
def test_a_checkpoint_is_due_so_many_minutes_after_the_last_attempt(
    tmp_path: Path, minutes: str, hours_ago: float, expected: bool
):
    made = manager(tmp_path, f"checkpoint.every_minutes={minutes}")
    made.saved_at = time.monotonic() - hours_ago * HOUR
    assert made.by_clock is (minutes != "null")
    assert made.is_due() is expected
    made.save({}, 1)
    assert not made.is_due()  # the clock begins again with each attempt


def test_the_main_process_saves_the_state_with_the_facts_of_the_run(tmp_path: Path):
    other, main = (manager(tmp_path, "seed=3", is_main_process=is_main) for is_main in (False, True))
    other.save({"model": {}}, 4)
    assert (other.saved_step, [*tmp_path.iterdir()]) == (None, [])
    main.save({"model": {"w": torch.ones(2)}}, 4, best=True)
    assert main.saved_step == 4
    (file,) = main.store.files()
    assert file.name == "step-000000004.best.pt"
    state = CheckpointStore(tmp_path).load()
    assert state is not None
    assert (state["step"], state["machine"], state["config"]["seed"]) == (4, {"host": "a"}, 3)
    assert state["model"]["w"].tolist() == [1, 1]
    assert {"run_id", "record"} < state.keys()


def test_a_folder_that_another_process_uses_gets_a_warning_and_no_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    made, owner = manager(tmp_path), CheckpointStore(tmp_path)
    assert owner.lock()
    with caplog.at_level(logging.WARNING):
        made.save({}, 4)
    assert "the checkpoint at step 4 could not be written" in caplog.text
    assert (made.saved_step, made.store.files()) == (None, [])
    owner.unlock()
    made.save({}, 5)
    assert made.saved_step == 5
