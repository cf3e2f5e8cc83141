"""Modules kept in fp32 under any backend (`precision.keep_fp32`), each with all that is below it.

A kept module takes its inputs in fp32, computes with the backend's casts off and with fp32 weights, and gives
fp32. Under a backend with half weights, which casts nothing between modules, its outputs go back to the half
type where they came from one, so that the next layer can take them; a kept module that comes right behind
takes them as they were (`Seam`), so that nothing is rounded between two of them.

A module is kept wherever it is used, if any of its names is matched. Where weights are half, a weight has one
type: what shares one with a kept module is kept, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ampcompare.precision.base import Precision
from ampcompare.precision.forward import WrappedForward, each_floating
from ampcompare.precision.module_names import OPTION, CannotKeep, matching
from ampcompare.precision.options import PrecisionOptions

LOW = (torch.float16, torch.bfloat16)
_MARK = "_kept_in_fp32"  # on a module rather than in a list: whoever converts or casts modules can ask it


def is_kept(module: nn.Module) -> bool:
    """Whether the module computes in fp32 whatever the backend, itself or as a part of one that does."""
    return bool(vars(module).get(_MARK))


@dataclass
class Seam:
    """Between kept modules and the others: whether one runs (`inside`), and the outputs of the one that ran
    last, as others get them and as they were in fp32.

    Of the last one alone, and of none after the network's forward: that is memory for one output, for so
    long.
    """

    inside: bool = False
    pairs: list[tuple[Tensor, int, Tensor]] = field(default_factory=list)  # half, its version, fp32

    @contextmanager
    def crossed(self) -> Iterator[None]:
        self.inside = True
        try:
            yield
        finally:
            self.inside = False

    def narrow(self, x: Tensor, low: torch.dtype) -> Tensor:
        if x.dtype is not torch.float32:
            return x
        half = x.to(low)
        self.pairs.append((half, _version(half), x))
        return half

    def widen(self, x: Tensor) -> Tensor:
        if x.dtype not in LOW:
            return x
        for half, version, wide in self.pairs:
            if half is x and version == _version(x):  # what was changed in place since is another tensor
                return wide
        return x.float()

    def forget(self) -> None:
        self.pairs.clear()

    def __call__(self, *_: Any) -> None:
        """Forget, as the hook behind the network's forward."""
        self.forget()


def _version(x: Tensor) -> int:
    return -1 if x.is_inference() else x._version


class KeptForward(WrappedForward):
    """The forward of a kept module: half inputs widened, the casts off, fp32 outputs, or with `low` outputs
    in that type where an input was in it, or none was floating. Within another kept module it is as it was.
    """

    def __init__(self, model: nn.Module, *, seam: Seam, **how: Any) -> None:
        super().__init__(model, **how)
        self.seam = seam
        self.low: torch.dtype | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        seam, types = self.seam, set[torch.dtype]()
        if seam.inside:
            return super().__call__(*args, **kwargs)

        def widen(x: Tensor) -> Tensor:
            types.add(x.dtype)
            return seam.widen(x)

        args, kwargs = (each_floating(given, widen, _batch_as(torch.float32)) for given in (args, kwargs))
        seam.forget()
        with seam.crossed():
            result = super().__call__(*args, **kwargs)
        low = self.low
        if low is not None and (not types or types & set(LOW)):
            return each_floating(result, lambda x: seam.narrow(x, low), _batch_as(low))
        return each_floating(result, lambda x: x.float() if x.dtype in LOW else x, _as_it_is)


def _batch_as(dtype: torch.dtype) -> Callable[[Any], Any]:
    return lambda batch: batch.to(dtype)


def _as_it_is(value: Any) -> Any:
    return value


def _nothing(module: nn.Module, args: Any) -> None:
    """A hook that does nothing."""


@dataclass
class Kept:
    """The modules of a network that are kept: what is said of them, and what is left to do behind `prepare`.

    `names` are those that the patterns match, `also` those that had to be kept with them.
    """

    names: list[str]
    also: list[str]
    seam: Seam
    forwards: list[KeptForward]
    values: list[tuple[nn.Module, str, Tensor]]  # of their weights and buffers in fp32, as they were

    def settle(self, model: nn.Module, optimizer: Optimizer, low: torch.dtype | None) -> None:
        """Behind the backend's own preparation: fp32 weights again where it has made them half all the same,
        and `low`, in which the others go on where no cast is made for them.

        Raises CannotKeep where the optimizer no longer updates them: fp32 masters are there in their place.
        """
        updated = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for module, name, value in self.values:
            tensor = getattr(module, name)
            if tensor.dtype not in LOW:
                continue
            if isinstance(tensor, nn.Parameter) and tensor.requires_grad and id(tensor) not in updated:
                why = "the backend has put masters in the place of weights that are to stay in fp32"
                todo = "let its prepare convert the network by convert_network, which leaves them alone"
                raise CannotKeep(f"{OPTION}: {why}; {todo}")
            tensor.data = value
        self.values.clear()
        whole = is_kept(model)
        for forward in self.forwards:
            forward.low = None if whole else low
        outer = vars(model).get("forward")
        if isinstance(outer, WrappedForward):
            if whole:
                outer.inputs = None  # the network takes them as they are
            if outer.outputs is torch.float32:
                outer.widen = self.seam.widen  # those of a kept module as they were

    @property
    def record(self) -> list[str]:
        """The names as a record has them."""
        return [name or "(the whole network)" for name in (*self.names, *self.also)]


