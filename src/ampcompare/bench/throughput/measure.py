"""One combination's turn: the steps of `run_experiment.py`, or of a baseline, in the steady state.

Run as a program it takes {"words", "loop", "warmup", "steps"} and prints one JSON object.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import islice
from statistics import median
from typing import Any

import torch

from ampcompare.bench.throughput.baselines import BASELINES, Done, Loop, forever
from ampcompare.bench.throughput.busy import profile_steps
from ampcompare.bench.throughput.traffic import per_image
from ampcompare.config.check import settle
from ampcompare.config.load import load_config
from ampcompare.config.schema import Config
from ampcompare.data.batch import count_samples
from ampcompare.data.dataset import Dataset, build_dataset
from ampcompare.data.sources import SOURCES
from ampcompare.data.splits import BatchSet, ImageSet
from ampcompare.errors import UserError
from ampcompare.machine.device import (
    between_ms,
    effective_numerics,
    marker,
    peak_mib,
    reset_peak,
    resolve_device,
    set_numerics,
    wait_for,
)
from ampcompare.machine.environment import arithmetic_of, describe_environment
from ampcompare.machine.world import World
from ampcompare.precision import backend_of
from ampcompare.train.build import build_trainer, is_fused, load_data
from ampcompare.train.compiled import captures, check_execution
from ampcompare.train.loaders import check_data, make_loader
from ampcompare.train.step import micro_batches

PROFILED_STEPS = 20
OURS = "ours"


def ours(config: Config, data: Dataset, device: torch.device) -> Loop:
    """The training of `run_experiment.py`, without rows."""
    check_execution(config, device)
    train = make_loader(config, data.train, device, training=True)
    trainer = build_trainer(config, data, train, device)
    count = config.training.accumulate

    def images(group: list[Any]) -> int:
        return sum(count_samples(x[1]) if isinstance(x, tuple) else x.shape[1] for x in group)

    def step(group: list[Any]) -> Done:
        result = trainer.step(group)
        return Done(result.loss, result.samples, result.cold)

    groups = forever(lambda epoch: micro_batches(trainer.feed(train, epoch), count))
    # Whole groups of full batches: the short one of an epoch would compile anew, and is no step to time.
    full = (group for group in groups if images(group) == count * config.batch_size)
    return Loop(full, step, trainer.precision.session())


def _data(config: Config, loop: str) -> Dataset:
    """The data to time the training on. Raises UserError for some that this loop, or no timing, can be of."""
    source, root = config.data.source, config.data.root
    if source in SOURCES:
        kwargs, limit = config.data.kwargs, config.data.train_limit
        return build_dataset(source=source, root=root, train_limit=limit, test_limit=10, kwargs=kwargs)
    data = load_data(config)
    check_data(config, data, World())
    if loop != OURS and not isinstance(data.train, ImageSet):
        raise UserError(f"data.source={source!r}: no RGB images as bytes, which {loop} is written for")
    if isinstance(data.train, BatchSet) and data.train.batch_size is None:
        why = "its loader says no batch_size, and steps of one size are timed"
        raise UserError(f"data.source={source!r}: {why}; give it one")
    return data


def run_throughput(words: list[str], warmup: int, steps: int, loop: str = OURS) -> dict[str, Any]:
    """Images a second, ms of each step after `warmup` ones, the host's to queue one, peak memory, kernels.

    `busy` is the share of a step in which the device works: the time that kernels cover in profiled steps,
    over the median step without the profiler. None off a GPU.
    """
    config = load_config(None, words)
    settle(config)
    device = resolve_device(config.device)
    set_numerics(config)
    data, limit = _data(config, loop), config.data.train_limit
    size, accumulate = config.batch_size, config.training.accumulate
    samples = len(data.train) * (size if isinstance(data.train, BatchSet) else 1)
    if samples < size * accumulate:
        step = f"no full step of batch_size={size} and training.accumulate={accumulate} to time"
        raise UserError(f"data.train_limit={limit}: {step}; raise it")
    made = {OURS: ours, **BASELINES}[loop](config, data, device)
    mark, laps = marker(device), []
    host_seconds, images = 0.0, 0
    with made.session:
        for batch in islice(made.batches, warmup):
            made.step(batch)
        wait_for(device)  # sync: the steady state begins on an idle device
        if not captures(config.execution):  # the capture's peak is that of a step
            reset_peak(device)
        last = mark()
        began = time.perf_counter()
        for batch in islice(made.batches, steps):
            before = time.perf_counter()
            done = made.step(batch)
            host_seconds += time.perf_counter() - before
            images += done.images
            last, before_it = mark(), last
            if not done.cold:
                laps.append((before_it, last))
        wait_for(device)  # sync: the window ends with its last step
        seconds = time.perf_counter() - began
        times = [between_ms(*lap) for lap in laps]
        peak = peak_mib(device)
        profiled = profile_steps(lambda: made.step(next(made.batches)), min(steps, PROFILED_STEPS), device)
    numerics = {**effective_numerics(config, device), "fused": is_fused(config, device), **made.numerics}
    return {
        "images_per_second": images / seconds,
        "step_ms": times,
        "host_ms": host_seconds / steps * 1e3,
        "peak_mib": peak,
        "profile": profiled,
        "busy": min(1.0, profiled["busy_ms"] / median(times)) if profiled and times else None,
        "loss": float(done.loss),
        "loop": loop,
        "config": config.to_dict(),
        "environment": describe_environment(
            device, **numerics, **arithmetic_of(device), **backend_of(config.backend).record()
        ),
    }


def count_traffic(words: list[str]) -> dict[str, Any]:
    """Bytes and FLOP of one image and the type of its products, for the roofline; a plug-in's source."""
    config = load_config(None, words)
    settle(config)
    model, declared = config.model, backend_of(config.backend)
    return {
        "per_image": per_image(config.backend, model.name, model.stem, config.batch_size),
        "dtype": declared.dtype,
        "backend_source": declared.source,
    }


if __name__ == "__main__":
    request = json.loads(sys.argv[1])
    torch.set_num_threads(int(request.pop("threads", torch.get_num_threads())))
    counts = request.pop("count", False)
    print(json.dumps(count_traffic(request["words"]) if counts else run_throughput(**request)))
