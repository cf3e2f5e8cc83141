"""What only the chosen backend can say of the options, asked when a run starts: a plug-in is imported."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

from ampcompare.config.check import check_backend
from ampcompare.config.schema import Config
from ampcompare.data.sources import SOURCES
from ampcompare.plugins import BACKENDS, DATA, left_out
from ampcompare.precision import REGISTRY, backend_of


def settle(config: Config) -> Config:
    """The config as it is recorded, with the backend's own type where none was given.

    What is installed and cannot be had is said on stderr. Raises UserError for a plug-in that
    cannot be had, and for options that the backend cannot take.
    """
    if os.environ.get("RANK", "0") == "0":
        for line in dict.fromkeys([*left_out(BACKENDS, REGISTRY), *left_out(DATA, SOURCES)]):
            sys.stderr.write(f"warning: {line}\n")
    backend = backend_of(config.backend)
    check_backend(config, backend)
    dtype = config.precision.dtype or backend.dtypes[0]
    return replace(config, precision=replace(config.precision, dtype=dtype))
