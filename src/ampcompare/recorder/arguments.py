"""Checks of the Recorder's arguments, and the facts that its record gets from them."""

import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ampcompare import metrics
from ampcompare.errors import UserError
from ampcompare.precision.base import Precision
from ampcompare.precision.registry import DTYPES, LABELS_BY_ALIAS, REGISTRY
from ampcompare.precision.weight_dtypes import (
    describe_frozen_parts,
    find_16bit_dtype,
    list_trainable_dtypes,
)
from ampcompare.recorder.run_id import choose_run_id
from ampcompare.runtime.atomic_files import make_folder
from ampcompare.system.device import current_numerics, current_tf32
from ampcompare.system.distributed import DistributedContext
from ampcompare.system.environment import describe_arithmetic, describe_environment, name_machine
from ampcompare.tracking.tracker import Tracker
from ampcompare.tracking.wandb_init import RunSettings, attach_to_run, start_record

log = logging.getLogger(__name__)


def find_device(device: Any, scaler: Any, optimizer: Any, model: nn.Module | None) -> torch.device:
    """Return the device of the training.

    The first of: `device`, the device of a `Precision`, of the optimizer's parameters, of the model's
    parameters, the current GPU, the CPU.

    Raises:
        UserError: The machine has no such device.
    """
    if device is not None:
        try:
            return torch.empty(0, device=device).device
        except (RuntimeError, TypeError, AssertionError) as problem:
            first_line = str(problem).partition("\n")[0]
            raise UserError(
                f"device={shorten(device)}: {first_line}; give one such as cpu or cuda:0"
            ) from None
    if isinstance(scaler, Precision):
        return scaler.device
    parameters = _list_parameters(optimizer)
    if not parameters and model is not None:
        parameters = list(model.parameters())
    if parameters:
        return parameters[0].device
    return torch.empty(0, device="cuda" if torch.cuda.is_available() else "cpu").device


def _list_parameters(optimizer: Any) -> list[Tensor]:
    """Return the parameters of an optimizer; none for None."""
    if optimizer is None:
        return []
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def name_backend(backend: Any, scaler: Any) -> tuple[str, str | None]:
    """Return the name of the backend, and the built-in backend that it stands for, if any.

    Args:
        backend: The name that the user gave; None takes the name of a `Precision` as `scaler`.
        scaler: The Recorder's `scaler`.

    Raises:
        UserError: There is no name.
    """
    if backend is None and isinstance(scaler, Precision):
        backend = scaler.metadata.label
    if not isinstance(backend, str) or not backend.strip():
        raise UserError(
            f"backend={backend!r}: expected the name of the backend that you compare: "
            f"one of {', '.join(REGISTRY)}, or a name of your own"
        )
    if backend in REGISTRY:
        return backend, backend
    return backend, LABELS_BY_ALIAS.get(backend.lower())


def describe_weights(model: nn.Module | None, optimizer: Any) -> dict[str, Any]:
    """Return the environment's entries for the dtypes of the weights.

    The trainable weights are those of the model, or those of the optimizer if the model is not known.

    Args:
        model: The Recorder's `model`.
        optimizer: The optimizer without wrappers, or None.
    """
    weights: dict[str, Any] = {}
    parameters = _list_parameters(optimizer) if model is None else list(model.parameters())
    if dtypes := list_trainable_dtypes(parameters):
        weights[metrics.WEIGHT_DTYPES] = dtypes
    if model is not None and (frozen := describe_frozen_parts(model)):
        weights[metrics.FROZEN_WEIGHTS] = frozen
    return weights


