"""Which card or host a run had: two of one name are two, and what tells them apart is recorded as a hash."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ampcompare.records.tree import as_text
from ampcompare.report.runs.figures import RunFigures, environment_of

# Keys of `environment.machine`: the GPU tells more than the host it is in; a CPU is told by the host alone.
TELLING = ("gpu", "gpu_uuid", "host")
OTHERS, EARLIER = "others", "earlier"  # of a run on several processes, or one that went on elsewhere


def now_of(figures: RunFigures) -> frozenset[str]:
    """What a run computed on in the end, without the cards of parts of it that ran elsewhere before: GPUs, or
    the hosts of CPUs. Empty for a GPU that is not named: its host may have others.
    """
    return _computing(figures, environment_of(figures.run).get("machine"))


def before_of(figures: RunFigures) -> list[frozenset[str]]:
    """What earlier parts of a run computed on that ran elsewhere, one after the other."""
    machine = environment_of(figures.run).get("machine")
    several = machine.get(EARLIER) if isinstance(machine, Mapping) else None
    return [_computing(figures, one) for one in _listed(several)]


def _computing(figures: RunFigures, machine: Any) -> frozenset[str]:
    telling = {"cpu": TELLING[-1:], "cuda": TELLING[:-1]}.get(figures.device_type, TELLING)
    return frozenset(_named(machine, (OTHERS,), telling))


def cards_of(figures: RunFigures) -> frozenset[str]:
    """What a run computed on: hashes of GPUs, of hosts where no GPU is named; empty if none is recorded."""
    environment = environment_of(figures.run)
    return frozenset(_named(environment.get("machine"))) or frozenset(_named(environment))


def cards(runs: Iterable[RunFigures]) -> frozenset[str] | None:
    """All cards of the runs; None where one does not tell its own."""
    each = [cards_of(run) for run in runs]
    return frozenset().union(*each) if each and all(each) else None


def _named(
    holder: Any, also: Sequence[str] = (OTHERS, EARLIER), telling: Sequence[str] = TELLING
) -> Iterator[str]:
    if not isinstance(holder, Mapping):
        return
    for key in telling:
        if isinstance(said := holder.get(key), str) and said:
            yield as_text(said)
            break
    for key in also:
        for one in _listed(holder.get(key)):
            inner = () if key == OTHERS else (OTHERS,)  # a part that ran elsewhere may have been several too
            yield from _named(one, inner, telling)


def _listed(several: Any) -> Sequence[Any]:
    return several if isinstance(several, list | tuple) else ()
