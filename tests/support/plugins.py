"""A backend from outside, as a file."""

BACKEND = "from ampcompare.precision.base import BackendInfo, Precision"

# A backend whose type is not fp16; its label is not the name that it is asked for by.
BF16 = f"""{BACKEND}
import torch


class Mine(Precision):
    metadata = BackendInfo("{{label}}", "autocast, no scaling", dtype="bfloat16")
    input_dtype = torch.bfloat16

    def forward_context(self):
        return torch.autocast(self.device.type, dtype=torch.bfloat16)
"""
