"""What only the chosen backend can say of the options, asked when a run starts: a plug-in is imported."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

from ampcompare.config.check import check_backend
from ampcompare.config.schema import LEAVES, Config
from ampcompare.plugins import left_out
from ampcompare.precision import backend_of


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
