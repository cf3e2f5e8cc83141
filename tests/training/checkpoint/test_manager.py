"""When a checkpoint is due, and what is written when it is saved."""

import logging
from pathlib import Path

import pytest
from support.training import RowList

from ampcompare.config.load import load_config
from ampcompare.identity.run_identity import RunIdentity
from ampcompare.training.checkpoint.manager import CheckpointManager
from ampcompare.training.checkpoint.store import CheckpointStore


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
