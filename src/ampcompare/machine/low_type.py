"""The type that a run computes in: as `precision.dtype` says, with `auto` the one that suits the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from ampcompare.config.load import Config
from ampcompare.machine.device import is_channels_last
from ampcompare.machine.probe import TYPES, Rates, probe
from ampcompare.machine.processes import World
from ampcompare.metrics import PRECISION_DTYPE
from ampcompare.precision import backend_of
from ampcompare.precision.backends import AUTO, Backend


@dataclass(frozen=True)
class Taken:
    """The type, and in a line what it was taken for where the config left that open."""

    dtype: str
    words: str = ""


def take_type(config: Config, device: torch.device, world: World | None = None) -> Taken:
    """The type of a run: float32 where the backend is, or is switched off to be, plain fp32.

    `auto` is float16 on a GPU, and on a CPU the fastest of the types that the backend takes, as measured
    (`probe.py`). Of several processes the first one decides.
    """
    backend, given = backend_of(config.backend), config.precision.dtype
    if backend.is_fp32 or not config.precision.enabled:
        taken, why = "float32", "as this run is plain fp32"
    elif given != AUTO:
        return Taken(given or backend.dtypes[0])
    elif not backend.dtypes[1:]:
        taken, why = backend.dtypes[0], f"the only one that backend={config.backend} takes"
    elif device.type != "cpu":
        taken = "float16" if "float16" in backend.dtypes else backend.dtypes[0]
        why = "as on any GPU" if taken == "float16" else f"the own one of backend={config.backend}"
    else:
        taken, why = _measured(config, backend, device, world or World())
    return Taken(taken, f"precision.dtype={AUTO}: {taken}, {why}" if given == AUTO else "")


def with_type(config: Config, taken: str) -> Config:
    """The config with the type in the place of `auto`: to build a backend from, never to be recorded."""
    if config.precision.dtype != AUTO:
        return config
    dtypes = backend_of(config.backend).dtypes  # fp32 has names for what it does not do
    dtype = taken if taken in dtypes else dtypes[0]
    return replace(config, precision=replace(config.precision, dtype=dtype))


def first_type(config: Config, state: Mapping[str, Any]) -> Taken | None:
    """What `auto` came to in the first part of a run that goes on; None where there is nothing to keep."""
    before = state.get("environment", {}).get(PRECISION_DTYPE)
    if config.precision.dtype != AUTO or before not in (*backend_of(config.backend).dtypes, "float32"):
        return None
    return Taken(before, f"precision.dtype={AUTO}: {before}, as in this run's first part")


def _measured(config: Config, backend: Backend, device: torch.device, world: World) -> tuple[str, str]:
    dtypes = [dtype for dtype in backend.dtypes if dtype in TYPES] or list(backend.dtypes)
    said = ["", ""]
    if world.leads:
        rates = probe(device, dtypes, channels_last=is_channels_last(config, device))
        taken = rates.fastest(dtypes)
        said = [taken, _why(taken, dtypes, rates)]
    taken, why = world.share(said)
    return taken, why


def _why(taken: str, dtypes: list[str], rates: Rates) -> str:
    others = "".join(f", in {dtype} at {rates.relative(dtype):.2g}" for dtype in dtypes if dtype != taken)
    which = "faster" if len(dtypes) == 2 else "fastest"
    rate = f"a training convolution runs at {rates.relative(taken):.2g} times fp32's rate"
    return f"the {which} one here: {rate}{others}"