def keep(
    model: nn.Module,
    patterns: Sequence[str] | str,
    casts_off: Callable[..., AbstractContextManager[Any]],
    device_type: str,
    *,
    half_weights: bool = False,
) -> Kept:
    """Mark and wrap the modules that the patterns match, before the backend prepares the network.

    `casts_off(device_type)` is the context without the backend's casts, a function of a module or a class.
    Where `half_weights`, a weight has one type, and what shares one with a kept module is kept, too. Raises
    CannotKeep for a pattern without a module, and for a module that cannot be kept.
    """
    names = matching(model, patterns)
    by_name = dict(model.named_modules(remove_duplicate=False))
    kept = _below(by_name[name] for name in names)
    also: list[str] = []
    while more := _with_them(model, kept, half_weights):
        also += [name for name, module in by_name.items() if module in more]
        kept |= _below(more)
    seam, forwards, values = Seam(), [], []
    for name, module in model.named_modules():
        if module not in kept:
            continue
        if isinstance(module, torch.jit.ScriptModule):
            what = f"{name or 'the network'} is compiled by torch.jit, and its forward cannot be changed"
            raise CannotKeep(f"{OPTION}: {what}; leave it out")
        vars(module)[_MARK] = True
        module.forward = KeptForward(module, seam=seam, context=casts_off, device_type=device_type)
        forwards.append(module.forward)
        # PyTorch's fused evaluation of a transformer's layer reads weights of parts that it does not call. It
        # is not taken where there are hooks.
        module.register_forward_pre_hook(_nothing)
        own = _own_tensors(module).items() if half_weights else ()
        values += [(module, key, t.detach().clone()) for key, t in own if t.dtype is torch.float32]
    model.register_forward_hook(seam)
    return Kept(names, also, seam, forwards, values)


def _below(modules: Iterable[nn.Module]) -> set[nn.Module]:
    """The modules and all that is in them."""
    return {inner for module in modules for inner in module.modules()}


def _own_tensors(module: nn.Module) -> dict[str, Tensor]:
    """A module's floating parameters and buffers by their names, without those of its parts."""
    own = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    return {name: tensor for name, tensor in own if tensor.is_floating_point()}


def _with_them(model: nn.Module, kept: set[nn.Module], half_weights: bool) -> set[nn.Module]:
    """What cannot be of another type than the kept modules: who reads the weights of one without calling it,
    and, where weights are half, who has one of its weights as well.
    """
    others = [module for module in model.modules() if module not in kept]
    found: set[nn.Module] = {m for m in others if isinstance(m, nn.MultiheadAttention) and m.out_proj in kept}
    if half_weights:
        theirs = {id(t) for module in kept for t in _own_tensors(module).values()}
        found |= {m for m in others if any(id(t) in theirs for t in _own_tensors(m).values())}
    return found


def half_type(model: nn.Module, otherwise: torch.dtype) -> torch.dtype | None:
    """The half type of the network's weights; where none is left, `otherwise`, if that is one."""
    found = next((p.dtype for p in model.parameters() if p.dtype in LOW), otherwise)
    return found if found in LOW else None


def keep_as_asked(precision: Precision, options: PrecisionOptions) -> None:
    """Have `prepare` of a backend, ours or from elsewhere, keep the modules that the options name.

    Under plain fp32 there is nothing to do; the names have to be the network's all the same.
    """
    patterns, prepare, declares = options.keep_fp32 or (), precision.prepare, precision.declares

    @functools.wraps(prepare)
    def keeping(model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        if declares.is_fp32 or not options.enabled:
            matching(model, patterns)
            return prepare(model, optimizer)
        casts_off = getattr(precision, "casts_off", Precision.casts_off)
        kept = keep(model, patterns, casts_off, precision.device.type, half_weights=declares.half_weights)
        prepared = prepare(model, optimizer)
        low = half_type(model, precision.input_dtype) if declares.half_weights else None
        if isinstance(prepared, tuple) and len(prepared) == 2:  # who calls says what is wrong with another
            kept.settle(model, prepared[1], low)
        precision.kept = kept.record
        return prepared

    precision.prepare = keeping  # type: ignore[method-assign]
