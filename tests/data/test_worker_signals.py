"""Workers of loaders beside signals that reach every process of a job; real workers, real signals."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from support import warm_python
from support.quick import ROOT
from torch.utils.data import DataLoader, Dataset

from ampcompare.data.dataset import SampleSplit
from ampcompare.data.host_loaders import SampleLoader
from ampcompare.data.seeding import read_batches
from ampcompare.data.worker_signals import start_iterator
from ampcompare.errors import UserError

SIZE = 16


class Signalled(Dataset[Any]):
    """90 samples; the process that makes the 40th gets the signals first, each once."""

    def __init__(self, *signals: int) -> None:
        self.signals = [*signals]

    def __len__(self) -> int:
        return 90

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        while i == 40 and self.signals:
            os.kill(os.getpid(), self.signals.pop())
        return torch.full((2,), float(i)), i % 2


def ours(data: Signalled) -> SampleLoader:
    """Our loader of a data set, with one worker."""
    return SampleLoader(SampleSplit(data, Path()), name="signalled", batch_size=SIZE, device="cpu", workers=1)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM], ids=str)
def test_workers_survive_a_signal_to_every_process(signum: int):
    """Ours and those of a user's DataLoader."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert len(list(ours(Signalled(signum)).epoch(0))) == 6
    assert len(list(start_iterator(DataLoader(Signalled(signum), batch_size=SIZE, num_workers=1)))) == 6
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before  # the training hears them as it did


EARLY: list[int] = []  # signals that a process gets as it is forked
os.register_at_fork(after_in_child=lambda: [os.kill(os.getpid(), number) for number in EARLY])


def test_a_worker_survives_a_signal_right_after_its_fork():
    EARLY[:] = [signal.SIGTERM, signal.SIGUSR1]
    try:
        batches = start_iterator(DataLoader(Signalled(), batch_size=SIZE, num_workers=1))
    finally:
        EARLY.clear()
    assert len(list(batches)) == 6


def test_a_loaders_own_worker_init_fn_still_runs():
    def note(number: int) -> None:
        torch.utils.data.get_worker_info().dataset.signals = [signal.SIGTERM, signal.SIGUSR1]

    loader = DataLoader(Signalled(), batch_size=SIZE, num_workers=1, worker_init_fn=note)
    for _ in range(2):  # wrapped once, however often it is begun
        assert len(list(start_iterator(loader))) == 6


LEFT = """
import torch
from torch.utils.data import DataLoader, TensorDataset
from ampcompare.data.worker_signals import start_iterator

batches = start_iterator(DataLoader(TensorDataset(torch.zeros(64)), batch_size=1, num_workers=1))
next(batches)
"""


@pytest.mark.slow
def test_a_program_that_ends_within_an_epoch_ends_its_workers():
    """It sends them SIGTERM and waits for them."""
    assert subprocess.run([sys.executable, "-c", LEFT]).returncode == 0


class Leaves(Signalled):
    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        raise SystemExit(0)


def test_a_worker_that_exits_is_reported():
    with pytest.raises(UserError, match=r"cannot get batch 0 of epoch 0 .*SystemExit: 0"):
        next(ours(Leaves()).epoch(0))


@pytest.mark.slow
def test_a_worker_of_a_users_loader_that_exits_silently_is_reported_as_lost():
    with pytest.raises(RuntimeError, match=r"^DataLoader worker .* exited unexpectedly"):
        next(read_batches(DataLoader(Leaves(), num_workers=1), "leaves", None, 0))


class BrokenConnection(DataLoader[Any]):
    """A loader whose worker dies while it sends a batch: PyTorch's own word of it comes later."""

    def __iter__(self) -> Any:
        raise ConnectionResetError(104, "Connection reset by peer")


def test_a_broken_connection_to_a_worker_is_a_lost_worker_and_no_mistake_in_the_data():
    why = r"^DataLoader worker .* exited unexpectedly: Connection reset by peer$"
    with pytest.raises(RuntimeError, match=why):
        next(read_batches(BrokenConnection(Signalled(), num_workers=1), "broken", None, 0))


DATA = """
import time, torch

class Signalled(torch.utils.data.Dataset):
    num_classes = 2

    def __len__(self):
        return 256

    def __getitem__(self, i):
        time.sleep(0.001)
        return torch.zeros(3, 32, 32), i % 2

def loader(train):
    return torch.utils.data.DataLoader(Signalled(), batch_size=8, num_workers=1)
"""
WORDS = (
    "--config=demo batch_size=8 eval.batch_size=8 device=cpu model.name=tiny backend=none epochs=2".split()
)
WORDS += "output_dir=runs data.source=./data.py:loader data.train_limit=null data.test_limit=null".split()
WORDS += "log.every=1 checkpoint.every_minutes=1e-9 wandb.mode=offline".split()


@pytest.mark.slow
def test_a_run_resumes_from_the_checkpoint_that_a_signal_to_the_whole_job_caused(tmp_path: Path):
    (tmp_path / "data.py").write_text(DATA)
    program = [ROOT / "run_experiment.py", *WORDS]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    job = subprocess.Popen([sys.executable, *program], cwd=tmp_path, start_new_session=True, **pipes)
    while job.poll() is None and not [*tmp_path.glob("runs/checkpoints/*/*")]:
        time.sleep(0.05)
    os.killpg(job.pid, signal.SIGUSR1)
    message, _ = job.communicate()
    assert job.returncode == 128 + signal.SIGUSR1, message
    assert "Traceback" not in message
    (step,) = re.findall(r"interrupted at step (\d+) .*; continue with resume=auto", message)
    resumed = subprocess.run([warm_python.python(), *program, "resume=auto"], cwd=tmp_path, **pipes)
    assert resumed.returncode == 0, resumed.stdout
    assert f"at step {step}" in resumed.stdout
