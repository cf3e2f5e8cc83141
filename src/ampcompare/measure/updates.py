"""Updates of half weights that rounding swallows: how many, and how large an update is beside its weight.

A weight kept in bf16 has 8 significant bits, in fp16 11. An update below half a unit in the last place of its
weight (2**-9 to 2**-8 of it in bf16, 2**-12 to 2**-11 in fp16) leaves it as it was, at every step anew.
Micikevicius et al. 2018, "Mixed Precision Training", keep fp32 master weights for that reason.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ampcompare import metrics
from ampcompare.machine.device import widest_float
from ampcompare.measure.gradients import SAMPLE
from ampcompare.precision.casting import HALF_TYPES

TOTALS = (metrics.LOST_UPDATES, metrics.UPDATE_SIZE)


@torch.no_grad()
def look_at_updates(optimizer: Optimizer, groups: Mapping[str, Sequence[Tensor]]) -> dict[str, Tensor]:
    """What rounding will do to the optimizer's next step, by layer group and over all (0-d, on the device).

    To be called when all that changes the gradients is done, before the step; it changes nothing. `groups`
    are the optimizer's parameters by layer group; those in half precision with a gradient are looked at. With
    w such a weight and u its update, computed in wide arithmetic from the gradient and the states as they
    are, weight decay and momentum included: `update/lost_fraction` is the share of the weights with u != 0
    for which w + u rounds to w, to nearest, whatever rounding the backend has. A weight without an update (a
    gradient of zero and nothing else that moves it) does not count, nor does one whose update is not finite.
    `update/relative_size` is the mean |u| over the mean |w|. Each also as `NAME/GROUP`; nan where no weight
    counts. Of a group with more than `SAMPLE` elements an even sample is looked at, and totals weigh each
    group by all its elements: 0.1 s of a core for a ResNet50. No host sync for the optimizers of the config.
    """
    sums: dict[str, Tensor] = {}
    for name, parameters in groups.items():
        half = [p for p in parameters if p.grad is not None and p.dtype in HALF_TYPES]
        if half:
            stride = _stride(sum(p.numel() for p in half))
            sums[name] = stride * _sum_up(half, _sampled_step(optimizer, half, stride), stride)
    if not sums:
        return {}
    found = {}
    for name, row in [("", torch.stack(list(sums.values())).sum(0)), *sums.items()]:
        lost, moved, size, weight = row.unbind()
        relative = size / weight
        found.update(
            _named(name, (lost / moved, torch.where((moved > 0) & relative.isfinite(), relative, torch.nan)))
        )
    return found


def unless_skipped(updates: Mapping[str, Tensor], skipped: Tensor) -> dict[str, Tensor]:
    """The figures of `look_at_updates`, nan where the step was `skipped` (0-d bool): it made no update."""
    if not updates:
        return {}
    values = torch.where(skipped, torch.nan, torch.stack(list(updates.values())))
    return dict(zip(updates, values.unbind(), strict=True))


def is_missing(key: str, value: Any) -> bool:
    """Whether a figure is one of `look_at_updates` that has nothing to say: no weight had an update."""
    found = metrics.find(key)
    return found is not None and found.key in TOTALS and value != value


def _named(group: str, values: Iterable[Tensor]) -> dict[str, Tensor]:
    suffix = f"/{group}" if group else ""
    return {f"{key}{suffix}": value for key, value in zip(TOTALS, values, strict=True)}


def _stride(count: int) -> int:
    """Every how many-th element is looked at; not a multiple of 2 or 3, which a kernel's sides are."""
    stride = 1 + count // SAMPLE
    while stride > 1 and (stride % 2 == 0 or stride % 3 == 0):
        stride += 1
    return stride


def _sum_up(parameters: Sequence[Tensor], after: Sequence[Tensor], stride: int) -> Tensor:
    """Of the sampled weights: lost updates, updates, sums of |update| and |weight|; [4], wide."""
    narrow = torch.cat([_sample(p, stride).float() for p in parameters])  # float: bf16 beside fp16 is no type
    rounded = torch.cat([x.to(p.dtype).float() for x, p in zip(after, parameters, strict=True)])
    wide = torch.cat(list(after))
    update = wide - narrow
    counts = (update != 0) & update.isfinite()
    lost = counts & (rounded == narrow)
    size = torch.where(counts, update.abs(), 0.0)
    return torch.stack([lost.sum(), counts.sum(), size.sum(), narrow.abs().to(wide.dtype).sum()])


def _sampled_step(optimizer: Optimizer, parameters: Sequence[Tensor], stride: int) -> list[Tensor]:
    """Every `stride`-th element of the parameters after the optimizer's step, in the widest type.

    A twin of the optimizer takes the step, on widened samples of weights, gradients and states: it has the
    same class and options, and updates each element by itself, as the config's optimizers do.
    """
    wide = widest_float(parameters[0].device)
    wanted = {id(p) for p in parameters}
    samples: dict[int, Tensor] = {}
    states: defaultdict[Tensor, Any] = defaultdict(dict)
    groups = []
    for group in optimizer.param_groups:
        ours = [p for p in group["params"] if id(p) in wanted]
        for p in ours:
            sample = samples[id(p)] = _sample(p, stride).to(wide, copy=True)
            sample.grad = _sample(p.grad, stride).to(wide, copy=True)
            if p in optimizer.state:
                state = optimizer.state[p]
                states[sample] = {key: _sample_state(p, key, x, stride, wide) for key, x in state.items()}
        if ours:
            groups.append(group | {"params": [samples[id(p)] for p in ours]})
    twin = copy.copy(optimizer)  # its class and options; not its hooks, nor a `step` that somebody replaced
    twin.param_groups, twin.state = groups, states
    vars(twin)["_warned_capturable_if_run_uncaptured"] = True  # as in every optimizer, but a copy lacks it
    twin.step()
    return [samples[id(p)] for p in parameters]


def _sample(x: Tensor, stride: int) -> Tensor:
    return x.detach().flatten()[::stride]


def _sample_state(parameter: Tensor, key: str, value: Any, stride: int, wide: torch.dtype) -> Any:
    """A state that has a number for each weight, sampled; any other (`step`) as a copy."""
    if not isinstance(value, Tensor):
        return copy.copy(value)
    if key == "step" or value.shape != parameter.shape:
        return value.clone()
    return _sample(value, stride).to(wide, copy=True)
