"""Workers of loaders beside signals that reach every process of a job; real workers, real signals."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from ampcompare.data.host import SampleLoader
from ampcompare.data.splits import SampleSet
from ampcompare.data.workers import FOR_THE_TRAINING, begin
from ampcompare.errors import UserError

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


@pytest.fixture
def threads_of_libraries() -> Iterator[None]:
    """Every process that is forked has a thread that holds no signals, before anything else happens in it."""
    wanted = [True]

    def begin_one() -> None:
        if wanted:
            threading.Thread(target=threading.Event().wait, daemon=True).start()

    os.register_at_fork(after_in_child=begin_one)  # for good, hence `wanted`
    yield
    wanted.clear()


@pytest.mark.parametrize("signum", HEARD, ids=lambda number: signal.Signals(number).name)
def test_a_signal_to_every_process_leaves_workers_at_work(threads_of_libraries: None, signum: int):
    """Ours and those of somebody's own DataLoader."""
    assert len(list(ours(Signalled(signum)).epoch(0))) == 6
    assert len(list(begin(DataLoader(Signalled(signum), batch_size=SIZE, num_workers=1)))) == 6


def test_what_a_loader_asks_of_its_workers_first_is_still_done():
    def note(number: int) -> None:
        torch.utils.data.get_worker_info().dataset.signals = [signal.SIGTERM, signal.SIGUSR1]

    loader = DataLoader(Signalled(), batch_size=SIZE, num_workers=1, worker_init_fn=note)
    for _ in range(2):  # wrapped once, however often it is begun
        assert len(list(begin(loader))) == 6
    assert loader.worker_init_fn.then is note


def test_a_loader_without_workers_is_left_as_it_is():
    loader = DataLoader(Signalled(), batch_size=SIZE)
    assert len(list(begin(loader))) == 6
    assert loader.worker_init_fn is None


def test_the_training_hears_its_signals_as_before():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    next(begin(DataLoader(Signalled(), batch_size=SIZE, num_workers=1)))
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_the_training_can_end_its_workers():
    loader = DataLoader(Signalled(), batch_size=SIZE, num_workers=1)
    batches = begin(loader)
    next(batches)
    (worker,) = batches._workers
    worker.terminate()
    worker.join(60)
    assert worker.exitcode == 0


def test_a_worker_that_is_killed_is_one_line_that_says_how():
    line = ""
    try:  # pytest.raises would keep the traceback and in it the dead worker, which PyTorch tells of for ever
        list(ours(Signalled(signal.SIGKILL)).epoch(0))
    except UserError as problem:
        line = str(problem)
    assert line.startswith("data.source='signalled': no batch ")
    assert "DataLoader worker" in line
    assert "Killed" in line  # PyTorch says it in the exception behind
