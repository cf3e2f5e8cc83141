"""Precision backends: everything that differs between fp32, native AMP, apex O1, O2 and pure fp16.

A built-in backend is a class and an entry in REGISTRY (`registry.py`), its `metadata`. Other backends are
plug-ins (`ampcompare.plugins`). This module does not import torch, so that the command line starts quickly.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from ampcompare import plugins
from ampcompare.precision.registry import (
    NO_KEEP_FP32_UNDER_TF32,
    PLAIN,
    REGISTRY,
    BackendInfo,
    PrecisionOptions,
    complete_metadata,
    note_source,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

    from ampcompare.precision.base import Precision

# An example of a plug-in's metadata, for messages.
_EXAMPLE = 'metadata = BackendInfo(label="...", description="...")'


def get_backend(name: str) -> BackendInfo:
    """Return the metadata of a backend. A plug-in is imported.

    Raises:
        UserError: The plug-in cannot be used.
        ValueError: No backend has this name.
    """
    return REGISTRY[name] if name in REGISTRY else _load_plugin(name)[0]


def build_precision(name: str, device: torch.device | str = "cpu", **options: Any) -> Precision:
    """Return the backend `name` on `device`.

    Args:
        name: A built-in backend, `pkg.mod:Class` or `./file.py:Class`.
        device: Where the model trains.
        **options: Those of `PrecisionOptions` (loss_scale, init_scale, keep_fp32, ...).

    Returns:
        The backend. Its `prepare` fits a model and its optimizer to it and keeps the modules of `keep_fp32`
        in fp32. Train inside its `training_context`.

    Raises:
        ValueError: An unknown name or option, or `tf32` that contradicts an fp32 backend.
        UserError: A plug-in that cannot be used, or a device without the TF32 that the backend uses.
        KeepFp32Error: `keep_fp32` under a backend that uses TF32 in every module.

    >>> import torch
    >>> from ampcompare.precision import build_precision
    >>> model = torch.nn.Linear(4, 1)
    >>> precision = build_precision("native", "cpu", init_scale=1024.0)
    >>> model, optimizer = precision.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    >>> with precision.training_context():
    ...     with precision.forward_context():
    ...         loss = model(torch.ones(2, 4)).square().mean()
    ...     precision.backward(loss)
    ...     skipped = precision.step(optimizer)
    >>> float(precision.scale_factor()), int(skipped)
    (1024.0, 0)
    """
    import torch

    from ampcompare.system.device import check_tf32

    plugin_errors: AbstractContextManager[None] = nullcontext()
    if name in REGISTRY:
        backend = REGISTRY[name]
        cls = resolve_name(f"{__name__}.{backend.target}")
    else:
        backend, cls, file = _load_plugin(name)
        failure = f"{cls.__name__}(device, options) cannot be made"
        plugin_errors = plugins.wrap_plugin_errors(plugins.BACKENDS, name, failure, file)
    settings = _read_options(name, backend, options)
    if backend.uses_tf32:
        check_tf32(torch.device(device), name)
    with plugin_errors:
        return cls(torch.device(device), settings)


def _read_options(name: str, backend: BackendInfo, options: Mapping[str, Any]) -> PrecisionOptions:
    """Return the options of a backend, checked: see `build_precision`."""
    from ampcompare.precision.keep_fp32 import KeepFp32Error

    known = [field.name for field in fields(PrecisionOptions)]
    for key in options.keys() - set(known):
        raise ValueError(
            f"{key}={options[key]!r}: not an option of a backend; expected one of {', '.join(known)} "
            "(for another dtype, use another backend)"
        )
    settings = PrecisionOptions(**options)
    if backend.is_fp32 and settings.tf32 not in (None, backend.uses_tf32):
        other = PLAIN if backend.uses_tf32 else "tf32"
        raise ValueError(f"tf32={settings.tf32}: contradicts backend={name}; use backend={other}")
    if settings.keep_fp32 and backend.is_fp32 and backend.uses_tf32:
        raise KeepFp32Error(
            f"precision.keep_fp32={settings.keep_fp32}: {NO_KEEP_FP32_UNDER_TF32.format(name)}"
        )
    return settings


def _load_plugin(name: str) -> tuple[BackendInfo, type[Precision], Path]:
    """Return the metadata of a plug-in backend, its class and its file."""
    from ampcompare.precision.base import Precision

    kind = plugins.BACKENDS
    if not kind.accepts(name):
        raise ValueError(kind.make_unknown_error(name, REGISTRY))
    plugin = plugins.load(kind, name)
    cls = plugin.value
    if not isinstance(cls, type) or not issubclass(cls, Precision):
        class_name = cls.__name__ if isinstance(cls, type) else f"a {type(cls).__name__}"
        raise kind.make_error(
            name, f"{class_name} is not a backend; expected a class that inherits from Precision"
        )
    if hasattr(cls, "declares"):
        raise kind.make_error(name, f"{cls.__name__} has `declares`, which nothing reads; write {_EXAMPLE}")
    if cls.prepare is not Precision.prepare:
        raise kind.make_error(
            name,
            f"{cls.__name__} overrides prepare, which is final, because it also keeps modules in fp32; "
            "override convert instead",
        )
    if not isinstance(cls.metadata, BackendInfo):
        raise kind.make_error(name, f"{cls.__name__}.metadata is {cls.metadata!r}; expected {_EXAMPLE}")
    note_source(cls, plugin.source)
    try:
        metadata = complete_metadata(cls, Precision)
    except ValueError as problem:  # a name or a docstring that cannot be shown
        raise kind.make_error(name, f"{problem}; give {cls.__name__} {_EXAMPLE}") from None
    if metadata.label in REGISTRY:
        raise kind.make_error(
            name,
            f"label={metadata.label!r} is the label of a built-in backend; give {cls.__name__} another label",
        )
    return metadata, cls, plugin.file
