"""Backends from outside, as files and as installed distributions."""

from pathlib import Path

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


def install(site: Path, distribution: str, name: str, value: str, label: str = "", content: str = "") -> str:
    """Put a distribution with one backend into a folder of such; returns its module's name."""
    module = value.partition(":")[0]
    (site / f"{module}.py").write_text(content or BF16.format(label=label))
    info = site / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[ampcompare.backends]\n{name} = {value}\n")
    return module
