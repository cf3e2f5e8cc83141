"""Workers of loaders beside signals that reach every process of a job; real workers, real signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.quick import ROOT
from torch.utils.data import DataLoader, Dataset

from ampcompare.data.host import SampleLoader
from ampcompare.data.splits import SampleSet
from ampcompare.data.workers import FOR_THE_TRAINING, begin

HEARD = [*FOR_THE_TRAINING, signal.SIGTERM]
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
    return SampleLoader(SampleSet(data, Path()), name="signalled", batch_size=SIZE, device="cpu", workers=1)


@pytest.mark.parametrize("signum", HEARD, ids=lambda number: signal.Signals(number).name)
def test_a_signal_to_every_process_leaves_workers_at_work(signum: int):
    """Ours and those of somebody's own DataLoader."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert len(list(ours(Signalled(signum)).epoch(0))) == 6
    assert len(list(begin(DataLoader(Signalled(signum), batch_size=SIZE, num_workers=1)))) == 6
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before  # the training hears them as it did


def test_what_a_loader_asks_of_its_workers_first_is_still_done():
    def note(number: int) -> None:
        torch.utils.data.get_worker_info().dataset.signals = [signal.SIGTERM, signal.SIGUSR1]

    loader = DataLoader(Signalled(), batch_size=SIZE, num_workers=1, worker_init_fn=note)
    for _ in range(2):  # wrapped once, however often it is begun
        assert len(list(begin(loader))) == 6


def test_the_training_can_end_its_workers():
    loader = DataLoader(Signalled(), batch_size=SIZE, num_workers=1)
    batches = begin(loader)
    next(batches)
    (worker,) = batches._workers
    worker.terminate()
    worker.join()
    assert worker.exitcode == 0


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_are_not_forked_hear_the_training_alone_too(tmp_path: Path, method: str):
    """In a program of its own: what multiprocessing starts besides, it starts once."""
    (tmp_path / "program.py").write_text(NOT_FORKED)
    done = subprocess.run(
        [sys.executable, "program.py", method],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "5 more\nexit code 0\n", done.stderr


NOT_FORKED = """
import os, signal, sys
import torch
from torch.utils.data import DataLoader, Dataset
from ampcompare.data.workers import begin


class Signalled(Dataset):
    number = 4

    def __len__(self):
        return 12

    def __getitem__(self, i):
        if i == self.number:
            os.kill(os.getpid(), signal.SIGTERM)
        return torch.zeros(2)


if __name__ == "__main__":
    batches = begin(DataLoader(Signalled(), 2, num_workers=1, multiprocessing_context=sys.argv[1]))
    next(batches)
    print(sum(1 for _ in batches), "more", flush=True)
    data = Signalled()
    data.number = None  # a signal that waits would swallow that of the training
    batches = begin(DataLoader(data, 2, num_workers=1, multiprocessing_context=sys.argv[1]))
    next(batches)
    (worker,) = batches._workers
    worker.terminate()
    worker.join()
    print("exit code", worker.exitcode, flush=True)
"""

FATAL = """
import os, signal, torch

class Fatal(torch.utils.data.Dataset):
    num_classes = 2

    def __len__(self):
        return 256

    def __getitem__(self, i):
        if i == 40 and torch.utils.data.get_worker_info():
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.zeros(3, 32, 32), i % 2

def samples(train):
    return Fatal()

def loader(train):
    return torch.utils.data.DataLoader(Fatal(), batch_size=8, num_workers=1)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [("samples", ["data.workers=1"]), ("loader", ["data.train_limit=null", "data.test_limit=null"])],
)
def test_a_worker_that_is_killed_is_one_line_that_says_how(tmp_path: Path, name: str, words: list[str]):
    """As for want of memory: no mistake in the data. PyTorch raises it wherever the training is by then."""
    (tmp_path / "data.py").write_text(FATAL)
    words = [*words, "--config=demo", f"data.source=./data.py:{name}", "batch_size=8", "device=cpu"]
    words += ["model.name=tiny", "epochs=50", "wandb.mode=disabled", "output_dir=runs", "backend=none"]
    command = [sys.executable, ROOT / "run_experiment.py", *words, "eval.batch_size=8"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert done.returncode in (1, 2), said
    (line,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert "DataLoader worker" in line
    # PyTorch says how in the exception behind, which Python does not let out of everything.
    assert "Killed" in line or "(pid not known) has ended" in line
    assert "Traceback" not in said
