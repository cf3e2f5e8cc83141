"""One training in a process of its own that takes steps when it is told to, in turn with others.

Its batches lie in memory: what a step costs is told, not what loading data does.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
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
from ampcompare.train.step import Trainer, micro_batches

BATCHES = 4  # of an epoch, again and again
WARM_UP_STEPS, WARM_UP_SECONDS = 12, 1.0  # steps until either is reached, and none is of what compiles


def serve(line: Connection, words: Sequence[str]) -> None:
    """Build the training of a run's words and do as the line says until it is closed: None is the warm-up, a
    number so many steps. Each answer is a dict; one with `failed` is the last.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one that holds the line
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # what a network prints is not ours to show
        os.dup2(nowhere, stream)
    try:
        for answer in _answers(line, words):
            line.send(answer)
    except (EOFError, BrokenPipeError):
        return
    except UserError as problem:
        line.send({"failed": one_line(problem), "full": False})
    except Exception as problem:
        why = f"{type(problem).__name__}: {one_line(reason(problem))}"
        line.send({"failed": why, "full": is_out_of_memory(problem)})


def _answers(line: Connection, words: Sequence[str]) -> Iterator[dict[str, Any]]:
    config = made_up(configured(words))
    setting = set_up(config)
    device = setting.world.device
    trainer = setting.trainer(config)
    groups = micro_batches(trainer.feed(setting.train, 0), config.training.accumulate)
    first, *others = islice(groups, BATCHES)
    samples = _samples(first)  # an epoch's last step may have fewer
    steps = cycle([first, *(group for group in others if _samples(group) == samples)])
    dtype, environment = backend_of(config.backend).dtype, describe_environment(device)
    is_emulated = arithmetic_of(device).get(ARITHMETIC, {}).get(dtype) == EMULATED
    yield {"dtype": dtype, "is_emulated": is_emulated, "environment": environment}
    with trainer.precision.session():
        while True:
            count = line.recv()
            if count is None:
                seconds = _warm_up(trainer, steps, device)
                if not captures(config.execution):  # the capture's peak is that of a step
                    reset_peak(device)
            else:
                seconds = _timed(trainer, steps, device, count)
            peak = peak_mib(device)
            yield {"rate": samples / seconds, "seconds": seconds, "samples": samples, "peak_mib": peak}


def _samples(group: Sequence[Any]) -> int:
    """Of the micro-batches of a step: pairs of inputs and targets, or plans of them, [rows, B]."""
    return sum(count_samples(x[1]) if isinstance(x, tuple) else x.shape[1] for x in group)


def _warm_up(trainer: Trainer, steps: Iterator[Any], device: torch.device) -> float:
    """Seconds of the last of some steps."""
    spent, count, is_cold = 0.0, 0, True
    while is_cold or (count < WARM_UP_STEPS and spent < WARM_UP_SECONDS):
        began = time.perf_counter()
        is_cold = trainer.step(next(steps)).cold
        wait_for(device)  # sync: the clock stops when the work is done
        seconds = time.perf_counter() - began
        spent, count = spent + seconds, count + 1
    return seconds


def _timed(trainer: Trainer, steps: Iterator[Any], device: torch.device, count: int) -> float:
    """Seconds of a step, the mean of so many, behind one that finds caches and clocks as others left them."""
    trainer.step(next(steps))
    wait_for(device)  # sync: the clock starts on an idle device
    began = time.perf_counter()
    for _ in range(count):
        trainer.step(next(steps))
    wait_for(device)  # sync: the clock stops when the work is done
    return (time.perf_counter() - began) / count
