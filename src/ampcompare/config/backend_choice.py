"""What only the chosen parts can say of the options, asked when a run starts: a plug-in is imported."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

from ampcompare.config.check import check_backend
from ampcompare.config.schema import LEAVES, Config
from ampcompare.plugins import left_out
from ampcompare.precision import backend_of
from ampcompare.precision.backends import AUTO, REGISTRY, in_type


def remarks(config: Config) -> list[str]:
    """What is to be said of a backend and a type that were given, a line each: before `settle`, which fills
    in what was not; of options of our networks, where the network is another's.
    """
    return [*_remarks_on_backend(config), *_remarks_on_network(config)]


def _remarks_on_network(config: Config) -> list[str]:
    if config.model.name in LEAVES["model.name"].meta["choices"]:
        return []
    ours = {key: config.value(key) for key in ("model.stem", "model.zero_init_residual")}
    given = [(key, value) for key, value in ours.items() if value != LEAVES[key].default]
    why = f"is of our networks, and model.name={config.model.name} is none"
    return [f"{key}={value} has no effect: it {why}" for key, value in given]


def _remarks_on_backend(config: Config) -> list[str]:
    backend, precision = config.backend, config.precision
    is_fp32 = not precision.enabled or (backend in REGISTRY and REGISTRY[backend].is_fp32)
    if not (precision.keep_fp32 and is_fp32):
        return _remarks_on_type(config)
    why = f"backend={backend} is fp32" if precision.enabled else "precision.enabled=false is fp32"
    said = f"precision.keep_fp32={','.join(precision.keep_fp32)} has no effect: {why}"
    return [*_remarks_on_type(config), said]


def _remarks_on_type(config: Config) -> list[str]:
    dtype, backend = config.precision.dtype, config.backend
    if dtype in (None, AUTO) or not config.precision.enabled or backend not in REGISTRY:
        return []
    if REGISTRY[backend].is_fp32:
        return [f"precision.dtype={dtype!r} has no effect: backend={backend} is fp32"]
    if (same := in_type(backend, dtype)) != backend:
        return [f"backend={backend} precision.dtype={dtype} is backend={same}: reports call it so"]
    return []


def settle(config: Config) -> Config:
    """The config as it is recorded, with the backend's own type where none was given.

    What is installed and cannot be had is said on stderr. Raises UserError for a plug-in that
    cannot be had, and for options that the backend cannot take.
    """
    if os.environ.get("RANK", "0") == "0":
        doors = [(leaf.meta["door"], leaf.meta["choices"]) for leaf in LEAVES.values() if leaf.meta["door"]]
        for line in dict.fromkeys(line for door, built_in in doors for line in left_out(door, built_in)):
            sys.stderr.write(f"warning: {line}\n")
    backend = backend_of(config.backend)
    check_backend(config, backend)
    dtype = config.precision.dtype or backend.dtypes[0]
    return replace(config, precision=replace(config.precision, dtype=dtype))
