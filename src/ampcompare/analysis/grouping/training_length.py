"""Check whether groups trained equally long: quality after 10 epochs is not compared with quality after 4."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ampcompare.analysis.grouping.distinguishing_settings import BATCHES, first_values
from ampcompare.analysis.grouping.groups import Group
from ampcompare.analysis.grouping.run_metrics import EPOCHS, STEPS
from ampcompare.analysis.grouping.run_table import RUN
from ampcompare.runs.nested import as_float, is_number
from ampcompare.runtime import formatting

TOLERANCE = 0.02  # runs whose lengths lie within this fraction came equally far
UNITS = {STEPS: "step", EPOCHS: "epoch"}


@dataclass(frozen=True)
class TrainingLength:
    """The last step or epoch of the runs of a group.

    Attributes:
        unit: What is counted, `step` or `epoch`.
        first: The last step or epoch of the shortest run.
        last: The last step or epoch of the longest run.
        planned: The planned number if all runs record the same one, else NaN.
    """

    unit: str
    first: float
    last: float
    planned: float = math.nan

    @property
    def text(self) -> str:
        """The length in words: `step 400 of 1,000`, `epoch 4`, `epochs 4 to 10`."""
        text = f"{self.unit} {formatting.count(self.last)}"
        if self.first != self.last:
            text = f"{self.unit}s {formatting.count(self.first)} to {formatting.count(self.last)}"
        if math.isfinite(self.planned):
            text = f"{text} of {formatting.count(self.planned)}"
        return text


def measure_progress(group: Group, column: str) -> TrainingLength | None:
    """Return how far the counted runs came, in steps or epochs; None if a run does not record it."""
    values = group.rows[column]
    if values.empty or values.isna().any():
        return None
    planned = [run.option("max_steps") for run in group.rows[RUN]] if column == STEPS else []
    numbers = [as_float(value) for value in planned if is_number(value) and value > 0]
    is_common = len(numbers) == len(planned) and len({*numbers}) == 1
    common = numbers[0] if is_common else math.nan
    return TrainingLength(UNITS[column], float(values.min()), float(values.max()), common)


def _counts_epochs(group: Group) -> bool:
    """Return whether the steps of a group are its epochs, because its log counts nothing else."""
    return bool((group.rows[STEPS] == group.rows[EPOCHS]).all())


def has_early_stopping(groups: Sequence[Group]) -> bool:
    """Return whether a run trained with early stopping, so that runs may end at different lengths."""
    return any(run.is_early_stopped for group in groups for run in group.rows[RUN])


def unequal_lengths(groups: Sequence[Group]) -> str:
    """Return how far each group came if they did not come equally far, "" if they did.

    Lengths are equal if steps and epochs agree within TOLERANCE over all runs, as far as they are recorded.
    With different batch sizes only one of them can agree, and that is enough. Lengths are unknown if a run
    records neither.
    """
    difference = ""
    is_one_equal = False
    for column in (EPOCHS, STEPS):
        lengths = [measure_progress(group, column) for group in groups]
        recorded = [length for length in lengths if length is not None]
        if len(recorded) < len(groups) or (column == STEPS and all(map(_counts_epochs, groups))):
            continue
        shortest = min(length.first for length in recorded)
        longest = max(length.last for length in recorded)
        if shortest >= (1 - TOLERANCE) * longest:
            is_one_equal = True
            continue
        pairs = zip(groups, recorded, strict=True)
        difference = " and ".join(f"{group.display_name} ended at {length.text}" for group, length in pairs)
    runs = [run for group in groups for run in group.rows[RUN]]
    has_other_batch = len(first_values(runs, BATCHES)) > 1
    return "" if is_one_equal and has_other_batch else difference
