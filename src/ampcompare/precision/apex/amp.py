"""`apex.amp`, for scripts that have it: `from ampcompare.precision.apex import amp` in place of apex's.

    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    ...
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()

Source: `apex/amp/{frontend,handle,_initialize,_process_optimizer,_amp_state,amp}.py` at the last commit that
had them. Errors are of the types that apex raised. Beyond apex: `casts`, the context in which the O1 casts
are in force, `reset`, which undoes everything, and `initialize(..., casts="forward")`, which leaves functions
outside the model's forward alone. An initialized optimizer's `step` takes no closure.
"""

from __future__ import annotations

import dataclasses
import types
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

from ampcompare.precision.casting import (
    HALF_TYPES,
    convert_network,
    save_in_fp32,
    unwrap_forward,
    wrap_forward,
    wrapped_forward,
)
from ampcompare.precision.halves import MasterGradients
from ampcompare.precision.o1 import patches
from ampcompare.precision.o1.patches import casts, disable_casts
from ampcompare.precision.o1.rules import float_, half, promote
from ampcompare.precision.o1.weights import STATE, CastState
from ampcompare.precision.scaled import Gradients, scaled_backward, step_unless
from ampcompare.precision.scaler import MAX_SCALE, LossScaler

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


@dataclass(frozen=True)
class Properties:
    """What a level comes to. `loss_scale` is "dynamic" or a number."""

    cast_model_type: torch.dtype | None
    patch_torch_functions: bool
    keep_batchnorm_fp32: bool | None
    master_weights: bool | None
    loss_scale: float | str


LEVELS = {
    "O0": Properties(torch.float32, False, None, False, 1.0),
    "O1": Properties(None, True, None, None, "dynamic"),
    "O2": Properties(torch.float16, False, True, True, "dynamic"),
    "O3": Properties(torch.float16, False, False, False, 1.0),
}


