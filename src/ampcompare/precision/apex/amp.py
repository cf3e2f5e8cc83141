"""`apex.amp`, for scripts that have it: `from ampcompare.precision.apex import amp` in place of apex's.

    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    ...
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()

Source: `apex/amp/{frontend,handle,_initialize,_amp_state,amp}.py` at the last commit that had them. Errors
are of the types that apex raised. Beyond apex: `casts`, the context in which the O1 casts are in force,
`reset`, which undoes everything, and `initialize(..., casts="forward")`, which leaves functions outside the
model's forward alone.
"""

from __future__ import annotations

import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ampcompare.precision.apex import casts as _casts
from ampcompare.precision.apex.casts import casts, disable_casts
from ampcompare.precision.apex.levels import Properties, properties
from ampcompare.precision.apex.master import HALF_TYPES, MasterGradients, convert_network, save_in_fp32
from ampcompare.precision.apex.optimizers import AmpOptimizer, is_initialized
from ampcompare.precision.apex.rules import float_, half, promote
from ampcompare.precision.apex.scaler import MAX_SCALE, LossScaler
from ampcompare.precision.apex.scaling import ScaledGradients, finish_backward
from ampcompare.precision.apex.state import STATE, everywhere
from ampcompare.precision.forward import is_wrapped, unwrap_forward, wrap_forward

__all__ = [
    "casts",
    "disable_casts",
    "float_function",
    "half_function",
    "initialize",
    "load_state_dict",
    "master_params",
    "promote_function",
    "register_float_function",
    "register_half_function",
    "register_promote_function",
    "reset",
    "scale_loss",
    "state_dict",
]

half_function = half
float_function = float_
promote_function = promote


@dataclass
class _State:
    """What `initialize` set up, and how to undo it."""

    properties: Properties | None = None
    scalers: list[LossScaler] = field(default_factory=list)
    undo: list[Callable[[], None]] = field(default_factory=list)
    installed: bool = False


_state = _State()


def initialize(
    models: nn.Module | Sequence[nn.Module],
    optimizers: Optimizer | Sequence[Optimizer] | None = None,
    enabled: bool = True,
    opt_level: str = "O1",
    cast_model_type: torch.dtype | None = None,
    patch_torch_functions: bool | None = None,
    keep_batchnorm_fp32: bool | str | None = None,
    master_weights: bool | None = None,
    loss_scale: float | str | None = None,
    cast_model_outputs: torch.dtype | None = None,
    num_losses: int = 1,
    verbosity: int = 1,
    min_loss_scale: float | None = None,
    max_loss_scale: float = MAX_SCALE,
    *,
    casts: str = "everywhere",
    allow_banned: bool = False,
) -> Any:
    """Fit models and optimizers to an optimization level, O0 to O3; call once, before a parallel wrapper.

    Returns models and optimizers as they were given (one or a list); models alone without optimizers.
    `verbosity` is taken for compatibility. `casts` is "everywhere", as in apex (functions called outside a
    model's forward follow the O1 lists too), or "forward". Raises RuntimeError for what apex refused: an
    unknown level, options that contradict it, a model that is wrapped, half or initialized already. With
    enabled=False nothing is looked at.

    >>> import torch
    >>> from ampcompare.precision.apex import amp
    >>> model = torch.nn.Linear(4, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> model, optimizer = amp.initialize(model, optimizer, opt_level="O1", loss_scale=128.0)
    >>> loss = model(torch.ones(2, 4)).float().square().mean()
    >>> with amp.scale_loss(loss, optimizer) as scaled_loss:
    ...     scaled_loss.backward()
    >>> optimizer.step()
    >>> bool(scaled_loss == 128 * loss)
    True
    """
    if not enabled:
        _state.properties, _state.scalers = Properties(enabled=False), []
        return models if optimizers is None else (models, optimizers)
    chosen = properties(
        opt_level,
        cast_model_type=cast_model_type,
        patch_torch_functions=patch_torch_functions,
        keep_batchnorm_fp32=keep_batchnorm_fp32,
        master_weights=master_weights,
        loss_scale=loss_scale,
    )
    if casts not in ("everywhere", "forward"):
        raise ValueError(f"casts={casts!r}: expected 'everywhere' or 'forward'")
    if not isinstance(num_losses, int) or num_losses < 1:
        raise ValueError(f"num_losses={num_losses!r}: expected a whole number of at least 1")
    model_list = _as_list(models, nn.Module, "models", "torch.nn.Module")
    given = [] if optimizers is None else optimizers
    optimizer_list = _as_list(given, Optimizer, "optimizers", "torch.optim.Optimizer")
    for model in model_list:
        _check_model(model)
    _check_once("model", model_list, [is_wrapped(model) for model in model_list])
    _check_once("optimizer", optimizer_list, [is_initialized(optimizer) for optimizer in optimizer_list])

    device = _device(model_list)
    _state.properties = chosen
    _state.scalers = [
        LossScaler(chosen.loss_scale, device=device, min_scale=min_loss_scale, max_scale=max_loss_scale)
        for _ in range(num_losses)
    ]
    _cast_functions(chosen.patch_torch_functions, casts == "everywhere", device.type, allow_banned)
    half_updates = chosen.cast_model_type in HALF_TYPES and not chosen.master_weights
    for optimizer in optimizer_list if half_updates else []:
        _undo_with(optimizer, _recast_state)  # the last thing to be undone, when the model is fp32 again
    for model in model_list:
        _prepare_model(model, chosen, cast_model_outputs, device.type, allow_banned)
    for optimizer in optimizer_list:
        if half_updates:
            _recast_state(optimizer)
        _prepare_optimizer(optimizer, chosen, device)
    return models if optimizers is None else (models, optimizers)


