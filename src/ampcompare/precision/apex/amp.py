"""A replacement for `apex.amp`: import it with `from ampcompare.precision.apex import amp`.

    model, optimizer = amp.initialize(model, optimizer, opt_level="O1")
    ...
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()

Source: `apex/amp/{frontend,handle,_initialize,_process_optimizer,_amp_state,amp}.py` at the last commit that
had them. Errors have the types that apex raised. Additions to apex: `casts`, a context in which the O1 casts
are active; `reset`, which undoes everything; and `initialize(..., casts="forward")`, which casts only inside
the model's forward. As in apex, an initialized optimizer's `step` accepts no closure.
"""

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import MethodType
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ampcompare.precision.apex.opt_levels import Properties, check_model, resolve_properties, to_list
from ampcompare.precision.casting import (
    SIXTEEN_BIT_DTYPES,
    convert_network,
    find_scripted,
    save_in_fp32,
    unwrap_forward,
    wrap_forward,
)
from ampcompare.precision.loss_scaler import MAX_SCALE, LossScaler
from ampcompare.precision.o1 import patches
from ampcompare.precision.o1.backend import NOT_CAST
from ampcompare.precision.o1.cast_cache import STATE, CastState
from ampcompare.precision.o1.cast_wrappers import float_ as float_function  # noqa: F401
from ampcompare.precision.o1.cast_wrappers import half as half_function  # noqa: F401
from ampcompare.precision.o1.cast_wrappers import promote as promote_function  # noqa: F401
from ampcompare.precision.o1.patches import casts as casts
from ampcompare.precision.o1.patches import disable_casts as disable_casts
from ampcompare.precision.registry import PrecisionOptions
from ampcompare.precision.unscaling import OptimizerGradients, scaled_backward