def explain_other_weights(backend: str, known: str | None, weights: Mapping[str, Any]) -> str:
    """Return a warning if the trainable weights do not have the dtype of a built-in backend, else "".

    Args:
        backend: The name that the user gave.
        known: The built-in backend that it stands for.
        weights: What `describe_weights` returned.
    """
    dtypes = weights.get(metrics.WEIGHT_DTYPES)
    if known is None or not dtypes:
        return ""
    expected = REGISTRY[known].weight_dtype
    actual = find_16bit_dtype(dtypes)
    if expected == "float32" and actual:
        name = "use backend='bf16'" if actual == "bfloat16" else "name the backend for what it is"
        return (
            f"backend={backend!r}: this backend has float32 weights, but the model's trainable weights are "
            f"{actual}; build the model in float32, or {name}. "
            f"The report shows the run as one with {actual} weights"
        )
    if expected != "float32" and not actual:
        return (
            f"backend={backend!r}: this backend has 16-bit weights, but the model's weights are "
            f"{dtypes[0]}; for torch.autocast use backend='native' (fp16) or 'native_bf16'. "
            f"The report takes {backend!r} for a name of your own"
        )
    if expected not in ("float32", actual):
        return (
            f"backend={backend!r}: this backend has {expected} weights, but the model's trainable weights "
            f"are {actual}. The report takes {backend!r} for a name of your own"
        )
    return ""


def find_dtype(
    dtype: Any, known: str | None, scaler: Any, scales: bool, weights_dtype: str = ""
) -> str | None:
    """Return the dtype that the loop computes in, None if it is not known.

    Args:
        dtype: The dtype that the user gave.
        known: The built-in backend that the loop's backend stands for.
        scaler: The Recorder's `scaler`.
        scales: Whether the loss scale is dynamic.
        weights_dtype: The dtype of 16-bit trainable weights, "" if there are none.

    Raises:
        UserError: The dtype is not allowed.
    """
    if dtype is not None:
        name = str(dtype).removeprefix("torch.")
        if name not in DTYPES:
            raise UserError(f"precision_dtype={dtype!r}: expected one of {', '.join(DTYPES)}")
        return name
    if isinstance(scaler, Precision) and not (scaler.metadata.is_fp32 and weights_dtype):
        return scaler.metadata.dtype
    if known and REGISTRY[known].is_fp32 and weights_dtype:
        return weights_dtype
    if known and (scales or not REGISTRY[known].scales):
        return REGISTRY[known].dtype
    return "float16" if scales else None


def build_environment(
    device: torch.device, processes: int, optimizer: Any, scaler: Any, dtype: str | None
) -> dict[str, Any]:
    """Return the record's environment: the machine, and the numeric settings of the process."""
    settings: dict[str, Any] = {
        **current_numerics(),
        **current_tf32(device),
        "processes": processes,
        **describe_arithmetic(device, without_units=metrics.EMULATED),
    }
    if optimizer is not None:
        settings["fused"] = any(group.get("fused") for group in optimizer.param_groups)
    if dtype is not None:
        settings[metrics.PRECISION_DTYPE] = dtype
    if isinstance(scaler, Precision):
        settings |= scaler.metadata.record()
        if scaler.tf32 is not None:  # the backend switches it in training
            settings |= dict.fromkeys(metrics.TF32_SWITCHES, scaler.tf32)
    return describe_environment(device, **settings, machine=name_machine(device, DistributedContext()))


def describe_compared_metric(metric: str | None, better: str | None) -> dict[str, Any]:
    """Return the environment's entry for the compared metric.

    Args:
        metric: The key of a row, such as "eval/f1"; None where the loop does not name it.
        better: "higher" or "lower". It may be left out for a metric of `ampcompare.metrics`.

    Raises:
        UserError: The direction is missing or another, or there is a direction without a metric.
    """
    if metric is None and better is not None:
        raise UserError(f"better={better!r}: better= needs metric= as well, such as metric='eval/f1'")
    if metric is None:
        return {}
    if not isinstance(metric, str) or not metric.strip():
        raise UserError(f"metric={metric!r}: expected the key of a row, such as 'eval/f1'")
    known = metrics.find(metric)
    if better is None and known is not None:
        better = known.better
    if better not in (metrics.HIGHER, metrics.LOWER):
        raise UserError(
            f"better={better!r}: expected {metrics.HIGHER!r} or {metrics.LOWER!r}, for metric={metric!r}"
        )
    label = metric.removeprefix(metrics.EVAL_PREFIX)
    return {metrics.TASK: {"metric": metric, "metrics": {metric: {"words": label, "better": better}}}}


