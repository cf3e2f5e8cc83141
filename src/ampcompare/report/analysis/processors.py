"""What speeds of a CPU are worth: by what its half types ran on, as each run recorded it."""

from __future__ import annotations

from collections.abc import Sequence

from ampcompare.metrics import EMULATED, UNKNOWN
from ampcompare.report.runs.arithmetic import half_type, is_on_cpu, runs_on
from ampcompare.report.runs.figures import RunFigures
from ampcompare.report.words import capital, listed, some

MEMORY = "Peak memory is the resident memory of the whole process."
MOST_NAMED = 4
Said = tuple[str, str]
Ran = dict[tuple[str, str], list[str]]  # by half type and what it ran on: the labels of such runs


def about_cpu(figures: Sequence[RunFigures]) -> list[str]:
    """One caution where runs were on a CPU: what was emulated is named, what ran on units is not doubted."""
    on_cpu = [f for f in figures if is_on_cpu(f)]
    if not on_cpu:
        return []
    ran: Ran = {}
    for one in on_cpu:
        if half := half_type(one.run):
            labels = ran.setdefault((half, runs_on(one.run)), [])
            labels += [one.label] if one.label not in labels else []
    said = [*_emulated(ran), *_unknown(ran), *_on_units(ran)]
    if all(f.settings is not None for f in on_cpu):  # nobody says what they computed in, nor what memory is
        return ["Measured on a CPU: these speed figures are of this processor, not of a GPU."]
    first = said[0][0] if said else "in fp32: these speed figures are of this processor, not of a GPU"
    later = [capital(brief) for _, brief in said[1:]]
    return [" ".join([f"Measured on a CPU, {first}.", *(f"{brief}." for brief in later), MEMORY])]


# Each a sentence's rest where it comes first, and a whole one where it comes later.


def _emulated(ran: Ran) -> list[Said]:
    found = {half: labels for (half, on), labels in ran.items() if on == EMULATED}
    who = some(list(dict.fromkeys(label for labels in found.values() for label in labels)), MOST_NAMED)
    nothing = "say nothing about a GPU, nor about a processor with units for it"
    first = f"where {listed(found)} arithmetic is emulated: the speed figures of {who} {nothing}"
    return [(first, first)] if found else []


def _unknown(ran: Ran) -> list[Said]:
    found = [half for half, on in ran if on == UNKNOWN]
    first = (
        f"where {listed(found)} arithmetic is emulated unless the processor has units for it, which the "
        "records do not say: these speed figures say nothing about a GPU"
    )
    later = f"whether {listed(found)} arithmetic was emulated in other runs, the records do not say"
    return [(first, later)] if found else []


def _on_units(ran: Ran) -> list[Said]:
    found = [f"{half} on its own units ({on})" for half, on in ran if on not in (EMULATED, UNKNOWN)]
    first = f"with {listed(found)}: these speed figures are of this processor, not of a GPU"
    return [(first, f"it computed {listed(found)}")] if found else []