@dataclass
class _State:
    """What `initialize` set up, and how to undo it. Without properties nothing is to be done."""

    initialized: bool = False
    properties: Properties | None = None
    scalers: list[LossScaler] = field(default_factory=list)
    undo: list[Callable[[], None]] = field(default_factory=list)


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
        _state.initialized, _state.properties, _state.scalers = True, None, []
        return models if optimizers is None else (models, optimizers)
    chosen = _properties(
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
    _check_once("model", model_list, [wrapped_forward(model) for model in model_list])
    _check_once("optimizer", optimizer_list, [_initialized(optimizer) for optimizer in optimizer_list])

    first = next((parameter for model in model_list for parameter in model.parameters()), None)
    device = torch.device(patches.default_device_type()) if first is None else first.device
    _state.initialized, _state.properties = True, chosen
    _state.scalers = [
        LossScaler(chosen.loss_scale, device=device, min_scale=min_loss_scale, max_scale=max_loss_scale)
        for _ in range(num_losses)
    ]
    if chosen.patch_torch_functions:
        patches.install()
        _state.undo.append(patches.uninstall)
    CastState.on = chosen.patch_torch_functions and casts == "everywhere"
    CastState.device_type, CastState.allow_banned = device.type, allow_banned
    half_updates = chosen.cast_model_type in HALF_TYPES and not chosen.master_weights
    for optimizer in optimizer_list if half_updates else []:
        _undo_with(optimizer, _recast_state)  # the last thing to be undone, when the model is fp32 again
    for model in model_list:
        _prepare_model(model, chosen, cast_model_outputs, device.type, allow_banned)
    for optimizer in optimizer_list:
        if half_updates:
            _recast_state(optimizer)
        gradients = (MasterGradients if chosen.master_weights else Gradients)(optimizer, device)
        _AmpOptimizer(optimizer, gradients, dynamic=chosen.loss_scale == "dynamic")
        _undo_with(optimizer, _AmpOptimizer.undo)
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
    if not _state.initialized:
        todo = "model, optimizer = amp.initialize(model, optimizer, opt_level=...) must be called before."
        what = "Invoked 'with amp.scale_loss`, but internal Amp state has not been initialized"
        raise RuntimeError(f"{what}: {todo}")
    if _state.properties is None:
        yield loss
        return
    count = len(_state.scalers)
    if not isinstance(loss_id, int) or not 0 <= loss_id < count:
        why = f"amp.initialize was told num_losses={count}, so 0 to {count - 1} are there"
        raise IndexError(f"loss_id={loss_id}: {why}; pass a larger num_losses")
    optimizer_list = _as_list(optimizers, Optimizer, "optimizers", "torch.optim.Optimizer")
    gradients = [_gradients(optimizer) for optimizer in dict.fromkeys(optimizer_list)]  # each once
    scaler = _state.scalers[loss_id]
    with scaled_backward(scaler, gradients, delay=delay_unscale):
        yield loss.float() if scaler.does_nothing else loss.float() * scaler.scale.clone()
    if not (delay_unscale or delay_overflow_check or scaler.does_nothing):
        scaler.update()
    STATE.copies.clear()


def master_params(optimizer: Optimizer) -> Iterator[Tensor]:
    """The parameters that the optimizer updates: fp32 masters under O2, the model's own otherwise."""
    if _initialized(optimizer) and isinstance(gradients := _gradients(optimizer), MasterGradients):
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
    foreign = [key for key in state_dict if "loss_scaler" not in key]
    if foreign:
        keys = ", ".join(foreign)
        raise RuntimeError(f"Error(s) in loading state_dict. Unexpected key(s) in state_dict: {keys}.")
    theirs, ours = len(state_dict), len(_state.scalers)
    if theirs != ours:
        what = f"state_dict contains {theirs} entries, while {ours} loss_scalers are used"
        warnings.warn(f"{what}; those that both have are loaded", stacklevel=2)
    for scaler, state in zip(_state.scalers, state_dict.values(), strict=False):
        scaler.load_state_dict(state)


def register_half_function(module: Any, function: str) -> None:
    """Run `module.function` in fp16 under O1. Raises ValueError if there is no such function."""
    patches.register(module, function, "half")


def register_float_function(module: Any, function: str) -> None:
    """Run `module.function` in fp32 under O1. Raises ValueError if there is no such function."""
    patches.register(module, function, "float")


def register_promote_function(module: Any, function: str) -> None:
    """Run `module.function` in its arguments' widest type under O1. Raises ValueError if there is none."""
    patches.register(module, function, "promote")


def reset() -> None:
    """Undo everything: casts off and unpatched, registrations forgotten, models and optimizers in fp32."""
    CastState.on, CastState.device_type, CastState.allow_banned = False, "cpu", False
    patches.forget_registered()
    while _state.undo:
        _state.undo.pop()()
    _state.initialized, _state.properties, _state.scalers = False, None, []
    STATE.copies.clear()


class _AmpOptimizer:
    """An optimizer's `step` and `zero_grad` under amp: it skips after an overflow and serves masters.

    Lives on the optimizer and nowhere else, so that it dies with it. A copied or unpickled optimizer is a
    plain one, since PyTorch copies no more than state and groups.
    """

    def __init__(self, optimizer: Optimizer, gradients: Gradients, *, dynamic: bool) -> None:
        self.optimizer, self.gradients, self.dynamic = optimizer, gradients, dynamic
        self.masters = gradients if isinstance(gradients, MasterGradients) else None
        self.active = True
        self.own = {name: vars(optimizer).get(name) for name in ("step", "zero_grad")}
        self.before_step, self.before_zero_grad = optimizer.step, optimizer.zero_grad
        patch = self

        def step(self: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
            return patch.step(closure)

        def zero_grad(self: Optimizer, *args: Any, **kwargs: Any) -> None:
            patch.zero_grad(*args, **kwargs)

        if hasattr(optimizer.step, "_wrapped_by_lr_sched"):
            step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # a scheduler from before would warn
        # Bound methods: a scheduler that is made later wraps `step` by its descriptor.
        self.patched = {
            "step": types.MethodType(step, optimizer),
            "zero_grad": types.MethodType(zero_grad, optimizer),
        }
        vars(optimizer).update(self.patched, _amp=self)

    def step(self, closure: Callable[[], Any] | None) -> Any:
        if not self.active:
            return self.before_step() if closure is None else self.before_step(closure)
        if closure is not None:
            raise RuntimeError(
                "Currently, Amp does not support closure use with optimizers: call step() alone."
            )
        if self.masters is not None:
            self.masters.ready()
        with disable_casts():  # the arithmetic of an optimizer is its own
            if self.dynamic:
                result = step_unless(self.optimizer, self.gradients.skip, self.before_step)
            else:
                result = self.before_step()
        self.gradients.skip.zero_()
        if self.masters is not None:
            self.masters.copy_to_model()
            for _, master in self.masters.pairs:  # `model.zero_grad()` would not reach them
                master.grad = None
        STATE.copies.clear()
        return result

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        if self.active and self.masters is not None:
            self.masters.clear_model_gradients()
        self.before_zero_grad(*args, **kwargs)

    @staticmethod
    def undo(optimizer: Optimizer) -> None:
        """Give the optimizer back as it was, with the model's own parameters and the state of its masters."""
        patch: _AmpOptimizer = vars(optimizer).pop("_amp")
        patch.active = False  # for a scheduler that wrapped our step meanwhile
        for name, ours in patch.patched.items():
            if vars(optimizer).get(name) is ours:
                delattr(optimizer, name)
                vars(optimizer).update({name: patch.own[name]} if patch.own[name] else {})
        if patch.masters is not None:
            patch.masters.release()


def _initialized(optimizer: Optimizer) -> bool:
    return "_amp" in vars(optimizer)


def _gradients(optimizer: Optimizer) -> Gradients:
    if not _initialized(optimizer):
        what = "amp.scale_loss was given an optimizer that amp.initialize never saw"
        raise RuntimeError(f"{what}; initialize it first.")
    return vars(optimizer)["_amp"].gradients


def _prepare_model(
    model: nn.Module, chosen: Properties, outputs: torch.dtype | None, device_type: str, allow_banned: bool
) -> None:
    how: dict[str, Any] = {"outputs": outputs}
    if chosen.patch_torch_functions:
        how |= {"context": casts, "device_type": device_type, "allow_banned": allow_banned}
    dtype = chosen.cast_model_type
    if dtype is not None:
        how |= {"inputs": dtype, "outputs": outputs or torch.float32}
    if dtype in HALF_TYPES:
        convert_network(model, dtype, keep_batchnorm_fp32=bool(chosen.keep_batchnorm_fp32))
        _state.undo.extend(handle.remove for handle in save_in_fp32(model))
        _undo_with(model, lambda m: convert_network(m, torch.float32, keep_batchnorm_fp32=False))
    wrap_forward(model, **how)
    _undo_with(model, unwrap_forward)


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


def _properties(opt_level: str, **overrides: Any) -> Properties:
    """The level with the caller's overrides (None: the level's own).

    Raises RuntimeError as apex did; ValueError for a loss scale that is none.
    """
    if opt_level not in LEVELS:
        note = "Note that in `O0`, `O1`, etc., the prefix O is the letter O, not the number zero."
        known = ", ".join(map(repr, LEVELS))
        raise RuntimeError(f"Unexpected optimization level {opt_level!r}. Options are {known}. {note}")
    given = {name: value for name, value in overrides.items() if value is not None}
    if "cast_model_type" in given:
        given["cast_model_type"] = _model_type(given["cast_model_type"])
    if opt_level == "O1":
        _refuse_for_o1(given)
    elif given.get("patch_torch_functions"):
        raise RuntimeError("patch_torch_functions=True can only be set by selecting opt_level O1.")
    if "loss_scale" in given:
        given["loss_scale"] = _loss_scale(given["loss_scale"])
    if "keep_batchnorm_fp32" in given:
        given["keep_batchnorm_fp32"] = _keep_batchnorm(given["keep_batchnorm_fp32"])
    return dataclasses.replace(LEVELS[opt_level], **given)


def _refuse_for_o1(given: dict[str, Any]) -> None:
    if given.get("cast_model_type") not in (None, torch.float32):
        raise RuntimeError(
            "O1 inserts casts around Torch functions rather than model weights, so with O1, the model "
            "weights themselves should remain FP32. If you wish to cast the model to a different type, use "
            "opt_level='O2' or 'O3'."
        )
    if "keep_batchnorm_fp32" in given:
        what = "With opt_level O1, batchnorm functions are automatically handled"
        raise RuntimeError(f"{what}: keep_batchnorm_fp32 should be None.")
    if "master_weights" in given:
        why = "With O1, your model weights themselves should be FP32."
        raise RuntimeError(f"It doesn't make sense to use master_weights with O1. {why}")


def _model_type(value: Any) -> torch.dtype | None:
    if value is False:  # apex's way to say: leave the model as it is
        return None
    if value not in (torch.float16, torch.bfloat16, torch.float32):
        expected = "torch.float16, torch.bfloat16, torch.float32 or False"
        raise RuntimeError(f"cast_model_type={value!r}: expected {expected}")
    return value


def _keep_batchnorm(value: Any) -> bool:
    words = {"true": True, "false": False}
    found = words.get(value.lower()) if isinstance(value, str) else value
    if not isinstance(found, bool):
        expected = "a boolean, the string 'True' or 'False', or None"
        raise RuntimeError(f"keep_batchnorm_fp32={value!r}: expected {expected}")
    return found


def _loss_scale(value: Any) -> float | str:
    if value == "dynamic":
        return "dynamic"
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if not 0 < number < float("inf"):
        raise ValueError(f"loss_scale={value!r}: expected 'dynamic' or a positive number")
    return number


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


def _check_once(kind: str, things: list[Any], before: list[Any]) -> None:
    if any(before) or len({id(thing) for thing in things}) < len(things):
        what = f"The same {kind} was given to amp.initialize twice"
        raise RuntimeError(f"{what}; call amp.reset() to start again.")


def _as_list(things: Any, kind: type, name: str, type_name: str) -> list[Any]:
    found = [things] if isinstance(things, kind) else things
    if not isinstance(found, list | tuple) or not all(isinstance(thing, kind) for thing in found):
        expected = f"either a single {type_name} or a list of them"
        raise TypeError(f"{name} must be {expected}, not {type(things).__name__}")
    return list(found)
