"""What a Recorder is given, checked, and what its record says of the run: each refusal is a line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ampcompare import metrics
from ampcompare.config.beside import WandbConfig
from ampcompare.errors import UserError
from ampcompare.machine import device as machine
from ampcompare.machine.environment import arithmetic_of, describe_environment, name_machine
from ampcompare.machine.world import World
from ampcompare.precision.backends import HINTS, REGISTRY, TYPES
from ampcompare.precision.base import Precision
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
    backend: Any,
    dtype: Any,
    device: torch.device,
    processes: int,
    config: Mapping[str, Any],
    own: Mapping[str, Any],
    optimizer: Any,
    scaler: Any,
    scales: bool,
    goes_on: bool,
) -> About:
    """All that is said of a run; `config` is what its user says of it, `own` the recorder's options.

    Raises UserError without a word for the backend, for a type that is none, and where the two contradict
    each other.
    """
    word = word_of(backend, scaler)
    # By `recorder` the report knows such a run; in it what we take its word for.
    own = {"backend": word, **own, "recorder": {"version": 1, "backend": known_as(word)}}
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
    if (name := type_of(dtype, word, scaler, scales)) is not None:
        settings[metrics.PRECISION_DTYPE] = name
    if isinstance(scaler, Precision):
        settings |= scaler.declares.record()
    environment = describe_environment(device, **settings, machine=name_machine(device, World()))
    logged = {**config, **{key: value for key, value in own.items() if value is not None}}
    told = {metrics.ENVIRONMENT: environment}
    return About(word, logged | told, dict(told), goes_on)


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


def check_count(key: str, value: Any, least: int | None) -> int:
    """The whole number, also out of NumPy's. Raises UserError unless it is one, from `least` on."""
    if isinstance(value, bool) or not isinstance(value, Integral) or (least is not None and value < least):
        wanted = "expected a whole number" + ("" if least is None else f" from {least} on")
        raise UserError(f"{key}={short(value)}: {wanted}")
    return int(value)


def check_parts(optimizer: Any, model: Any) -> None:
    """Raise UserError unless the bare optimizer has groups of parameters and the model is a module."""
    if optimizer is not None and not isinstance(getattr(optimizer, "param_groups", None), list):
        what = f"optimizer={short(optimizer)}: expected a torch.optim.Optimizer"
        raise UserError(f"{what}; give one object, of several the first")
    if model is not None and not isinstance(model, nn.Module):
        raise UserError(f"model={short(model)}: expected a torch.nn.Module; give the network itself")


def check_loss(loss: Any, device: torch.device) -> None:
    """Raise UserError for what no row can have: no number, one that is complex, one on another device."""
    if isinstance(loss, Tensor):
        if loss.dtype.is_complex or not loss.numel():
            raise _no_loss(loss)
        if loss.device.type != device.type:
            what = f"device={str(device)!r}: the loss is on {loss.device}"
            raise UserError(f"{what}; give the recorder device={str(loss.device)!r}")
    elif loss is not None:
        number_of(loss)


def number_of(loss: Any) -> float:
    """A loss that is no tensor. Raises UserError."""
    if isinstance(loss, str):
        raise _no_loss(loss)
    try:
        return float(loss)
    except (TypeError, ValueError):
        raise _no_loss(loss) from None


def _no_loss(loss: Any) -> UserError:
    what = f"{loss.dtype} {[*loss.shape]}" if isinstance(loss, Tensor) else short(loss)
    return UserError(f"Recorder.step: loss={what}; expected the step's mean loss, a 0-d tensor or a number")


def differ(one: Any, other: Any) -> bool:
    """Whether two values are not the same; what cannot be compared is not."""
    try:
        return bool(one != other)
    except (TypeError, ValueError, RuntimeError):  # of several elements, on two devices
        return True


def short(value: Any) -> str:
    """A value in a line."""
    words = " ".join(repr(value).split())
    return words if len(words) <= 80 else f"{words[:77]}..."
