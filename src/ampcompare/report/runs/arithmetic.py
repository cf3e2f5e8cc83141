"""What a run on a CPU computed its half type with: units of the processor, or fp32 in its place."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ampcompare import metrics
from ampcompare.metrics import UNKNOWN
from ampcompare.records import RunRecord
from ampcompare.report.palette import SHORT
from ampcompare.report.runs.figures import RunFigures, dtype_of, environment_of

_UNIT = re.compile(r"[A-Za-z0-9_.+-]{1,30}")  # a processor's flag; records may hold anything


def is_on_cpu(figures: RunFigures) -> bool:
    """Whether it ran on a CPU, as recorded or at least asked for."""
    return figures.device_type == "cpu" or figures.run.option("device") == "cpu"


def half_type(run: RunRecord) -> str | None:
    """The run's type of less than 32 bits, as people say it (`bf16`); None of a run in fp32, or where neither
    record nor backend says a type.
    """
    return SHORT.get(dtype_of(run) or "")


def runs_on(run: RunRecord) -> str:
    """The flag of the unit that its half type ran on (`amx_bf16`), EMULATED, or UNKNOWN: an old record, or a
    processor that was not known.
    """
    recorded = environment_of(run).get(metrics.ARITHMETIC)
    half = half_type(run)
    long = next((name for name, short in SHORT.items() if short == half), "")
    found = recorded.get(long) if isinstance(recorded, Mapping) else None
    return found if isinstance(found, str) and _UNIT.fullmatch(found) else UNKNOWN
