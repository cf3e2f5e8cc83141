"""What the device can do at best, measured: matrix products and copies a second.

Run as a program it takes {"device": ...} and prints one JSON object.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from ampcompare.machine.device import resolve_device, wait_for
from ampcompare.machine.environment import describe_environment

SECONDS = 0.5  # of each measurement


def best_seconds(run: Callable[[], object], device: torch.device) -> float:
    """The shortest time of one call: a ceiling is what the device reaches undisturbed."""
    run()
    best, calls = float("inf"), 1
    ends = time.perf_counter() + SECONDS
    while time.perf_counter() < ends:
        wait_for(device)
        began = time.perf_counter()
        for _ in range(calls):
            run()
        wait_for(device)
        spent = time.perf_counter() - began
        best = min(best, spent / calls)
        if spent < 0.01:  # too short for the clock and the launch
            calls *= 2
    return best


def measure_roofline(device: torch.device) -> dict[str, Any]:
    """FLOP/s of square matrix products by type (`float32` is IEEE, `tf32` apart), bytes/s of a large copy."""
    cuda = device.type == "cuda"
    size = 8192 if cuda else 512
    rates: dict[str, float] = {}
    for name, dtype in (("float32", torch.float32), ("float16", torch.float16), ("bfloat16", torch.bfloat16)):
        torch.backends.cuda.matmul.fp32_precision = "ieee"
        a = torch.randn(size, size, device=device).to(dtype)
        rates[name] = 2 * size**3 / best_seconds(lambda a=a: a @ a, device)  # type: ignore[misc]
    if cuda:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        a = torch.randn(size, size, device=device)
        rates["tf32"] = 2 * size**3 / best_seconds(lambda: a @ a, device)
    source = torch.ones(2**30 if cuda else 2**27, dtype=torch.uint8, device=device)  # far more than any cache
    target = torch.empty_like(source)
    copy = 2 * source.numel() / best_seconds(lambda: target.copy_(source), device)
    return {"flop_per_second": rates, "bytes_per_second": copy, "environment": describe_environment(device)}


if __name__ == "__main__":
    print(json.dumps(measure_roofline(resolve_device(json.loads(sys.argv[1])["device"]))))