@dataclass
class _State:
    """The state of the module.

    Attributes:
        enabled: The argument `enabled` of `initialize`, None before the call.
        scalers: One loss scaler per loss.
        undo: Callbacks for `reset`.
    """

    enabled: bool | None = None
    scalers: list[LossScaler] = field(default_factory=list)
    models: WeakSet[nn.Module] = field(default_factory=WeakSet)
    optimizers: WeakSet[Optimizer] = field(default_factory=WeakSet)
    undo: ExitStack = field(default_factory=ExitStack)


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
    """Prepare models and optimizers for an optimization level; call it once, before a parallel wrapper.

    Args:
        models: A model, or a list of models.
        optimizers: An optimizer, or a list of optimizers.
        enabled: False to do nothing but turn off O1's casts outside of models.
        opt_level: "O0", "O1", "O2" or "O3".
        cast_model_type: The dtype of the model's weights; like the next four, it overrides the level.
        patch_torch_functions: Whether to cast by the O1 lists.
        keep_batchnorm_fp32: Whether BatchNorm stays in fp32.
        master_weights: Whether the optimizer updates fp32 masters.
        loss_scale: "dynamic" or a number.
        num_losses: The number of losses with a scale of their own.
        verbosity: Ignored; for compatibility.
        min_loss_scale: The minimum of a dynamic loss scale.
        max_loss_scale: The maximum of a dynamic loss scale.
        casts: "everywhere" as in apex, where the O1 lists also apply to functions outside a model's forward,
            or "forward".
        allow_banned: Whether O1 runs banned functions in fp32 rather than raise.

    Returns:
        Models and optimizers, each as one object or a list, as they were given. Without optimizers the models
        alone.

    Raises:
        RuntimeError: As in apex: an unknown level, options that contradict it, or a model that is wrapped, in
            16 bits, or initialized already.
        ValueError: A loss scale, `casts` or `num_losses` that is not allowed.
        TypeError: Models or optimizers of another type.

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
        _disable()
        return models if optimizers is None else (models, optimizers)
    properties = resolve_properties(
        opt_level, cast_model_type, patch_torch_functions, keep_batchnorm_fp32, master_weights, loss_scale
    )
    if casts not in ("everywhere", "forward"):
        raise ValueError(f"casts={casts!r}: expected 'everywhere' or 'forward'")
    if not isinstance(num_losses, int) or num_losses < 1:
        raise ValueError(f"num_losses={num_losses!r}: expected a whole number of at least 1")
    model_list = to_list(models, nn.Module, "models", "torch.nn.Module")
    optimizer_list = to_list(
        [] if optimizers is None else optimizers, Optimizer, "optimizers", "torch.optim.Optimizer"
    )
    for model in model_list:
        check_model(model, scales_loss=properties.loss_scale != 1.0)
    _check_given_once("model", model_list, _state.models)
    _check_given_once("optimizer", optimizer_list, _state.optimizers)

    device = _find_device(model_list)
    scaler_options = PrecisionOptions(
        properties.loss_scale, min_loss_scale=min_loss_scale, max_loss_scale=max_loss_scale
    )
    _state.enabled = True
    _state.scalers = [LossScaler(scaler_options, device) for _ in range(num_losses)]
    if properties.patch_torch_functions:
        _state.undo.enter_context(patches.install_wrappers())
    CastState.on = properties.patch_torch_functions and casts == "everywhere"
    CastState.device_type = device.type
    CastState.allow_banned = allow_banned
    for model in model_list:
        _prepare_model(model, properties, device, cast_model_outputs, allow_banned=allow_banned)
    for optimizer in optimizer_list:
        _prepare_optimizer(optimizer, properties, device)
    _state.models.update(model_list)
    _state.optimizers.update(optimizer_list)
    return models if optimizers is None else (models, optimizers)


def _disable() -> None:
    """Leave models and optimizers alone, and end the casts of an earlier O1."""
    _state.enabled = False
    _state.scalers = []
    CastState.on = False
    STATE.copies.clear()


def _check_given_once(kind: str, new: Sequence[Any], known: Collection[Any]) -> None:
    """Raise RuntimeError if an object is twice among the new ones, or is known from an earlier call."""
    if len({*new} - {*known}) < len(new):
        raise RuntimeError(
            f"The same {kind} was given to amp.initialize twice; call amp.reset() to start again."
        )


def _find_device(models: Sequence[nn.Module]) -> torch.device:
    """Return the device of the first parameter; without parameters the GPU, if there is one."""
    for model in models:
        for parameter in model.parameters():
            return parameter.device
    return torch.device(patches.get_default_device_type())


def _prepare_model(
    model: nn.Module,
    properties: Properties,
    device: torch.device,
    output_dtype: torch.dtype | None,
    *,
    allow_banned: bool,
) -> None:
    """Convert the weights and wrap the forward, as the level says."""
    wrapping: dict[str, Any] = {"outputs": output_dtype}
    if properties.patch_torch_functions:
        wrapping |= {"context": patches.casts, "device_type": device.type, "allow_banned": allow_banned}
        names = find_scripted(model)
        if names:
            shown = ", ".join(name or type(model).__name__ for name in names)
            warnings.warn(
                f"{NOT_CAST} {shown}. It computes in the dtype of its inputs and weights.", stacklevel=3
            )
    dtype = properties.cast_model_type
    if dtype is not None:
        wrapping |= {"inputs": dtype, "outputs": output_dtype or torch.float32}
    if dtype in SIXTEEN_BIT_DTYPES:
        convert_network(model, dtype, keep_batchnorm_fp32=bool(properties.keep_batchnorm_fp32))
        for hook in save_in_fp32(model):
            _state.undo.callback(hook.remove)
    wrap_forward(model, **wrapping)


def _prepare_optimizer(optimizer: Optimizer, properties: Properties, device: torch.device) -> None:
    """Create masters if the level has them, and make the optimizer skip its step after an overflow."""
    if properties.cast_model_type in SIXTEEN_BIT_DTYPES and not properties.master_weights:
        _recast_state(optimizer)
    gradients = OptimizerGradients(optimizer, device, has_masters=bool(properties.master_weights))
    _patch_optimizer(optimizer, gradients, dynamic=properties.loss_scale == "dynamic")


@contextmanager
def scale_loss(
    loss: Tensor,
    optimizers: Optimizer | Sequence[Optimizer],
    loss_id: int = 0,
    model: nn.Module | None = None,
    delay_unscale: bool = False,
    delay_overflow_check: bool = False,
) -> Iterator[Tensor]:
    """Return the context of one backward, which provides the scaled loss.

    On exit the gradients are unscaled and added to earlier ones, and the loss scale is updated. After an
    overflow, the next `step` of each optimizer is skipped.

    Args:
        loss: The unscaled loss.
        optimizers: The optimizers whose parameters get gradients.
        loss_id: The index of the loss scale.
        model: Ignored; for compatibility.
        delay_unscale: Whether the gradients stay scaled until the next call without this option.
        delay_overflow_check: Whether the loss scale is updated only in the next call without this option.

    Yields:
        The scaled loss.

    Raises:
        RuntimeError: `initialize` was not called, or not with this optimizer.
        IndexError: There is no such `loss_id`.
    """
    if _state.enabled is None:
        raise RuntimeError(
            "Invoked 'with amp.scale_loss`, but internal Amp state has not been initialized: "
            "model, optimizer = amp.initialize(model, optimizer, opt_level=...) must be called before."
        )
    if not _state.enabled:
        yield loss
        return
    count = len(_state.scalers)
    if loss_id not in range(count):
        raise IndexError(
            f"loss_id={loss_id}: amp.initialize got num_losses={count}, so there are 0 to {count - 1}; "
            "pass a larger num_losses"
        )
    optimizer_list = to_list(optimizers, Optimizer, "optimizers", "torch.optim.Optimizer")
    gradients = [vars(optimizer).get("_amp") for optimizer in dict.fromkeys(optimizer_list)]  # each once
    if None in gradients:
        raise RuntimeError(
            "amp.scale_loss was given an optimizer that amp.initialize never saw; initialize it first."
        )
    scaler = _state.scalers[loss_id]
    with scaled_backward(scaler, gradients, delay=delay_unscale) as needs_update:
        yield scaler.scale_loss(loss)
    if needs_update and not delay_overflow_check:
        scaler.update()
    STATE.copies.clear()


def master_params(optimizer: Optimizer) -> Iterator[Tensor]:
    """Yield the parameters that the optimizer updates: fp32 masters under O2, else the model's own."""
    if optimizer in _state.optimizers:
        # A parameter group may have been added since, or a checkpoint loaded.
        vars(optimizer)["_amp"].synchronize()
    for group in optimizer.param_groups:
        yield from group["params"]


