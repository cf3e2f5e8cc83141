"""What only the chosen parts can say of the options, asked when a run starts: a plug-in is imported."""

from __future__ import annotations

import os
import sys

from ampcompare.config.check import check_backend
from ampcompare.config.schema import LEAVES, Config
from ampcompare.plugins import left_out
from ampcompare.precision import backend_of
from ampcompare.precision.backends import REGISTRY


def remarks(config: Config) -> list[str]:
    """What is to be said of options that were given and have no effect, a line each."""
    backend, network = config.backend, config.model.name
    found = []
    if backend in REGISTRY and REGISTRY[backend].is_fp32:
        keys = [key for key in LEAVES if key.startswith("precision.")]
        found += _without_effect(config, keys, f"backend={backend} is fp32")
    if network not in LEAVES["model.name"].meta["choices"]:
        why = f"model.name={network} is none of our networks"
        found += _without_effect(config, ["model.stem", "model.zero_init_residual"], why)
    return found


def _without_effect(config: Config, keys: list[str], why: str) -> list[str]:
    given = [key for key in keys if config.value(key) != LEAVES[key].default]
    told = ", ".join(f"{key}={_shown(config.value(key))}" for key in given)
    return [f"{told} {'has' if len(given) == 1 else 'have'} no effect: {why}"] if given else []


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def settle(config: Config) -> None:
    """Ask the backend. What is installed and cannot be had is said on stderr. Raises UserError for a plug-in
    that cannot be had, and for options that the backend cannot take.
    """
    if os.environ.get("RANK", "0") == "0":
        doors = [(leaf.meta["door"], leaf.meta["choices"]) for leaf in LEAVES.values() if leaf.meta["door"]]
        for line in dict.fromkeys(line for door, built_in in doors for line in left_out(door, built_in)):
            sys.stderr.write(f"warning: {line}\n")
    check_backend(config, backend_of(config.backend))
