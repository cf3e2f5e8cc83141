"""The beginning of the record of somebody's loop: what is known of the run, and where its rows go."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ampcompare import metrics
from ampcompare.config.beside import WandbConfig
from ampcompare.errors import UserError
from ampcompare.machine import device as machine
from ampcompare.machine.environment import arithmetic_of, describe_environment, name_machine
from ampcompare.machine.world import World
from ampcompare.precision.backends import HINTS, REGISTRY, TYPES
from ampcompare.precision.base import Precision
from ampcompare.recorder.checks import differ, short
from ampcompare.tracking.start import Start, begin, lend
from ampcompare.tracking.tracker import Tracker

OWN = ("environment", "recorder")  # what no config of the user's may be called


@dataclass(frozen=True)
class About:
    """What is said of a run before its first step; `logged` is its config, `facts` go into the summary. What
    `goes_on` may have an earlier part, of the run id that the environment says.
    """

    backend: str
    logged: dict[str, Any]
    facts: dict[str, Any]
    goes_on: bool


def device_of(device: Any, scaler: Any, optimizer: Any, model: nn.Module | None) -> torch.device:
    """The device of the training: as said, or that of the backend, the optimizer's or the model's parameters;
    else the current GPU, if there is one. Raises UserError for one that there is not.
    """
    if device is not None:
        try:
            given = torch.device(device)
        except (RuntimeError, TypeError):
            raise UserError(f"device={device!r}: no device; give a name such as cpu or cuda:0") from None
        there = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if machine.is_cuda(given) and (given.index or 0) >= there:
            seen = f"PyTorch sees {there} GPUs; use one of them or cpu"
            raise UserError(f"device={str(given)!r}: not there; {seen}")
        return given
    if isinstance(scaler, Precision):
        return scaler.device
    groups = optimizer.param_groups if optimizer is not None else []
    parameters = [p for group in groups for p in group["params"]] or (model.parameters() if model else ())
    for parameter in parameters:
        return parameter.device
    return (
        torch.device("cuda", torch.cuda.current_device())
        if torch.cuda.is_available()
        else torch.device("cpu")
    )


def word_of(backend: Any, scaler: Any) -> str:
    """What the run is compared as, as its user names it. Raises UserError without a word."""
    if backend is None and isinstance(scaler, Precision):
        backend = scaler.declares.label
    if not isinstance(backend, str) or not backend.strip():
        known = ", ".join(REGISTRY)
        raise UserError(f"backend={backend!r}: name what is compared: one of {known}, or a word of your own")
    return backend


def known_as(word: str) -> str | None:
    """The backend of ours that the word means; None where it is nobody's."""
    return word if word in REGISTRY else HINTS.get(word.lower())


def type_of(dtype: Any, backend: str, scaler: Any, scales: bool) -> str | None:
    """The type that is computed in: as said, or as the backend or its loss scale tell; None where none does.

    Raises UserError for a type that is none.
    """
    if dtype is not None:
        name = str(dtype).removeprefix("torch.")
        if name not in TYPES:
            raise UserError(f"precision_dtype={dtype!r}: expected one of {', '.join(TYPES)}")
        return name
    known = REGISTRY.get(known_as(backend) or "")
    if isinstance(scaler, Precision):
        return scaler.declares.dtype
    if known is not None and (scales or not known.scales):
        return known.dtype
    return "float16" if scales else None


def about(
    *,
    backend: str,
    dtype: str | None,
    device: torch.device,
    processes: int,
    config: Mapping[str, Any],
    own: Mapping[str, Any],
    optimizer: Any,
    scaler: Any,
    goes_on: bool,
) -> About:
    """All that is said of a run; `config` is what its user says of it, `own` the recorder's options.

    Raises UserError where the two contradict each other.
    """
    if not isinstance(config, Mapping):
        raise UserError(f"config={short(config)}: expected a mapping of names; give a dict")
    for key, value in config.items():
        if not isinstance(key, str):
            raise UserError(f"config[{key!r}]={short(value)}: expected a name as the key; name it by a word")
        if key in OWN or (key in own and own[key] is not None and differ(own[key], value)):
            said = f", the recorder was given {own[key]!r}" if key in own else " is the recorder's own word"
            raise UserError(f"config[{key!r}]={short(value)}{said}; leave it out of config")
    settings: dict[str, Any] = {**machine.numerics_now(), "processes": processes, **arithmetic_of(device)}
    if optimizer is not None:
        settings["fused"] = any(group.get("fused") for group in optimizer.param_groups)
    if dtype is not None:
        settings[metrics.PRECISION_DTYPE] = dtype
    if isinstance(scaler, Precision):
        settings |= scaler.declares.record()
    environment = describe_environment(device, **settings, machine=name_machine(device, World()))
    logged = {**config, **{key: value for key, value in own.items() if value is not None}}
    told = {metrics.ENVIRONMENT: environment}
    return About(backend, logged | told, dict(told), goes_on)


def start(
    told: About,
    run: Any,
    options: WandbConfig,
    output_dir: str | Path,
    say: Callable[[str], None],
) -> Tracker:
    """The record: rows go into the open W&B `run`, or a new one is begun. Raises UserError."""

    def on_lost(why: str) -> None:
        say(f"{why}: the training goes on, its record ends here")

    if run is not None:
        return lend(run, told.logged, say, on_lost)
    import wandb

    if wandb.run is not None:
        raise UserError("run=None: a W&B run is open; give it as run=wandb.run, or finish it first")
    program = Path(sys.argv[0]).stem if sys.argv and sys.argv[0] not in ("", "-c") else ""
    name = f"{told.backend}_{program}" if program else told.backend
    return begin(
        Start(told.logged, name, [told.backend[:64], *options.tags], options, str(output_dir), told.goes_on),
        say,
        None,
        None,
        on_lost,
    )
