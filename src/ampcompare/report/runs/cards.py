"""Which card or host a run had: two of one name are two, and what tells them apart is recorded as a hash."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ampcompare.records.tree import as_text
from ampcompare.report.runs.figures import RunFigures, environment_of

# Keys of `environment.machine`: the GPU tells more than the host it is in; a CPU is told by the host alone.
TELLING = ("gpu", "gpu_uuid", "host")
ALSO = ("others", "earlier")  # of a run on several processes, or one that went on elsewhere


def cards_of(figures: RunFigures) -> frozenset[str]:
    """What a run computed on: hashes of GPUs, of hosts where no GPU is named; empty if none is recorded."""
    environment = environment_of(figures.run)
    return frozenset(_named(environment.get("machine"))) or frozenset(_named(environment))


def cards(runs: Iterable[RunFigures]) -> frozenset[str] | None:
    """All cards of the runs; None where one does not tell its own."""
    each = [cards_of(run) for run in runs]
    return frozenset().union(*each) if each and all(each) else None


def _named(holder: Any) -> Iterator[str]:
    if not isinstance(holder, Mapping):
        return
    for key in TELLING:
        if isinstance(said := holder.get(key), str) and said:
            yield as_text(said)
            break
    for key in ALSO:
        several = holder.get(key)
        for one in several if isinstance(several, list | tuple) else ():
            yield from _named({k: one.get(k) for k in TELLING} if isinstance(one, Mapping) else None)
