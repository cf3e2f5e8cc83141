"""Synthetic results of `ampcompare bench`."""

import random
from collections.abc import Sequence
from typing import Any, TypeVar

from ampcompare.analysis.bench_file import BenchArm, BenchControl, BenchFile, BenchStart

ROUNDS = 24
LEVEL = 0.99
Arm = TypeVar("Arm", bound=BenchArm)


def arm(label: str, ratio: float = 1.0, spread: float = 0.02, **more: Any) -> BenchArm:
    """Return a synthetic result, labelled by its backend and its options."""
    backend, *others = label.split()
    requested = {"backend": backend} | dict(one.split("=") for one in others)
    content = {"label": label, "requested": requested, "options": requested | {"batch_size": "128"}}
    content |= {"step_ms": 123.4, "images_per_second": 10_381.0, "peak_mib": 12_345.0, "rounds": 24}
    content |= {"ratio": ratio, "low": ratio * (1 - spread), "high": ratio * (1 + spread), "dtype": "float16"}
    return BenchArm(**content | more)


def failed(label: str, why: str) -> BenchArm:
    """Return the result of a training that was not measured."""
    options = {"backend": label}
    return BenchArm.from_starts([], LEVEL, label=label, options=options, requested=options, failed=why)


def result_of(*arms: BenchArm, control: tuple[float, float] = (0.99, 1.02), **more: Any) -> BenchFile:
    """Return the result of these arms, the baseline first."""
    own = {"label": "control", "ratio": 1.003, "low": control[0], "high": control[1]}
    copy = BenchControl(**arms[0].model_dump() | own).with_verdict(more.get("starts", 1))
    keys = dict.fromkeys(key for one in arms for key in one.requested)
    content = {"baseline": arms[0].label, "level": LEVEL, "minutes": 1.0, "looks": [12, 24, 48]}
    content |= {"machine": "Test Device, torch 2.14.1", "device": "Test Device", "device_type": "cuda"}
    content |= {"varied": [key for key in keys if len({one.requested.get(key) for one in arms}) > 1]}
    return BenchFile(arms=[*arms], control=copy, **content | more)


def measured_result(starts: int) -> BenchFile:
    """Return the result of `none` and `native`, with rounds of so many starts."""
    draw = random.Random(starts)
    base = [[100 * draw.lognormvariate(0, 0.2) for _ in range(ROUNDS)] for _ in range(starts)]
    baseline = _measured(BenchArm, "none", base, base)
    native = _measured(BenchArm, "native", [[_near(2 * x, draw) for x in rates] for rates in base], base)
    control = _measured(BenchControl, "control", [[_near(x, draw) for x in rates] for rates in base], base)
    return result_of(baseline, native, starts=starts).model_copy(update={"control": control})


def _near(rate: float, draw: random.Random) -> float:
    return rate * draw.lognormvariate(0, 0.2)


def _measured(kind: type[Arm], label: str, rates: Sequence[list[float]], base: Sequence[list[float]]) -> Arm:
    starts = [
        BenchStart(
            images_per_second=own,
            step_ms=[8e3 / rate for rate in own],
            baseline_images_per_second=theirs,
            peak_mib=own[0],
        )
        for own, theirs in zip(rates, base, strict=True)
    ]
    options = {"backend": label}
    return kind.from_starts(starts, LEVEL, label=label, options=options, requested=options)
