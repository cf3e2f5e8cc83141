"""One training in a process of its own that takes steps when it is told to, in turn with others.

Its batches lie in memory: what a step costs is told, not what loading data does.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import chain, count, cycle, islice
from multiprocessing.connection import Connection
from typing import Any

import torch

from ampcompare.data.batch import count_samples
from ampcompare.errors import UserError, one_line, reason
from ampcompare.machine.device import is_out_of_memory, peak_mib, reset_peak, wait_for
from ampcompare.machine.environment import arithmetic_of, describe_environment
from ampcompare.metrics import ARITHMETIC, EMULATED
from ampcompare.precision import backend_of
from ampcompare.train.compiled import captures
from ampcompare.train.setting import configured, made_up, set_up
from ampcompare.train.step import micro_batches

# What a step's speed hangs on, beside the machine.
SETTINGS = "model.name model.stem batch_size execution training.accumulate optimizer.name".split()
BATCHES = 4  # of an epoch, again and again
WARM_UP_STEPS, WARM_UP_SECONDS = 12, 1.0  # steps until either is reached, and none is of what compiles


@dataclass(frozen=True)
class Training:
    """A training to be timed: `step` takes its next step and says whether something was compiled in it."""

    step: Callable[[], bool]
    samples: int  # of a step
    device: torch.device
    dtype: str
    session: AbstractContextManager[Any] = field(default_factory=nullcontext)
    is_captured: bool = False
    settings: dict[str, str] = field(default_factory=dict)  # by which a report finds its runs


def serve(line: Connection, words: Sequence[str]) -> None:
    """`answer` for the training of a run's words."""
    answer(line, lambda: build(words))


def answer(line: Connection, build: Callable[[], Training]) -> None:
    """Do as the line says until it is closed: None is the warm-up, a number so many steps. Each answer is a
    dict; one with `failed` is the last.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one that holds the line
    # Workers of a DataLoader are this process's own, as in a run, and end with it.
    multiprocessing.set_start_method(None, force=True)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # what a network prints is not ours to show
        os.dup2(nowhere, stream)
    try:
        for said in _answers(line, build()):
            line.send(said)
    except (EOFError, BrokenPipeError):
        return
    except UserError as problem:
        line.send({"failed": one_line(problem), "full": False})
    except Exception as problem:
        why = f"{type(problem).__name__}: {one_line(reason(problem))}"
        line.send({"failed": why, "full": is_out_of_memory(problem)})


def _answers(line: Connection, training: Training) -> Iterator[dict[str, Any]]:
    device = training.device
    is_emulated = arithmetic_of(device).get(ARITHMETIC, {}).get(training.dtype) == EMULATED
    yield {
        "dtype": training.dtype,
        "is_emulated": is_emulated,
        "settings": training.settings,
        "environment": describe_environment(device),
    }
    with training.session:
        while True:
            wanted = line.recv()
            if wanted is None:
                seconds = _warm_up(training)
                if not training.is_captured:  # the capture's peak is that of a step
                    reset_peak(device)
            else:
                seconds = _timed(training, wanted)
            rate, peak = training.samples / seconds, peak_mib(device)
            yield {"rate": rate, "seconds": seconds, "peak_mib": peak}


def build(words: Sequence[str], *, loads: bool = False) -> Training:
    """The training of a run, on its first few batches again and again, or as it `loads` them. Raises
    UserError.
    """
    config = made_up(configured(words))
    setting = set_up(config)
    trainer, each_step = setting.trainer(config), config.training.accumulate
    groups = chain.from_iterable(micro_batches(trainer.feed(setting.train, n), each_step) for n in count())
    first = next(groups)
    samples = _samples(first)  # an epoch's last step may have fewer
    full = chain([first], (group for group in groups if _samples(group) == samples))
    declared = backend_of(config.backend)
    steps = full if loads else cycle([*islice(full, BATCHES)])
    return Training(
        lambda: trainer.step(next(steps)).cold,
        samples,
        setting.world.device,
        declared.dtype,
        trainer.precision.session(),
        captures(config.execution),
        {"backend": declared.label} | {key: str(config.value(key)) for key in SETTINGS},
    )


def _samples(group: Sequence[Any]) -> int:
    """Of the micro-batches of a step: pairs of inputs and targets, or plans of them, [rows, B]."""
    return sum(count_samples(x[1]) if isinstance(x, tuple) else x.shape[1] for x in group)


def _warm_up(training: Training) -> float:
    """Seconds of the last of some steps."""
    spent, steps, is_cold = 0.0, 0, True
    while is_cold or (steps < WARM_UP_STEPS and spent < WARM_UP_SECONDS):
        began = time.perf_counter()
        compiled = training.step()
        wait_for(training.device)  # sync: the clock stops when the work is done
        seconds = time.perf_counter() - began
        # A GPU's first step loads and chooses kernels: 11 s on an H200.
        is_cold = compiled or (steps == 0 and training.device.type != "cpu")
        spent, steps = spent + seconds, steps + 1
    return seconds


def _timed(training: Training, steps: int) -> float:
    """Seconds of a step, the mean of so many, behind one that finds caches and clocks as others left them."""
    training.step()
    wait_for(training.device)  # sync: the clock starts on an idle device
    began = time.perf_counter()
    for _ in range(steps):
        training.step()
    wait_for(training.device)  # sync: the clock stops when the work is done
    return (time.perf_counter() - began) / steps
