"""A setting explained under two backends: census, memory and time of both, and what that comes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ampcompare.config.load import Config
from ampcompare.data.batch import tensors
from ampcompare.errors import UserError
from ampcompare.machine.device import is_channels_last, resolve_device
from ampcompare.precision import backend_of
from ampcompare.published.devices import Device, find_device
from ampcompare.report.words import of_all
from ampcompare.train.errors import TrainingError
from ampcompare.why.explain.census import Census, Difference, differences, take_census
from ampcompare.why.explain.duration import Duration, bounds, take_duration
from ampcompare.why.explain.hints import hints
from ampcompare.why.explain.measured import Measured
from ampcompare.why.explain.memory import Memory, take_memory, why_not_half
from ampcompare.why.explain.setting import Shapes, built, refusal, settled, shapes_of
from ampcompare.why.explain.speeds import Speeds, measured, of_device, replayed
from ampcompare.why.explain.stage import is_absent
from ampcompare.why.explain.trace import Trace, trace_step

UNTIMED = 0.1  # share of a forecast by rates alone from which that is said


@dataclass(frozen=True)
class Side:
    """One backend of the two: its name, what it is in words, its low type, and what was found."""

    backend: str
    words: str
    dtype: str
    census: Census
    memory: Memory
    time: Duration


@dataclass
class Explained:
    """Two backends (`sides`: the one compared with first), and what their differences come to."""

    model: str
    source: str
    batch: list[list[int]]  # the shapes of a micro-batch's inputs
    accumulate: int
    device: str
    error: str
    sides: tuple[Side, Side]
    differences: list[Difference]
    about_memory: str
    about_time: list[str]
    hints: list[str]
    remarks: list[str] = field(default_factory=list)
    measured: Measured | None = None


def device_of(config: Config, on: str) -> tuple[torch.device, Device | None]:
    """The device that is meant: one of the table (`on`), else the run's own. Raises UserError."""
    if not on:
        return resolve_device(config.device), None
    found = find_device(on)
    return torch.device(*(("cuda", 0) if found.kind == "cuda" else ("cpu",))), found


def explain(
    configs: tuple[Config, Config], device: torch.device, sheet: Device | None, seconds: float
) -> Explained:
    """Explain a setting under two backends; `sheet` are the peaks to go by, None: this machine is measured,
    of which single ops take `seconds` at most. Raises UserError.
    """
    shapes = shapes_of(configs[0])
    settled_ = tuple(map(settled, configs))
    traces = [_traced(config, shapes, device) for config in settled_]
    last = is_channels_last(settled_[0], device)
    if sheet is not None:
        speeds = of_device(sheet, tf32=settled_[0].tf32)
    else:
        speeds = measured(device, channels_last=last, name=str(device))
        replayed(speeds, [trace.ops for trace in traces], device, seconds)
    sides = [_side(*pair, speeds, device) for pair in zip(settled_, traces, strict=True)]
    (base, other), remarks = sides, _remarks(configs, speeds, sheet, device, traces[1])
    with built(settled_[1], shapes, device) as (trainer, batches):
        found = hints(trainer.model, batches, device, other.time, speeds, len(traces[1].ops))
    inputs = [list(tensor.shape) for tensor in tensors(shapes.inputs)]
    return Explained(
        configs[1].model.name,
        configs[1].data.source,
        inputs,
        configs[1].training.accumulate,
        speeds.words,
        speeds.error,
        (base, other),
        differences(base.census, other.census),
        why_not_half(base.memory, other.memory),
        bounds(base.time, other.time, f"{other.backend} against {base.backend}"),
        found,
        remarks,
    )


def _traced(config: Config, shapes: Shapes, device: torch.device) -> Trace:
    with built(config, shapes, device) as (trainer, batches):
        try:
            return trace_step(trainer, batches, device)
        except (UserError, TrainingError):
            raise
        except Exception as problem:
            raise refusal(config, problem) from problem


def _side(config: Config, trace: Trace, speeds: Speeds, device: torch.device) -> Side:
    declared = backend_of(config.backend)
    memory = take_memory(trace, exact=not is_absent(device))
    return Side(
        config.backend,
        declared.words,
        declared.dtype,
        take_census(trace),
        memory,
        take_duration(trace, speeds),
    )


def _remarks(
    configs: Sequence[Config], speeds: Speeds, sheet: Device | None, device: torch.device, trace: Trace
) -> list[str]:
    said = []
    if any(config.execution != "eager" for config in configs):
        said.append(
            f"execution={configs[1].execution}: explained as eager; a compiler merges some of these ops"
        )
    if sheet is not None:
        for dtype in sorted(speeds.missing - {"float64"}):
            said.append(f"{sheet.name} has no hardware for {dtype}: its ops are counted at fp32's rate")
    if speeds.replay is not None:
        whole = sum(map(speeds.seconds, trace.ops))
        share = sum(speeds.seconds(op) for op in trace.ops if not speeds.is_timed(op)) / (whole or 1.0)
        if share > UNTIMED:
            said.append(
                f"{of_all(share)} of the forecast are ops that were not timed by themselves: by the rates "
                "alone, which are far less exact; more --seconds time more of them"
            )
    if is_absent(device):
        said.append(
            "the peak is an upper bound: without the device, what a backward has used is not seen to be freed"
        )
    return said
