"""What batch, layout or widths would raise the speed-up: looked up in the step, not guessed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from ampcompare.data.batch import Batch, is_image, tensors
from ampcompare.report.words import of_all
from ampcompare.why.explain.duration import STEP, TILE, Duration
from ampcompare.why.explain.speeds import Speeds

NAMED = 3  # modules that a hint names


def hints(
    model: nn.Module,
    batches: Sequence[Batch],
    device: torch.device,
    duration: Duration,
    speeds: Speeds,
    ops: int,
) -> list[str]:
    """Sentences on what would make the low type pay more, each with its figure; none where nothing does."""
    found = [_widths(model, device), _layout(model, batches, device), _batch(duration, speeds, ops)]
    return [sentence for sentence in found if sentence]


def _widths(model: nn.Module, device: torch.device) -> str:
    """Matrix products and convolutions whose channels are no multiple of what tensor cores take."""
    odd = []
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d) and weight is not None:
            sizes = [n for n in weight.shape[:2] if n % TILE]
            if sizes:
                odd.append(f"{name or 'the network'} ({', '.join(map(str, sizes))})")
    if not odd or device.type != "cuda":
        return ""
    more = f" and {len(odd) - NAMED} more" if len(odd) > NAMED else ""
    return (
        f"Channels that are no multiple of {TILE} leave tensor cores partly idle: "
        f"{', '.join(odd[:NAMED])}{more}; pad them where that is yours to choose."
    )


def _layout(model: nn.Module, batches: Sequence[Batch], device: torch.device) -> str:
    images = [t for batch in batches for t in tensors(batch[0]) if is_image(t)]
    lies_so = all(t.is_contiguous(memory_format=torch.channels_last) for t in images)
    convolves = any(isinstance(module, nn.Conv2d) for module in model.modules())
    if not images or lies_so or not convolves or device.type != "cuda":
        return ""
    return (
        "Images lie channel by channel: tensor cores read them channels_last, and what a convolution takes "
        "has to be turned round; take memory_format=channels_last."
    )


def _batch(duration: Duration, speeds: Speeds, ops: int) -> str:
    waiting = ops * speeds.overhead
    if duration.seconds and waiting > 0.3 * duration.seconds:
        return (
            f"{ops:,} ops of at least {1e6 * speeds.overhead:.1f} us each are "
            f"{of_all(waiting / duration.seconds)} of the forecast: the step is small for this machine. A "
            "larger batch_size makes each op worth its call, execution=compile makes fewer of them."
        )
    step = duration.by_kind.get(STEP)
    if step and step.seconds > 0.2 * duration.seconds:
        share = step.seconds / duration.seconds
        return (
            f"The optimizer's step takes {of_all(share)} of the time, whatever the batch: a larger "
            "batch_size or training.accumulate spreads it over more samples."
        )
    return ""
