"""The fused op in the networks: modules become subclasses of themselves, so that names and states stay."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

from ampcompare.errors import UserError
from ampcompare.fusion.norm_relu import norm_alone, norm_relu
from ampcompare.precision.module_names import CannotKeep, matching

_ABSORBED = "_absorbed"  # on a ReLU that a BatchNorm does along


class UncountedNorm(nn.BatchNorm2d):
    """BatchNorm whose counter of batches is moved by `CountTogether`."""

    def forward(self, x: Tensor) -> Tensor:
        return norm_alone(self, x)


class NormRelu(UncountedNorm):
    """BatchNorm, the sum with a residual if one is given, and ReLU."""

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        return norm_relu(self, x, residual)


class FusedBasicBlock(BasicBlock):
    """torchvision's block of ResNet18."""

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn1(self.conv1(x))
        return self.bn2(self.conv2(out), x if self.downsample is None else self.downsample(x))


class FusedBottleneck(Bottleneck):
    """torchvision's block of ResNet50."""

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn1(self.conv1(x))
        out = self.bn2(self.conv2(out))
        return self.bn3(self.conv3(out), x if self.downsample is None else self.downsample(x))


class CountTogether:
    """Before a forward of the model: the counters of all BatchNorms that train, moved in one launch."""

    def __init__(self, norms: list[UncountedNorm]) -> None:
        self.norms = norms

    def __call__(self, model: nn.Module, args: Any) -> None:
        counters: list[Any] = [norm.num_batches_tracked for norm in self.norms if norm.training]
        if counters:
            torch._foreach_add_(counters, 1)


def fuse_model(model: nn.Module, *, blocks: bool = True) -> None:
    """Make the model's BatchNorms count together and, with `blocks`, take ReLU and residual in.

    In place; parameters, buffers and their names stay. `model` is to be called as a whole. Compiled
    executions need no `blocks`, since the compiler sees the whole step.
    """
    norms: list[Any] = [m for m in model.modules() if type(m) is nn.BatchNorm2d and _is_usual(m)]
    for norm in norms:
        norm.__class__ = UncountedNorm
    if blocks:
        for module in list(model.modules()):
            _fuse(module)
    model.register_forward_pre_hook(CountTogether(norms))


def check_kept(model: nn.Module, patterns: Iterable[str]) -> None:
    """Raise UserError for modules to be kept in fp32 that do nothing themselves in the fused model."""
    modules = dict(model.named_modules(remove_duplicate=False))
    for pattern in patterns:
        with suppress(CannotKeep):  # said under fp32 too, where the backend prepares the model
            names = matching(model, pattern)
            if all(_ABSORBED in vars(modules[name]) for name in names):
                why = f"with fuse=true the BatchNorm before {names[0]} does its work"
                todo = "keep that, with which it is kept too, or use fuse=false"
                raise UserError(f"precision.keep_fp32={pattern!r}: {why}; {todo}")


def _is_usual(norm: nn.BatchNorm2d) -> bool:
    """Affine, with running statistics of a fixed momentum; any other stays as it is."""
    return norm.affine and norm.track_running_stats and norm.momentum is not None


def _fuse(module: Any) -> None:
    if isinstance(module, ResNet):
        _join([module.bn1, module.relu])
    elif type(module) in (BasicBlock, Bottleneck):
        basic = type(module) is BasicBlock
        norms = (module.bn1, module.bn2) if basic else (module.bn1, module.bn2, module.bn3)
        if all(type(norm) is UncountedNorm for norm in norms):
            module.__class__ = FusedBasicBlock if basic else FusedBottleneck
            vars(module.relu)[_ABSORBED] = True
            for norm in norms:
                norm.__class__ = NormRelu
    elif isinstance(module, nn.Sequential):
        _join(module)


def _join(modules: Iterable[Any]) -> None:
    """Each BatchNorm that a ReLU follows does its work, too."""
    previous: Any = None
    for module in modules:
        if type(previous) is UncountedNorm and type(module) is nn.ReLU:
            previous.__class__ = NormRelu
            module.__class__ = nn.Identity  # type: ignore[assignment]
            vars(module)[_ABSORBED] = True
        previous = module
