"""Costs of a comparison, and the time and energy of an epoch under each backend."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ampcompare import metrics
from ampcompare.analysis.comparison import Comparison
from ampcompare.analysis.findings import Findings
from ampcompare.analysis.grouping.groups import Group
from ampcompare.analysis.grouping.run_metrics import EPOCHS, SPEED, STEPS, THROUGHPUT, summary_or_maximum
from ampcompare.analysis.grouping.run_table import DEVICE, NO_DEVICE, RUN
from ampcompare.runs import RunRecord
from ampcompare.runs.nested import as_float, is_number
from ampcompare.runtime.formatting import listed, number

PER_STEPS = 1000
EPOCH, STEP_BLOCK = "epoch", "1,000 steps"
SUBJECTS = {EPOCH: "An epoch takes", STEP_BLOCK: "1,000 steps take"}
# By the longest time of a comparison, in seconds: unit, seconds in a unit, significant digits.
TIME_FORMS = ((180.0, "s", 1.0, 2), (3 * 3600.0, "min", 60.0, 3), (math.inf, "h", 3600.0, 3))
ITEMS = ("image", "sample", "step")  # of a throughput whose items per step are known
JOULES_PER_IMAGE = "joules_per_image"
JOULES_PER_WATT_HOUR = 3600.0


@dataclass(frozen=True)
class WorkCost:
    """Time and energy of a fixed amount of training under one backend.

    Attributes:
        label: The label of the group.
        unit: The amount of training: EPOCH or STEP_BLOCK.
        seconds: Time of this amount, without evaluation.
        baseline_seconds: The same under the baseline.
        watt_hours: Energy of this amount; None if it is not recorded.
        baseline_watt_hours: The same under the baseline.
    """

    label: str
    unit: str
    seconds: float
    baseline_seconds: float
    watt_hours: float | None = None
    baseline_watt_hours: float | None = None


def sum_hours(findings: Findings) -> dict[str, float]:
    """Return the hours of all runs by the name of their device: of each process, if a run has several."""
    hours: dict[str, float] = {}
    for run, device in zip(findings.table[RUN], findings.table[DEVICE], strict=True):
        seconds = summary_or_maximum(run, metrics.ELAPSED)
        recorded: Any = run.environment.get("processes")
        processes = as_float(recorded) if is_number(recorded) else 1.0
        if not 1 <= processes < math.inf:
            processes = 1.0
        if seconds > 0:
            name = device or NO_DEVICE
            hours[name] = hours.get(name, 0.0) + seconds * processes / 3600
    return hours


def compare_work(findings: Findings) -> Iterator[tuple[Comparison, WorkCost]]:
    """Yield each comparison of a speed, with time and energy of an epoch of both groups.

    They follow from throughput, energy per sample and the number of samples, so they agree with the speed
    that the report shows: start-up and evaluation are not included. Where no whole epoch is recorded, it is
    the cost of 1,000 steps.
    """
    if findings.has_bench_speed and findings.bench is not None and not findings.bench.is_even:
        return  # the machine was not stable
    for comparison, base in findings.arms:
        if SPEED in comparison.estimates:
            cost = _compare_work(findings, comparison.group, base)
            if cost is not None:
                yield comparison, cost


def _compare_work(findings: Findings, group: Group, base: Group) -> WorkCost | None:
    """Return the cost of an epoch under a group and its baseline, else of 1,000 steps; None if unknown."""
    rate = group.estimates.get(THROUGHPUT)
    base_rate = base.estimates.get(THROUGHPUT)
    if rate is None or base_rate is None:
        return None
    has_energy = not findings.has_bench_speed  # the energy is that of the runs
    for unit in (EPOCH, STEP_BLOCK):
        items = _count_items(group, unit, findings.quantities.item)
        base_items = _count_items(base, unit, findings.quantities.item)
        if items is not None and base_items is not None:
            return WorkCost(
                group.label,
                unit,
                items / rate.value,
                base_items / base_rate.value,
                _watt_hours(group, items) if has_energy else None,
                _watt_hours(base, base_items) if has_energy else None,
            )
    return None


def _count_items(group: Group, unit: str, item: str) -> float | None:
    """Return how many of the items that throughput counts an epoch or 1,000 steps have; None if unknown."""
    if item not in ITEMS:
        return None
    items = np.ones(group.n) if item == "step" else np.array([_images_per_step(run) for run in group.records])
    if unit == EPOCH:
        epochs = group.rows[EPOCHS].where(group.rows[EPOCHS] >= 1)
        counts = (group.rows[STEPS] / epochs).to_numpy(float) * items
    else:
        counts = PER_STEPS * items
    counts = counts[np.isfinite(counts) & (counts > 0)]
    return float(counts.mean()) if len(counts) else None


def _watt_hours(group: Group, items: float) -> float | None:
    """Return the energy of so many samples in Wh; None if it is not recorded."""
    joules = group.estimates.get(JOULES_PER_IMAGE)
    return None if joules is None else joules.value * items / JOULES_PER_WATT_HOUR


def _images_per_step(run: RunRecord) -> float:
    """Return the number of samples of an optimizer step; NaN if it is not known.

    The batch size of another program's loop may be that of a micro-batch, or of one process.
    """
    if not run.is_own_training:
        return math.nan
    batch = run.option("batch_size")
    if not is_number(batch):
        return math.nan
    parts = run.option("training.accumulate")
    return as_float(batch) * (as_float(parts) if is_number(parts) else 1.0)


def describe_work(findings: Findings) -> list[str]:
    """Return a sentence for each amount of training and baseline, of the groups whose speed is decided.

    For example: `An epoch takes 71 s (1.8 Wh) with fp32 (none) and 41 s (0.9 Wh) with native.`
    """
    compared: dict[tuple[str, str], list[tuple[str, float, float | None]]] = {}
    for comparison, cost in compare_work(findings):
        base = comparison.baseline
        claim = comparison.claims.get(SPEED)
        if base is None or claim is None or not claim.shown:
            continue
        of_baseline = (base.display_name, cost.baseline_seconds, cost.baseline_watt_hours)
        costs = compared.setdefault((cost.unit, base.label), [of_baseline])
        costs.append((comparison.group.display_name, cost.seconds, cost.watt_hours))
    return [f"{SUBJECTS[unit]} {_describe_costs(costs)}." for (unit, _), costs in compared.items()]


def _describe_costs(costs: Sequence[tuple[str, float, float | None]]) -> str:
    """Return times in one unit, and energies where all are recorded.

    Args:
        costs: Name of a backend, seconds, and Wh; the baseline first.
    """
    longest = max(seconds for _, seconds, _ in costs)
    _, unit, seconds_per_unit, digits = next(form for form in TIME_FORMS if longest < form[0])
    has_energy = all(watt_hours is not None for _, _, watt_hours in costs)
    texts = []
    for name, seconds, watt_hours in costs:
        energy = f" ({number(watt_hours, 2)} Wh)" if has_energy else ""
        texts.append(f"{number(seconds / seconds_per_unit, digits)} {unit}{energy} with {name}")
    return listed(texts)


def costs_as_values(findings: Findings) -> dict[str, Any]:
    """Return hours by device, and the cost of an epoch by group, for JSON."""
    hours = [{"device": name, "hours": hours} for name, hours in sum_hours(findings).items()]
    return {"hours": hours, "work": [vars(cost) for _, cost in compare_work(findings)]}
