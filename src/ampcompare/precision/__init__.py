"""Precision backends: everything that differs between fp32, native AMP, apex O1, O2 and pure fp16.

A built-in backend is one class and one entry in REGISTRY (`backends.py`), others come by name
(`ampcompare.plugins`). This module loads no torch, so that the command line can list backends at once.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from ampcompare import plugins
from ampcompare.precision.backends import (
    CANNOT_KEEP,
    MAX_DESCRIPTION,
    REGISTRY,
    BackendInfo,
    PrecisionOptions,
)

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from ampcompare.precision.base import Precision

# How a plug-in states its metadata, for messages.
_EXAMPLE = 'metadata = BackendInfo(label="...", description="...")'


def backend_of(name: str) -> BackendInfo:
    """Return the metadata of the backend `name`; a plug-in is imported for it.

    Raises UserError for a plug-in that is none, ValueError for a name that nobody has.
    """
    return REGISTRY[name] if name in REGISTRY else _plugin(name)[0]


def build_precision(name: str, device: torch.device | str = "cpu", **options: Any) -> Precision:
    """The backend `name` (built in, an entry point, `pkg.mod:Class`, `./file.py:Class`) on `device`.

    `options` are those of `PrecisionOptions` (loss_scale, init_scale, ...). With `keep_fp32` the backend's
    `prepare` raises CannotKeep for names that the network does not have. A backend that uses TF32 switches it
    on inside `training_context`.

    Raises ValueError for an unknown name, UserError for a plug-in that cannot be had and for a device without
    the TF32 that the backend uses, CannotKeep for `keep_fp32` under `tf32`.

    >>> import torch
    >>> from ampcompare.precision import build_precision
    >>> model = torch.nn.Linear(4, 1)
    >>> precision = build_precision("native", "cpu", init_scale=1024.0)
    >>> model, optimizer = precision.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    >>> with precision.training_context():
    ...     with precision.forward_context():
    ...         loss = model(torch.ones(2, 4)).square().mean()
    ...     precision.backward(loss)
    ...     precision.step(optimizer)
    >>> float(precision.scale_factor()), int(precision.skipped_steps())
    (1024.0, 0)
    """
    import torch

    from ampcompare.machine.device import check_tf32
    from ampcompare.precision.keep import CannotKeep, keep_as_asked

    blame: AbstractContextManager[None] = nullcontext()
    if name in REGISTRY:
        backend = REGISTRY[name]
        cls = resolve_name(f"{__name__}.{backend.target}")
    else:
        backend, cls, file = _plugin(name)
        what = f"{cls.__name__}(device, options) cannot be made"
        blame = plugins.blame(plugins.BACKENDS, name, what, file)
    known = [field.name for field in fields(PrecisionOptions)]
    for key in options.keys() - set(known):
        why = f"no option of a backend; expected one of {', '.join(known)}"
        raise ValueError(f"{key}={options[key]!r}: {why} (each type is a backend of its own)")
    settings = PrecisionOptions(**options)
    if settings.keep_fp32 and backend.is_fp32 and backend.uses_tf32:
        raise CannotKeep(f"precision.keep_fp32={settings.keep_fp32}: {CANNOT_KEEP.format(name)}")
    if backend.uses_tf32:
        check_tf32(torch.device(device), name)
    with blame:
        precision = cls(torch.device(device), settings)
        precision.metadata = backend
    if backend.uses_tf32:
        precision.tf32 = True
    if settings.keep_fp32 and not backend.is_fp32:
        keep_as_asked(precision, settings.keep_fp32)
    return precision


def _default_metadata(cls: type[Precision]) -> BackendInfo:
    """Return the metadata of a plug-in backend that has none.

    The label is the name of the class, the description is the first line of its docstring. The rest is that
    of the built-in class that it inherits from.
    """
    from ampcompare.precision.base import Precision

    entries = {resolve_name(f"{__name__}.{entry.target}"): entry for entry in reversed(REGISTRY.values())}
    parent = next(base for base in cls.__mro__ if base in entries)
    description = (cls.__doc__ or "").strip().partition("\n")[0].strip()
    if len(description) > MAX_DESCRIPTION:
        description = f"{description[: MAX_DESCRIPTION - 3].rstrip()}..."
    dtype = str(cls.input_dtype).removeprefix("torch.")
    own: dict[str, Any] = {"label": cls.__name__, "description": description or cls.__name__, "target": ""}
    if parent is Precision:  # not `none` itself: what the class computes in is its own affair
        return BackendInfo(**own, dtype=dtype, scales=cls.scale is not Precision.scale)
    return replace(entries[parent], **own, dtype=dtype)


def _plugin(name: str) -> tuple[BackendInfo, type[Precision], Path]:
    """Return the metadata of a plug-in backend, its class and its file."""
    from ampcompare.precision.base import Precision

    door = plugins.BACKENDS
    if not door.takes(name):
        raise ValueError(door.unknown(name, REGISTRY))
    found = plugins.load(door, name)
    cls = found.value
    if not isinstance(cls, type) or not issubclass(cls, Precision):
        what = cls.__name__ if isinstance(cls, type) else f"a {type(cls).__name__}"
        raise door.refusal(name, f"{what} is no backend; expected a class that inherits from Precision")
    if hasattr(cls, "declares"):
        raise door.refusal(name, f"{cls.__name__} has `declares`, which nothing reads; {door.renamed}")
    try:
        declared = _default_metadata(cls) if cls.metadata is Precision.metadata else cls.metadata
    except ValueError as problem:  # a name or a docstring that cannot be shown
        raise door.refusal(name, f"{problem}; give {cls.__name__} {_EXAMPLE}") from None
    if not isinstance(declared, BackendInfo):
        why = f"{cls.__name__}.metadata is {declared!r}"
        raise door.refusal(name, f"{why}; expected {_EXAMPLE}")
    if declared.label in REGISTRY:
        why = f"label={declared.label!r} is that of a built-in backend; give {cls.__name__} another"
        raise door.refusal(name, why)
    return replace(declared, source=found.source), cls, found.file
