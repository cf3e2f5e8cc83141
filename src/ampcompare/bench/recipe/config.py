"""What the AMP recipe is run with. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass

from ampcompare.config.options import option


@dataclass
class RecipeConfig:
    """An MLP of `layers` linear layers `width` wide, trained on `batches` random batches for `epochs`."""

    benchmark: str = option("recipe", "which benchmark this file is for", choices=("recipe",))
    width: int = option(4096, "inputs and outputs of every layer", low=1)
    layers: int = option(3, "linear layers", low=1)
    batch_size: int = option(512, "rows per batch", low=1)
    batches: int = option(50, "batches, all on the device from the start", low=1)
    epochs: int = option(3, "passes over them", low=1)
    lr: float = option(0.001, "learning rate of plain SGD", above=0)


# An fp16 matrix product on a CPU is emulated; at the published size one backend would take hours.
CPU_SIZE = {"width": 256, "batch_size": 64, "batches": 10}


def misaligned(config: RecipeConfig) -> list[str]:
    """Sizes that are no multiple of 8, in words, each with why it matters."""
    sizes = {"width": config.width, "batch_size": config.batch_size}
    why = "Tensor Cores work on tiles of 8 fp16 numbers; what does not fill them is padded or runs slower"
    return [f"{name}={size} is no multiple of 8: {why}" for name, size in sizes.items() if size % 8]
