"""Check whether groups trained equally long: quality after 10 epochs is not compared with quality after 4."""

from collections.abc import Sequence

from ampcompare.analysis.grouping.distinguishing_settings import BATCHES, first_values
from ampcompare.analysis.grouping.groups import Group
from ampcompare.analysis.grouping.run_metrics import EPOCHS, STEPS
from ampcompare.analysis.grouping.run_table import RUN
from ampcompare.runs.nested import as_float, is_number
from ampcompare.runtime import formatting

TOLERANCE = 0.02  # runs whose lengths lie within this fraction came equally far
UNITS = {EPOCHS: "epoch", STEPS: "step"}


def _describe_length(first: float, last: float, unit: str, planned: float | None) -> str:
    """Return `step 400 of 1,000`, `epoch 4`, `epochs 4 to 10`.

    Args:
        first: The last step or epoch of the shortest run.
        last: The last step or epoch of the longest run.
        planned: The planned number if all runs record the same one.
    """
    text = f"{unit} {formatting.count(last)}"
    if first != last:
        text = f"{unit}s {formatting.count(first)} to {formatting.count(last)}"
    return text if planned is None else f"{text} of {formatting.count(planned)}"


def _planned_steps(group: Group) -> float | None:
    """Return the planned number of steps, None unless all runs record the same one."""
    planned = [run.option("max_steps") for run in group.rows[RUN]]
    numbers = [as_float(value) for value in planned if is_number(value) and value > 0]
    return numbers[0] if len(numbers) == len(planned) and len({*numbers}) == 1 else None


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
    for column, unit in UNITS.items():
        lengths = [group.rows[column] for group in groups]
        is_unknown = any(values.empty or values.isna().any() for values in lengths)
        if is_unknown or (column == STEPS and all(map(_counts_epochs, groups))):
            continue
        ends = [(float(values.min()), float(values.max())) for values in lengths]
        shortest = min(first for first, _ in ends)
        longest = max(last for _, last in ends)
        if shortest >= (1 - TOLERANCE) * longest:
            is_one_equal = True
            continue
        texts = []
        for group, (first, last) in zip(groups, ends, strict=True):
            planned = _planned_steps(group) if column == STEPS else None
            texts.append(f"{group.display_name} ended at {_describe_length(first, last, unit, planned)}")
        difference = " and ".join(texts)
    runs = [run for group in groups for run in group.rows[RUN]]
    has_other_batch = len(first_values(runs, BATCHES)) > 1
    return "" if is_one_equal and has_other_batch else difference