@contextmanager
def scale_loss(
    loss: Tensor,
    optimizers: Optimizer | Sequence[Optimizer],
    loss_id: int = 0,
    model: nn.Module | None = None,
    delay_unscale: bool = False,
    delay_overflow_check: bool = False,
) -> Iterator[Tensor]:
    """The context of one backward: gives the scaled loss, and leaves true gradients behind.

    On exit gradients are unscaled and added to those that were there, the scale of `loss_id` moves, and an
    overflow makes the next `step` of each of the `optimizers` a skip. With `delay_unscale` gradients stay
    scaled, with `delay_overflow_check` the scale stays, for the next call without it.
    """
    chosen = _state.properties
    if chosen is None:
        raise RuntimeError(
            "Invoked 'with amp.scale_loss`, but internal Amp state has not been initialized: "
            "model, optimizer = amp.initialize(model, optimizer, opt_level=...) must be called before."
        )
    if not chosen.enabled:
        yield loss
        return
    if not isinstance(loss_id, int) or not 0 <= loss_id < len(_state.scalers):
        raise IndexError(
            f"loss_id={loss_id}: amp.initialize was told num_losses={len(_state.scalers)}, so 0 to "
            f"{len(_state.scalers) - 1} are there; pass a larger num_losses"
        )
    optimizer_list = _as_list(optimizers, Optimizer, "optimizers", "torch.optim.Optimizer")
    gradients = [_gradients(optimizer) for optimizer in dict.fromkeys(optimizer_list)]  # each once
    scaler = _state.scalers[loss_id]
    if scaler.does_nothing and all(g.in_place for g in gradients):
        yield loss.float()
        STATE.cache.clear()
        return
    for g in gradients:
        g.set_aside()
    try:
        yield loss.float() * scaler.scale.clone()
    except BaseException:
        for g in gradients:
            g.abandon()
        raise
    finish_backward(scaler, gradients, delay=delay_unscale, move=not delay_overflow_check)
    STATE.cache.clear()


def master_params(optimizer: Optimizer) -> Iterator[Tensor]:
    """The parameters that the optimizer updates: fp32 masters under O2, the model's own otherwise."""
    if is_initialized(optimizer) and isinstance(gradients := _gradients(optimizer), MasterGradients):
        gradients.adopt()  # a parameter group may have been added since, a checkpoint loaded
    for group in optimizer.param_groups:
        yield from group["params"]


def state_dict(destination: dict[str, Any] | None = None) -> dict[str, Any]:
    """{"loss_scaler0": {"loss_scale": float, "unskipped": int}, ...}, as apex. Waits for the device."""
    found = OrderedDict() if destination is None else destination
    for index, scaler in enumerate(_state.scalers):
        found[f"loss_scaler{index}"] = scaler.state_dict()
    return found


def load_state_dict(state_dict: dict[str, Any]) -> None:
    """Take over loss scales. Warns when their number differs; raises RuntimeError for keys not apex's."""
    foreign = ", ".join(key for key in state_dict if "loss_scaler" not in key)
    if foreign:
        raise RuntimeError(f"Error(s) in loading state_dict. Unexpected key(s) in state_dict: {foreign}.")
    if len(state_dict) != len(_state.scalers):
        warnings.warn(
            f"state_dict contains {len(state_dict)} entries, while {len(_state.scalers)} loss_scalers are "
            "used; those that both have are loaded",
            stacklevel=2,
        )
    for scaler, state in zip(_state.scalers, state_dict.values(), strict=False):
        scaler.load_state_dict(state)


def register_half_function(module: Any, function: str) -> None:
    """Run `module.function` in fp16 under O1. Raises ValueError if there is no such function."""
    _casts.register(module, function, "half")


