"""One backend's turn at the AMP recipe: total time and peak memory from a clean allocator.

Source: PyTorch's tutorial "Automatic Mixed Precision" (recipes/amp_recipe), which times the same loop.
Run as a program it takes one JSON object and prints one.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from torch import Tensor, nn

from ampcompare.bench.recipe.config import RecipeConfig
from ampcompare.machine.device import is_cuda, peak_bytes, reset_peak, resolve_device, wait_for
from ampcompare.machine.environment import describe_environment
from ampcompare.models import mlp
from ampcompare.precision import build_precision
from ampcompare.precision.base import Precision


def run_recipe(backend: str, config: RecipeConfig, device: torch.device) -> dict[str, Any]:
    """Train the recipe under a backend.

    Returns `seconds` (the whole training, the device waited for at both ends), `peak_bytes` (allocated by
    tensors during it; None where PyTorch counts no peak), the last `loss`, and the `environment`.
    """
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    torch.manual_seed(0)
    shape = (config.batch_size, config.width)
    batches = [[torch.randn(shape, device=device) for _ in range(2)] for _ in range(config.batches)]
    model: nn.Module = mlp.build(config.width, config.layers).to(device)
    precision = build_precision(backend, device)
    model, optimizer = precision.prepare(model, torch.optim.SGD(model.parameters(), lr=config.lr))
    loss: Tensor = torch.zeros(())
    _load_kernels(precision, device)
    if is_cuda(device):
        torch.cuda.empty_cache()
    reset_peak(device)
    wait_for(device)  # sync: the clock starts on an idle device
    began = time.perf_counter()
    with precision.session():
        for _ in range(config.epochs):
            for inputs, targets in batches:
                with precision.forward_context():
                    loss = nn.functional.mse_loss(model(inputs), targets)
                precision.backward(loss)
                precision.step(optimizer)
                optimizer.zero_grad(set_to_none=True)
    wait_for(device)  # sync: the clock stops when the work is done
    seconds = time.perf_counter() - began
    return {
        "backend": backend,
        "seconds": seconds,
        "peak_bytes": peak_bytes(device) if is_cuda(device) else None,
        "loss": float(loss.detach()),
        "skipped_steps": int(precision.skipped_steps()),
        "environment": describe_environment(device),
    }


def _load_kernels(precision: Precision, device: torch.device) -> None:
    """Start the libraries on a product of 64 numbers: their start-up is not the backend's time."""
    layer = nn.Linear(8, 8, device=device)
    with precision.forward_context():
        layer(torch.zeros(8, 8, device=device)).float().sum().backward()


def main() -> None:
    request = json.loads(sys.argv[1])
    config = RecipeConfig(**request["config"])
    print(json.dumps(run_recipe(request["backend"], config, resolve_device(request["device"]))))


if __name__ == "__main__":
    main()
