"""What throughput and memory are counted in: images a second and MiB of our own runs, else as logged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ampcompare.data import sources
from ampcompare.records import RunRecord
from ampcompare.report.words import mib, number

IMAGES, SAMPLES = "images/s", "samples/s"
MIB = "MiB"


@dataclass(frozen=True)
class Quantities:
    """`speed` is the unit of throughput, `memory` that of memory, empty where nobody said one; `step` is what
    rows are counted by.
    """

    speed: str = IMAGES
    memory: str = MIB
    step: str = "optimizer step"

    @property
    def item(self) -> str:
        """What is counted, one of it: `image`, `sample`, `step`."""
        noun, per, _ = self.speed.rpartition("/")
        return noun.removesuffix("s") if per and noun else "item"

    @property
    def peak(self) -> str:
        """Peak memory at the head of a column: `peak MiB`."""
        return f"peak {self.memory or 'memory'}"

    @property
    def energy(self) -> str:
        """The unit of energy: `J per image`."""
        return f"J per {self.item}"

    def show_memory(self, value: float | None) -> str:
        """A peak in a cell, without its unit."""
        return mib(value) if self.memory == MIB else number(value)


OWN = Quantities()


def own_quantities(runs: Sequence[RunRecord]) -> Quantities:
    """Those of our own runs: samples where no run's data are images that we know of, as those of a loop of
    somebody's own, or of a source from elsewhere.
    """
    others = [_is_from_elsewhere(run) for run in runs]
    return Quantities(speed=SAMPLES if others and all(others) else IMAGES)


def _is_from_elsewhere(run: RunRecord) -> bool:
    source = run.option("data.source")
    named = isinstance(source, str) and bool(source)
    return source not in sources.SOURCES if named else run.option("recorder") is not None