def check_config(config: Any, own: Mapping[str, Any]) -> None:
    """Check the user's config.

    Raises:
        UserError: It is no mapping with string keys, or contradicts a setting that the Recorder records.
    """
    if not isinstance(config, Mapping) or not all(isinstance(key, str) for key in config):
        raise UserError(f"config={shorten(config)}: expected a dict with strings as keys")
    for key in config.keys() & {metrics.ENVIRONMENT, *own}:
        if str(config[key]) != str(own.get(key)):
            raise UserError(
                f"config[{key!r}]={shorten(config[key])}: the recorder sets this key to {own.get(key)!r}; "
                "leave it out of config"
            )


def make_run_name(backend: str) -> str:
    """Return the default name of a run: backend and program."""
    script = sys.argv[0] if sys.argv else ""
    program = "" if script == "-c" else Path(script).stem
    return f"{backend}_{program}" if program else backend


def open_record(settings: RunSettings, run: Any, continues: bool) -> Tracker:
    """Start the record, in the open W&B `run` or in a new one.

    Args:
        settings: The settings of a new run.
        run: The open W&B run, None for a new one.
        continues: Whether the record continues the last one of this process.

    Raises:
        UserError: A W&B run is open that was not given, or the record cannot be started.
    """

    def on_lost(why: str) -> None:
        log.error(f"{why}; the training continues, but its record ends here")

    if run is not None:
        return attach_to_run(run, settings.logged, on_lost)
    import wandb

    if wandb.run is not None:
        raise UserError("run=None: a W&B run is open; give it as run=wandb.run, or finish it first")
    if not os.environ.get("WANDB_DIR"):
        # For a folder that is not there the client would take a temporary one, with a warning.
        make_folder(Path(settings.output_dir), f"output_dir={settings.output_dir!r}")
    settings = replace(settings, run_id=choose_run_id(continues=continues))
    return start_record(settings, on_lost=on_lost)


def check_count(key: str, value: Any, minimum: int, *, optional: bool = False) -> Any:
    """Return a whole number as int; NumPy's integers are accepted.

    Args:
        key: The argument's name, for the message.
        minimum: The least allowed number.
        optional: Whether None is allowed, and returned.

    Raises:
        UserError: It is no whole number from `minimum` on.
    """
    if value is None and optional:
        return None
    if isinstance(value, bool) or not isinstance(value, Integral) or value < minimum:
        raise UserError(f"{key}={shorten(value)}: expected a whole number at least {minimum}")
    return int(value)


def check_parts(optimizer: Any, model: Any) -> None:
    """Check optimizer and model.

    Args:
        optimizer: The optimizer without wrappers, or None.
        model: The Recorder's `model`.

    Raises:
        UserError: The optimizer has no parameter groups, or the model is no module.
    """
    if optimizer is not None and not isinstance(getattr(optimizer, "param_groups", None), list):
        raise UserError(
            f"optimizer={shorten(optimizer)}: expected a torch.optim.Optimizer; give one optimizer; "
            "of several, give the first"
        )
    if model is not None and not isinstance(model, nn.Module):
        raise UserError(f"model={shorten(model)}: expected a torch.nn.Module; give the network itself")


def to_number(name: str, value: Any) -> float:
    """Return a value as float; a tensor on a device is waited for.

    Raises:
        UserError: It is neither a number nor a tensor with one element.
    """
    number = find_number(value)
    if number is None:
        raise UserError(f"{name}={shorten(value)}: expected a number or a tensor with one element")
    return number


def find_number(value: Any) -> float | None:
    """Return a number, or the one element of a tensor or array, as float; None if it is neither."""
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    if isinstance(value, str | bytes | bytearray):
        return None
    try:
        return float(value.detach() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None


def shorten(value: Any) -> str:
    """Return a value's repr in one line of at most 80 characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