def state_dict(destination: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the state of the loss scalers as apex does; waits for the device.

    Args:
        destination: A dict to fill; None: a new one.

    Returns:
        {"loss_scaler0": {"loss_scale": float, "unskipped": int}, ...}.
    """
    state = {} if destination is None else destination
    for index, scaler in enumerate(_state.scalers):
        state[f"loss_scaler{index}"] = scaler.state_dict()
    return state


def load_state_dict(state_dict: dict[str, Any]) -> None:
    """Restore loss scales. Warns if their number differs.

    Raises:
        RuntimeError: The state has keys that apex does not write.
    """
    unexpected = [key for key in state_dict if "loss_scaler" not in key]
    if unexpected:
        keys = ", ".join(unexpected)
        raise RuntimeError(f"Error(s) in loading state_dict. Unexpected key(s) in state_dict: {keys}.")
    saved = len(state_dict)
    used = len(_state.scalers)
    if saved != used:
        warnings.warn(
            f"state_dict contains {saved} entries, while {used} loss_scalers are used; "
            "those that both have are loaded",
            stacklevel=2,
        )
    for scaler, state in zip(_state.scalers, state_dict.values(), strict=False):
        scaler.load_state_dict(state)


def register_half_function(module: Any, function: str) -> None:
    """Run `module.function` in fp16 under O1.

    Raises:
        ValueError: There is no such function.
    """
    patches.register(module, function, "half")


def register_float_function(module: Any, function: str) -> None:
    """Run `module.function` in fp32 under O1.

    Raises:
        ValueError: There is no such function.
    """
    patches.register(module, function, "float")


def register_promote_function(module: Any, function: str) -> None:
    """Run `module.function` in the widest dtype of its arguments under O1.

    Raises:
        ValueError: There is no such function.
    """
    patches.register(module, function, "promote")


def reset() -> None:
    """Undo casts, registered functions, and changes to models and optimizers, which become fp32."""
    global _state
    CastState.on = False
    CastState.device_type = "cpu"
    CastState.allow_banned = False
    patches.clear_registered()
    _state.undo.close()
    for optimizer in _state.optimizers:
        vars(optimizer)["_undo_amp"]()
    for model in _state.models:
        unwrap_forward(model)
        convert_network(model, torch.float32, keep_batchnorm_fp32=False)
    for optimizer in _state.optimizers:
        _recast_state(optimizer)
    _state = _State()
    STATE.copies.clear()


def _patch_optimizer(optimizer: Optimizer, gradients: OptimizerGradients, *, dynamic: bool) -> None:
    """Give the optimizer a `step` and a `zero_grad` that skip after an overflow and handle masters.

    All state is on the optimizer, so it is freed with the optimizer. A copied optimizer is a plain one,
    since PyTorch copies only state and groups.
    """
    own = {name: vars(optimizer).get(name) for name in ("step", "zero_grad")}  # wrapped by another library
    plain_step = optimizer.step
    plain_zero_grad = optimizer.zero_grad

    def step(optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        if "_amp" not in vars(optimizer):  # after a reset, if a scheduler has wrapped this `step`
            return plain_step(closure)
        if closure is not None:
            raise RuntimeError(
                "Currently, Amp does not support closure use with optimizers: call step() alone."
            )
        with disable_casts():  # casts do not apply to the optimizer's arithmetic
            result = gradients.step(plain_step, dynamic=dynamic)
        STATE.copies.clear()
        return result

    def zero_grad(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        if gradients.has_masters:
            gradients.clear()
        plain_zero_grad(*args, **kwargs)

    def undo() -> None:
        del vars(optimizer)["_amp"], vars(optimizer)["_undo_amp"]
        for name, before in own.items():
            if vars(optimizer)[name] is not patched[name]:  # another library has wrapped it since
                continue
            if before is None:
                delattr(optimizer, name)
            else:
                setattr(optimizer, name, before)
        gradients.release_masters()

    if hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # an earlier scheduler would warn
    # Bound methods, since a later scheduler wraps `step` by its descriptor.
    patched = {"step": MethodType(step, optimizer), "zero_grad": MethodType(zero_grad, optimizer)}
    vars(optimizer).update(patched, _amp=gradients, _undo_amp=undo)


def _recast_state(optimizer: Optimizer) -> None:
    """Cast the optimizer's state, such as momentum, to the dtype of its parameters by PyTorch's rules."""
    if optimizer.state:
        optimizer.load_state_dict(optimizer.state_dict())
