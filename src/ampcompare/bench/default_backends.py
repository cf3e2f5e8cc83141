"""The backends that `bench` and the demo compare by default on a device."""

import torch

from ampcompare.metrics import ARITHMETIC, COMPUTED_IN_FP32, EMULATED, UNKNOWN
from ampcompare.system.device import has_tf32, is_cuda
from ampcompare.system.environment import describe_arithmetic


def default_backends(device: torch.device) -> list[str]:
    """Return the backends that `bench` compares by default, the baseline first."""
    tf32 = ["tf32"] if has_tf32(device) else []
    bfloat16 = ["native_bf16"] if has_fast_bfloat16(device) else []
    return ["none", *tf32, "native", "apex_o1", *bfloat16]


def has_fast_bfloat16(device: torch.device) -> bool:
    """Return whether the device has native bf16 instructions."""
    if is_cuda(device):
        return torch.cuda.get_device_capability(device) >= (8, 0)
    unit = describe_arithmetic(device).get(ARITHMETIC, {}).get("bfloat16", UNKNOWN)
    return unit not in (COMPUTED_IN_FP32, EMULATED, UNKNOWN)
