"""How far the forecast of `ampcompare why explain` is from the step that it forecasts, on this machine.

    python benchmarks/explain_forecast.py [--rounds 5] [--busy] [KEY=VALUE ...]

Each round times single ops for the forecast and then runs a step of each backend, so that what else the
machine does falls on both. Per setting: the median round of the step, the forecast from all rounds, and how
much it is off. With `--busy` both are by the processor's time of this process, on one thread: for a machine
that others use too, where a step is interrupted and a single op is not. By hand: it measures for minutes, and
what it says holds for the machine that it ran on.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import torch

from ampcompare.machine.device import is_channels_last, resolve_device, wait_for
from ampcompare.machine.environment import describe_environment
from ampcompare.why.explain import speeds as speeds_
from ampcompare.why.explain.duration import take_duration
from ampcompare.why.explain.replay import Replay
from ampcompare.why.explain.setting import built, real, settled, shapes_of
from ampcompare.why.explain.trace import trace_step
from ampcompare.why.ready import configured

SETTINGS = (
    ("model.name=tiny", "batch_size=128"),
    ("model.name=resnet20", "batch_size=32"),
    ("model.name=resnet20", "batch_size=128"),
    ("model.name=resnet50", "batch_size=8"),
)
BACKENDS = ("none", "native_bf16", "bf16")
WITHIN = 0.25
Clock = Callable[[], float]


def measure(
    words: Sequence[str], backends: Sequence[str], rounds: int, clock: Clock
) -> list[tuple[str, float, float, float]]:
    """For each backend: the median step, the forecast, the forecast by the rates alone, all in seconds."""
    configs = [configured([*words, "data.source=synthetic"], backend=backend) for backend in backends]
    device = resolve_device(configs[0].device)
    configs = [settled(config, device) for config in configs]
    shapes = shapes_of(configs[0])
    traces = []
    for config in configs:
        with built(config, shapes, device) as (trainer, batches):
            traces.append(trace_step(trainer, batches, device))
    last = is_channels_last(configs[0], device)
    speeds = speeds_.measured(device, channels_last=last, name=str(device))
    by_rates = [take_duration(trace, speeds).seconds for trace in traces]
    parts = [real(config, shapes, device) for config in configs]
    for trainer, batches in parts:  # kernels prepared, states made
        with trainer.precision.session():
            trainer.compute(batches)
    steps: list[list[float]] = [[] for _ in parts]
    replay = Replay(device, clock)
    for _ in range(rounds):
        speeds_.one_pass(speeds, [trace.ops for trace in traces], replay)
        for known, (trainer, batches) in zip(steps, parts, strict=True):
            with trainer.precision.session():
                wait_for(device)  # sync: the clock starts on an idle device
                began = clock()
                trainer.compute(batches)
                wait_for(device)  # sync: the clock stops when the work is done
                known.append(clock() - began)
    speeds.replay = replay
    found = [take_duration(trace, speeds).seconds for trace in traces]
    medians = [statistics.median(known) for known in steps]
    return list(zip(backends, medians, found, by_rates, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--backends", default=",".join(BACKENDS))
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("words", nargs="*")
    given = parser.parse_args()
    clock = time.process_time if given.busy else time.perf_counter
    if given.busy:
        torch.set_num_threads(1)
    machine = describe_environment(resolve_device("auto"))
    print(
        f"{machine.get('device_name') or machine.get('cpu')}, {torch.get_num_threads()} threads, "
        f"torch {torch.__version__}, median of {given.rounds} rounds"
    )
    print("| setting | backend | step, ms | forecast, ms | off | by the rates alone, ms | off |")
    print("|---|---|---:|---:|---:|---:|---:|")
    worst = 0.0
    for setting in [given.words] if given.words else SETTINGS:
        for backend, step, forecast, rates in measure(
            setting, given.backends.split(","), given.rounds, clock
        ):
            worst = max(worst, abs(forecast / step - 1))
            ms = [f"{1e3 * value:.1f}" for value in (step, forecast, rates)]
            off = [f"{value / step - 1:+.0%}" for value in (forecast, rates)]
            cells = [" ".join(setting), backend, *ms[:2], off[0], ms[2], off[1]]
            print(f"| {' | '.join(cells)} |", flush=True)
    print(f"worst: {worst:.0%} off; the aim is {WITHIN:.0%}")
    return 0 if worst <= WITHIN else 1


if __name__ == "__main__":
    sys.exit(main())
