"""How fast a device computes and moves: measured here, or as its maker prints it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch

from ampcompare.bench.probe import TYPES, probe
from ampcompare.machine.device import wait_for
from ampcompare.published.devices import Device
from ampcompare.why.explain.calls import Call
from ampcompare.why.explain.replay import Replay
from ampcompare.why.explain.trace import Op

COPIED = 2**26  # bytes of a copy: more than caches hold
REPEATS = 5
PASSES = 5
# benchmarks/explain_forecast.py --busy, November 2026: 4 networks and batches under none, native_bf16, bf16.
# Six of the 12 are those that `replay.FLUSHED` was chosen by (4 to 24 % off); the others were 1 to 9 % off.
KNOWN = (
    "on a Xeon with AMX it was 1 to 24 % off the median step (12 settings, one thread, processor's time); "
    "--measure 5 says how far it is here"
)
FLOOR = (
    "a floor: peaks of the maker's data sheet, which no real step reaches; its error has not been measured"
)


@dataclass
class Speeds:
    """FLOP/s by type (`tf32` for fp32 where that may round so), bytes/s, and seconds that any op takes.

    `words` say where they are from, `error` how far a forecast by them is to be trusted. `replay` has
    measured some ops by themselves; the rates are for the others.
    """

    flop_per_second: Mapping[str, float]
    bytes_per_second: float
    words: str
    error: str
    overhead: float = 0.0
    tf32: bool = False
    replay: Replay | None = None
    missing: set[str] = field(default_factory=set)  # types without a rate, that somebody asked for

    def rate(self, dtype: str) -> float:
        """FLOP/s of a type; fp32's for one that has no hardware of its own there."""
        rates = self.flop_per_second
        if dtype == "float32" and self.tf32 and "tf32" in rates:
            return rates["tf32"]
        if dtype not in rates:
            self.missing.add(dtype)
        return rates.get(dtype) or rates["float32"]

    def arithmetic(self, op: Op) -> float:
        """Seconds of an op's arithmetic at the rate of its type."""
        return op.flop / self.rate(op.dtype) if op.flop else 0.0

    def moving(self, op: Op) -> float:
        """Seconds in which its bytes are read and written."""
        return op.size / self.bytes_per_second

    def by_rates(self, op: Op) -> float:
        """Seconds of an op by its arithmetic and its traffic alone."""
        return max(self.arithmetic(op), self.moving(op), self.overhead)

    def is_timed(self, op: Op) -> bool:
        """Whether such an op was measured by itself."""
        return bool(self.replay and op.call and self.replay.seconds(op.call) is not None)

    def seconds(self, op: Op) -> float:
        """Seconds of an op: as it was measured by itself, else by the rates."""
        known = self.replay.seconds(op.call) if self.replay and op.call else None
        return self.by_rates(op) if known is None else known


def of_device(device: Device, *, tf32: bool) -> Speeds:
    """The speeds that a maker prints."""
    words = f"{device.name}, dense peaks ({device.source})"
    return Speeds(device.flop_per_second, device.bytes_per_second, words, FLOOR, tf32=tf32)


def measured(device: torch.device, *, channels_last: bool, name: str) -> Speeds:
    """The speeds of this machine: of training convolutions by the probe of `ampcompare doctor` (on a CPU that
    of a core, times the threads), of a large copy, of an op on one number. About two seconds.
    """
    threads = torch.get_num_threads() if device.type == "cpu" else 1
    rates = probe(device, TYPES, channels_last=channels_last)
    flops = {dtype: rates.rate(dtype) * 1e9 * threads for dtype in TYPES if rates.rate(dtype)}
    source = torch.ones(COPIED, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy = 2 * COPIED / best(lambda: target.copy_(source), device)
    number = torch.ones((), device=device)
    overhead = best(lambda: [number.add_(1) for _ in range(100)], device) / 100
    words = f"{name}, measured now: convolutions by the probe of `ampcompare doctor`, a large copy"
    return Speeds(flops, copy, words, KNOWN, overhead)


def best(run: Callable[[], Any], device: torch.device, repeats: int = REPEATS) -> float:
    """The shortest of some times of a call, in seconds, after one that is not timed. Waits for the device."""
    run()
    times = []
    for _ in range(repeats):
        wait_for(device)  # sync: the clock starts on an idle device
        began = time.perf_counter()
        run()
        wait_for(device)  # sync: the clock stops when the work is done
        times.append(time.perf_counter() - began)
    return min(times)


def replayed(speeds: Speeds, traces: Sequence[Sequence[Op]], device: torch.device, budget: float) -> None:
    """Measure the ops of the steps by themselves, in PASSES over all of them, so that each is seen at several
    times, or until `budget` seconds are gone. An op that is expected to take more is left to the rates.
    """
    ends = time.perf_counter() + budget
    replay = Replay(device)
    for _ in range(PASSES):
        one_pass(speeds, traces, replay, ends)
    speeds.replay = replay


def one_pass(
    speeds: Speeds,
    traces: Sequence[Sequence[Op]],
    replay: Replay,
    ends: float = float("inf"),
) -> None:
    """Time each op of the steps once more, those that take longest by the rates first, until `ends` by
    `time.perf_counter`.
    """
    weight: dict[Any, float] = {}
    calls: dict[Any, tuple[Call, float]] = {}
    for op in chain.from_iterable(traces):
        if op.call is not None and (key := replay.key(op.call)) is not None:
            expected = speeds.by_rates(op)
            weight[key] = weight.get(key, 0.0) + expected
            calls[key] = (op.call, expected)
    for key in sorted(weight, key=lambda k: -weight[k]):
        call, expected = calls[key]
        left = ends - time.perf_counter()
        if left <= 0:
            break
        if 3 * (replay.seconds(call) or expected) < left:
            replay.measure(call)
