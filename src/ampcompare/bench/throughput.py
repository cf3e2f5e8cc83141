"""One combination's turn: training steps as `run_experiment.py` does them, timed in the steady state.

Run as a program it takes {"words", "warmup", "steps"} and prints one JSON object.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import islice
from typing import Any

import torch

from ampcompare.bench.traffic import per_image
from ampcompare.config import load_config
from ampcompare.data import build_dataset
from ampcompare.device import effective_numerics, resolve_device, set_numerics
from ampcompare.engine import micro_batches
from ampcompare.execution import check_execution
from ampcompare.experiment import build_trainer, is_fused, make_loader
from ampcompare.measure import memory
from ampcompare.measure.environment import describe_environment
from ampcompare.measure.timing import StepTimer, wait_for


def run_throughput(words: list[str], warmup: int, steps: int) -> dict[str, Any]:
    """Images a second and milliseconds of each step after `warmup` ones; host's time to queue a step; peak memory."""
    config = load_config(None, words)
    device = resolve_device(config.device)
    set_numerics(config)
    check_execution(config, device)
    data = build_dataset(
        source=config.data.source, root=config.data.root, train_limit=config.data.train_limit, test_limit=10
    )
    train = make_loader(config, data.train, device, training=True)
    trainer = build_trainer(config, data, train, device)
    timer = StepTimer(device, warmup)
    host_seconds = 0.0
    count = config.training.accumulate

    def batches() -> Any:
        epoch = 0
        while True:
            # Whole groups of full batches: the short one of an epoch would compile anew, and is no step to time.
            yield from micro_batches(trainer.feed(train, epoch), count)
            epoch += 1

    with trainer.precision.session():
        feed = (group for group in batches() if _images(group) == count * config.batch_size)
        for group in islice(feed, warmup):
            timer.lap(trainer.step(group).images)
        wait_for(device)  # sync: the steady state begins on an idle device
        if not trainer.holds_peak:
            memory.reset_peak(device)
        timer.resume()
        began = time.perf_counter()
        for group in islice(feed, steps):
            before = time.perf_counter()
            result = trainer.step(group)
            host_seconds += time.perf_counter() - before
            timer.lap(result.images, cold=result.cold)
        wait_for(device)  # sync: the window ends with its last step
        seconds = time.perf_counter() - began
        window = timer.pause()
    times = window.times_ms()
    return {
        "images_per_second": steps * count * config.batch_size / seconds,
        "step_ms": times,
        "host_ms": host_seconds / steps * 1e3,
        "peak_mib": memory.peak_mib(device),
        "loss": float(result.loss),
        "config": config.to_dict(),
        "environment": describe_environment(device, **effective_numerics(config), fused=is_fused(config, device)),
    }


def _images(group: list[Any]) -> int:
    return sum(x[1].shape[0] if isinstance(x, tuple) else x.shape[1] for x in group)


def count_traffic(words: list[str]) -> dict[str, Any]:
    """Bytes and FLOP of one image, for the roofline."""
    config = load_config(None, words)
    backend = config.backend if config.precision.enabled else "none"
    return {"per_image": per_image(backend, config.model.name, config.model.stem, config.precision.dtype)}


if __name__ == "__main__":
    request = json.loads(sys.argv[1])
    torch.set_num_threads(int(request.pop("threads", torch.get_num_threads())))
    print(json.dumps(count_traffic(request["words"]) if request.pop("count", False) else run_throughput(**request)))
