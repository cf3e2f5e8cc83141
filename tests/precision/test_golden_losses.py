"""Twenty steps of the tiny network under each backend against a golden file: dtypes, loss scales, losses.

Pattern: torchtitan's `tests/assets/losses`. A golden file holds the dtype of each op's result in the forward
and the loss, the dtypes of weights, gradients and optimizer states, the loss scale and the number of skipped
steps after each step, and the losses. All but the losses are exact.
"""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import yaml
from support.contract import check
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ampcompare.models import tiny
from ampcompare.precision import REGISTRY, build_precision

GOLDEN = Path(__file__).parent / "golden"
BACKENDS = [name for name, backend in REGISTRY.items() if not backend.uses_tf32]  # no CPU has TF32
STEPS = 20
# Of a backend with a loss scale: steps whose loss is infinite, two in a row and one at the ceiling of apex.
OVERFLOWS = (2, 3, 13)
SCALE = {"init_scale": 1024.0, "growth_interval": 3, "max_loss_scale": 1024.0}
# Relative. The golden losses come from an AMD Zen 4. The same CPU was limited to SSE4.1, AVX2 and AVX-512 by
# ONEDNN_MAX_CPU_ISA and ATEN_CPU_CAPABILITY, so that other operations were computed in fp32. The losses then
# differed by at most 2e-6 in fp32, 1.1e-3 in fp16, 3.1e-3 in bf16, and nothing else differed.
# The tolerances are 4 to 10 times that.
TOLERANCES = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 1.2e-2}


class Dtypes(TorchDispatchMode):
    """The ops that compute something, with the dtypes of their floating results."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
        made = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor) and x.is_floating_point()]
        if made and not is_view:
            self.ops.append(f"{func.overloadpacket.__name__}: {', '.join(map(name_dtype, made))}")
        return result


def name_dtype(tensor: torch.Tensor) -> str:
    """Return the name of a tensor's dtype."""
    return str(tensor.dtype).removeprefix("torch.")


def train(name: str) -> dict[str, Any]:
    """Train 20 steps and return the content of the backend's golden file."""
    torch.manual_seed(0)
    model, scales = tiny(4), REGISTRY[name].scales
    precision = build_precision(name, **(SCALE if scales else {}))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    model, optimizer = precision.prepare(model, optimizer)
    draw = torch.Generator().manual_seed(1)
    found: dict[str, Any] = {}
    losses, loss_scales, skipped = [], [], []
    with precision.training_context():
        for step in range(STEPS):
            labels = torch.randint(4, (16,), generator=draw)
            images = torch.randn(16, 3, 8, 8, generator=draw)
            images[torch.arange(16), :, labels * 2] += 1.5
            with Dtypes() as dtypes, precision.forward_context():
                loss = F.cross_entropy(model(images), labels)
            precision.backward(loss * math.inf if scales and step in OVERFLOWS else loss)
            if step == 0:
                weights = {n: name_dtype(p) for n, p in model.named_parameters()}
                updated = [p for group in optimizer.param_groups for p in group["params"]]
                gradients = [name_dtype(p.grad) for p in updated if p.grad is not None]
                found |= {"ops": dtypes.ops, "weights": weights, "gradients": gradients}
            precision.step(optimizer)
            if step == 0:
                found["momentum"] = [name_dtype(optimizer.state[p]["momentum_buffer"]) for p in updated]
            optimizer.zero_grad()
            losses.append(round(loss.item(), 6))
            loss_scales.append(precision.scale_factor().item())
            skipped.append(int(precision.skipped_steps()))
    return found | {"loss_scales": loss_scales, "skipped_steps": skipped, "losses": losses}


@pytest.mark.parametrize("name", BACKENDS)
def test_twenty_steps_equal_the_golden_file(name: str, tmp_path: Path):
    file, found = GOLDEN / f"{name}.yaml", train(name)
    known = yaml.safe_load(file.read_text()) if file.exists() else {"losses": []}
    if found["losses"] == pytest.approx(known["losses"], rel=TOLERANCES[REGISTRY[name].dtype]):
        found["losses"] = known["losses"]
    check(file, found, tmp_path)