def register_float_function(module: Any, function: str) -> None:
    """Run `module.function` in fp32 under O1. Raises ValueError if there is no such function."""
    _casts.register(module, function, "float")


def register_promote_function(module: Any, function: str) -> None:
    """Run `module.function` in its arguments' widest type under O1. Raises ValueError if there is none."""
    _casts.register(module, function, "promote")


def reset() -> None:
    """Undo everything: casts off and unpatched, registrations forgotten, models and optimizers in fp32."""
    _cast_functions(False)
    _casts.forget_registered()
    while _state.undo:
        _state.undo.pop()()
    _state.properties, _state.scalers = None, []
    STATE.cache.clear()


def _cast_functions(
    on: bool, outside: bool = False, device_type: str = "cpu", allow_banned: bool = False
) -> None:
    """Install the wrappers, in force `outside` the models' forwards or inert there; or take them away."""
    if on and not _state.installed:
        _casts.install()
    everywhere(on and outside, device_type, allow_banned)
    if not on and _state.installed:
        _casts.uninstall()
    _state.installed = on


def _prepare_model(
    model: nn.Module, chosen: Properties, outputs: torch.dtype | None, device_type: str, allow_banned: bool
) -> None:
    how: dict[str, Any] = {"outputs": outputs}
    if chosen.patch_torch_functions:
        how |= {"context": _casts.casts, "device_type": device_type, "allow_banned": allow_banned}
    dtype = chosen.cast_model_type
    if dtype is not None:
        how |= {"inputs": dtype, "outputs": outputs or torch.float32}
    if dtype in HALF_TYPES:
        convert_network(model, dtype, keep_batchnorm_fp32=bool(chosen.keep_batchnorm_fp32))
        _state.undo.extend(handle.remove for handle in save_in_fp32(model))
        _undo_with(model, lambda m: convert_network(m, torch.float32, keep_batchnorm_fp32=False))
    wrap_forward(model, **how)
    _undo_with(model, unwrap_forward)


def _prepare_optimizer(optimizer: Optimizer, chosen: Properties, device: torch.device) -> None:
    gradients = (MasterGradients if chosen.master_weights else ScaledGradients)(optimizer, device)
    AmpOptimizer(optimizer, gradients, dynamic=chosen.loss_scale == "dynamic")
    _undo_with(optimizer, AmpOptimizer.undo)


def _recast_state(optimizer: Optimizer) -> None:
    """State that an optimizer has already (momentum) in its parameters' type, by PyTorch's own rules."""
    if optimizer.state:
        optimizer.load_state_dict(optimizer.state_dict())


def _undo_with(thing: Any, undo: Callable[[Any], None]) -> None:
    """Remember how to undo something without keeping the thing alive."""
    reference = weakref.ref(thing)

    def call() -> None:
        alive = reference()
        if alive is not None:
            undo(alive)

    _state.undo.append(call)


def _check_model(model: nn.Module) -> None:
    parallel = (nn.parallel.DistributedDataParallel, nn.DataParallel)
    if isinstance(model, parallel):
        raise RuntimeError(
            f"Incoming model is an instance of {type(model).__name__}. Parallel wrappers should only be "
            "applied to the model(s) AFTER the model(s) have been returned from amp.initialize."
        )
    for kind, named in (("param", model.named_parameters()), ("buffer", model.named_buffers())):
        for name, tensor in named:
            if tensor.is_floating_point() and tensor.dtype is not torch.float32:
                raise RuntimeError(
                    f"Found {kind} {name} with type {str(tensor.dtype).removeprefix('torch.')}, expected "
                    "float32. When using amp.initialize, you do not need to call .half() on your model "
                    "before passing it, no matter what optimization level you choose."
                )


def _check_once(kind: str, things: list[Any], before: list[bool]) -> None:
    if any(before) or len({id(thing) for thing in things}) < len(things):
        raise RuntimeError(
            f"The same {kind} was given to amp.initialize twice; call amp.reset() to start again."
        )


def _gradients(optimizer: Optimizer) -> ScaledGradients:
    if not is_initialized(optimizer):
        raise RuntimeError(
            "amp.scale_loss was given an optimizer that amp.initialize never saw; initialize it first."
        )
    return AmpOptimizer.of(optimizer).gradients


def _as_list(things: Any, kind: type, name: str, type_name: str) -> list[Any]:
    found = [things] if isinstance(things, kind) else things
    if not isinstance(found, list | tuple) or not all(isinstance(thing, kind) for thing in found):
        raise TypeError(
            f"{name} must be either a single {type_name} or a list of them, not {type(things).__name__}"
        )
    return list(found)


def _device(models: Sequence[nn.Module]) -> torch.device:
    first = next((parameter for model in models for parameter in model.parameters()), None)
    return torch.device(_casts.default_device_type()) if first is None else first.device
