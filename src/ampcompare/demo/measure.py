"""What training costs here, measured in a process of its own: its argument and its last line are JSON.

It takes {"words": [...]}, the demo's options, and prints the fields of `plan.Costs`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from itertools import islice
from statistics import median

import torch

from ampcompare.bench.probe import probe
from ampcompare.bench.throughput.measure import ours
from ampcompare.config.arguments import parse
from ampcompare.data.dataset import build_dataset
from ampcompare.demo.plan import BACKENDS, Costs, choose_type, is_worth_a_try
from ampcompare.machine.device import is_channels_last, resolve_device, set_numerics, wait_for
from ampcompare.machine.environment import describe_environment
from ampcompare.program.utf8 import use_utf8

SECONDS_PER_TYPE = 2.0  # after which no further step is timed
MOST_STEPS = 8


def measure(words: list[str]) -> Costs:
    """Probe the types, then time steps of the network itself, in fp32 and in the type that will be trained.

    Where the probe leaves fp16 a chance, steps on one core decide whether it is taken. Raises UserError for
    what cannot be trained.
    """
    config = parse([*words, "backend=none"])
    device = resolve_device(config.device)
    set_numerics(config)
    rates = probe(device, channels_last=is_channels_last(config, device)).by_type
    costs = Costs(describe_environment(device)["device_name"], rates, {})
    if is_worth_a_try(costs, "float16"):
        with suppress(RuntimeError), one_thread():  # no such kernel here
            step = {name: seconds_a_step([*words, f"backend={name}"], min) for name in ("none", "native")}
            costs = replace(costs, shares={"float16": step["none"] / step["native"]})
    taken = choose_type(costs)
    tried = {"float32": "none", taken: BACKENDS[taken][1]}
    seconds = {dtype: seconds_a_step([*words, f"backend={name}"]) for dtype, name in tried.items()}
    return replace(costs, seconds=seconds)


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch on one core meanwhile."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def seconds_a_step(words: list[str], of: Callable[[list[float]], float] = median) -> float:
    """The median of a few steps of this run, the first left out; or what `of` makes of them."""
    config = parse(words)
    device = resolve_device(config.device)
    images = 2 * config.batch_size * config.training.accumulate
    data = build_dataset(source=config.data.source, root=config.data.root, train_limit=images, test_limit=10)
    loop = ours(config, data, device)
    times: list[float] = []
    began = time.perf_counter()
    with loop.session:
        for batch in islice(loop.batches, MOST_STEPS):
            start = time.perf_counter()
            loop.step(batch)
            wait_for(device)  # sync: each step is timed
            times.append(time.perf_counter() - start)
            if len(times) > 1 and time.perf_counter() - began > SECONDS_PER_TYPE:
                break
    return of(times[1:])


if __name__ == "__main__":
    use_utf8()
    request = json.loads(sys.argv[1])
    torch.manual_seed(0)
    print(json.dumps(asdict(measure(request["words"]))))
