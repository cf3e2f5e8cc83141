"""Checkpoint files: whole or not there, checked, never executed; which are kept."""

import json
import os
import pickle
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from support.same_run import assert_same_state

from ampcompare.training.checkpoint.store import FORMAT, CheckpointError, CheckpointStore, read_checkpoint

STATE: dict[str, Any] = {
    "step": 3,
    "model": {"w": torch.arange(300.0)},
    "names": ["a", None, 1.5, float("inf")],
}


def saved(folder: Path, step: int = 3) -> Path:
    """Save a checkpoint of this step in a run's folder, and return its path."""
    CheckpointStore(folder).save(STATE | {"step": step}, {"seed": 1})
    return CheckpointStore(folder).files()[0]


def names(folder: Path) -> list[str]:
    return [path.name for path in CheckpointStore(folder).files()]


def test_a_saved_state_is_loaded_unchanged_and_pytorch_reads_it_too(tmp_path: Path):
    path = saved(tmp_path / "new" / "folder")
    for found in (read_checkpoint(path), torch.load(path, weights_only=True)):
        assert_same_state(found, STATE)
    assert sorted(p.name for p in path.parent.iterdir()) == ["run.json", "step-000000003.pt"]


def test_a_damaged_file_is_refused_or_gives_the_saved_state(tmp_path: Path):
    """Of the archive's own fields some say nothing, such as the time of a member."""
    path = saved(tmp_path)
    whole = path.read_bytes()
    for place in range(0, len(whole), 41):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with suppress(CheckpointError):
            assert_same_state(read_checkpoint(path), STATE)
        path.write_bytes(whole[:place])
        with pytest.raises(CheckpointError):
            read_checkpoint(path)


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch executed",)


def test_a_pickle_with_code_in_it_is_refused_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"step": 1, "model": Evil()}, tmp_path / "archive.pt")
    (tmp_path / "bare.pt").write_bytes(pickle.dumps(Evil()))
    for path in tmp_path.glob("*.pt"):
        with pytest.raises(CheckpointError):
            read_checkpoint(path)
    assert not (tmp_path / "executed").exists()


def test_the_last_two_and_the_best_are_kept_and_of_an_ended_run_the_last_and_the_best(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    store = CheckpointStore(tmp_path)
    for step, best in ((1, True), (2, True), (3, False), (4, False), (5, False)):
        store.save(STATE | {"step": step}, {}, best=best)
    assert names(tmp_path) == ["step-000000005.pt", "step-000000004.pt", "step-000000002.best.pt"]
    store.end(5)
    assert names(tmp_path) == ["step-000000005.pt", "step-000000002.best.pt"]
    store.save(STATE | {"step": 6}, {}, best=True)  # with more steps
    store.end(6)
    assert names(tmp_path) == ["step-000000006.best.pt"]
    CheckpointStore(tmp_path).save(STATE, {})  # a new run of this name
    assert names(tmp_path) == ["step-000000003.pt"]
    assert not caplog.messages


def described(folder: Path) -> dict[str, Any]:
    """Return what `run.json` says of a run, without its identity."""
    return {
        key: value
        for key, value in json.loads((folder / "run.json").read_text()).items()
        if key != "identity"
    }


def test_the_last_checkpoint_before_the_first_anomaly_is_kept_by_every_part_of_the_run(tmp_path: Path):
    store = CheckpointStore(tmp_path)
    for step, anomaly in ((2, None), (4, None), (6, 6)):
        store.save(STATE | {"step": step}, {}, anomaly=anomaly)
    assert described(tmp_path) == {"format": FORMAT, "ended": 0, "before_anomaly": 4}
    resumed = CheckpointStore(tmp_path)
    assert_same_state(resumed.load(), STATE | {"step": 6})
    for step in (8, 10, 12):
        resumed.save(STATE | {"step": step}, {}, anomaly=9)  # a later anomaly is not the first
    assert names(tmp_path) == ["step-000000012.pt", "step-000000010.pt", "step-000000004.pt"]
    assert described(tmp_path) == {"format": FORMAT, "ended": 0, "before_anomaly": 4}
    CheckpointStore(tmp_path).end(12)
    assert names(tmp_path) == ["step-000000012.pt", "step-000000004.pt"]
    assert described(tmp_path) == {"format": FORMAT, "ended": 12, "before_anomaly": 4}


def test_a_full_disk_leaves_earlier_checkpoints_unchanged(tmp_path: Path):
    saved(tmp_path, 1)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        for limit in (0, 100, 1000, 2000):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            with pytest.raises(OSError, match="too large"):
                saved(tmp_path, 1)
            with pytest.raises(OSError, match="too large"):
                saved(tmp_path, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.json", "step-000000001.pt"]
    assert_same_state(CheckpointStore(tmp_path).load(), STATE | {"step": 1})


def test_one_process_has_a_folder_until_it_ends_however(tmp_path: Path):
    code = "import filelock, signal, sys; lock = filelock.FileLock(sys.argv[1]); lock.acquire(); "
    code += "print('locked', flush=True); signal.pause()"
    command = [sys.executable, "-c", code, str(tmp_path / "lock")]
    other = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert other.stdout
    other.stdout.readline()
    store = CheckpointStore(tmp_path)
    assert not store.lock()
    (tmp_path / "step-000000001.pt.1234.tmp").write_bytes(b"half")
    other.kill()
    other.wait()
    assert store.lock()
    saved(tmp_path)
    assert not list(tmp_path.glob("*.tmp"))
