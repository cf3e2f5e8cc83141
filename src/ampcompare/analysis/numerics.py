"""Describe what happened to the numbers: loss scale, underflow, lost updates, activations."""

from collections.abc import Callable, Sequence

import numpy as np

from ampcompare import metrics
from ampcompare.analysis.grouping.backend_info import dtype_16bit_of
from ampcompare.analysis.grouping.groups import Group
from ampcompare.analysis.grouping.run_metrics import SKIPPED, STEPS, summary_or_maximum
from ampcompare.analysis.grouping.run_table import RUN, SEED, STARTED
from ampcompare.runs import RunRecord
from ampcompare.runs.nested import is_number
from ampcompare.runtime import formatting

LARGEST_FP16 = 65504.0
WORTH_SAYING = 0.005  # fraction of all elements below which underflow is not mentioned
NEAR = 16  # activations above 1/16 of fp16's largest number are mentioned
MAX_NAMED = 4
IN_FP16 = ", flushed to zero"
FLUSHED = "A gradient element that is flushed to zero changes no weight."


def describe_numerics(groups: Sequence[Group], diagnostics_option: str) -> dict[str, str]:
    """Return a sentence for each phenomenon that occurred; under "" a sentence if none did.

    Args:
        groups: The groups.
        diagnostics_option: The option that turns on gradient diagnostics, "" if the training program has
            none.
    """
    sentences = {}
    for name, (title, describe_group, meaning) in PHENOMENA.items():
        parts = formatting.group_by_reason(
            [(g.display_name, text) for g in groups if (text := describe_group(g))], MAX_NAMED
        )
        if parts:
            sentence = f"{title} {'; '.join(f'with {labels}: {text}' for labels, text in parts)}{meaning}"
            sentences[name] = f"{sentence} {FLUSHED}" if IN_FP16 in sentence else sentence
    if sentences:
        return sentences
    has_diagnostics = any(metrics.UNDERFLOW in run.logged for group in groups for run in group.records)
    if not has_diagnostics and not diagnostics_option:
        return {}
    extra = f"gradient diagnostics were off ({diagnostics_option} turns them on)"
    if has_diagnostics:
        extra = _describe_small_underflow(groups)
    is_known = any(group.rows[SKIPPED].notna().any() for group in groups)
    return {"": f"No step was skipped, and {extra}." if is_known else f"{formatting.capital(extra)}."}


def _describe_small_underflow(groups: Sequence[Group]) -> str:
    """Return how little underflowed in the measured steps, where it is not worth a sentence of its own."""
    runs = [run for group in groups for run in group.records]
    steps = formatting.plural(sum(len(run.values(metrics.UNDERFLOW)) for run in runs), "measured step")
    largest = max(
        _most(group, key) for group in groups for key in (metrics.UNDERFLOW, metrics.UNDERFLOW_UNSCALED)
    )
    if not largest:
        return f"no gradient element was below fp16's range in {steps}"
    return f"below {100 * WORTH_SAYING:g}% of the gradient elements were below fp16's range in {steps}"


def _scale(group: Group) -> str:
    """Return how the loss scale changed in the run with the lowest seed, and how many steps it skipped."""
    highest_skipped, run = group.rows[SKIPPED].max(), scaled_run(group)
    steps = group.rows[STEPS].max() if run is None else summary_or_maximum(run, metrics.STEP)
    of_steps = f" of {formatting.count(steps)} steps" if steps == steps else " steps"
    if run is None:
        return f"{formatting.count(float(highest_skipped))}{of_steps} skipped" if highest_skipped > 0 else ""
    own_skipped = summary_or_maximum(run, metrics.SKIPPED)
    skipped = f"{formatting.count(own_skipped)}{of_steps} skipped" if own_skipped > 0 else "no step skipped"
    if highest_skipped > own_skipped:
        skipped += f" ({formatting.count(float(highest_skipped))} in another run)"
    values = run.values(metrics.SCALE)
    values = values[np.isfinite(values) & (values > 0)]
    initial = run.option("precision.init_scale")
    is_dynamic = run.option("precision.loss_scale", "dynamic") == "dynamic"
    if is_dynamic and is_number(initial) and initial > 0:  # the scale may have changed before the first row
        values = np.append(float(initial), values)
    growths = int((np.diff(values) > 0).sum())
    first, last = (formatting.count(float(value)) for value in (values[0], values[-1]))
    course = (
        f"from {first} to {last} with {formatting.plural(growths, 'logged increase')}"
        if np.ptp(values)
        else f"constant at {first}"
    )
    return f"{course}, {skipped}"


def scaled_run(group: Group) -> RunRecord | None:
    """Return the run with the lowest seed among those with a loss scale above 1, None if there is none.

    Among runs without a seed, or with the same seed, it is the run that started first.
    """
    rows = group.rows.sort_values(STARTED, kind="stable")
    candidates = [pair for pair in zip(rows[SEED], rows[RUN], strict=True) if _is_scaled(pair[1])]
    return min(candidates, key=lambda pair: _order(pair[0]), default=(None, None))[1]


def _is_scaled(run: RunRecord) -> bool:
    return bool((run.values(metrics.SCALE) > 1).any())


def _order(seed: str | None) -> tuple[bool, int, str]:
    """Return a sort key: numbers by value, then other texts, then None."""
    if seed is None:
        return True, 0, ""
    return False, *((int(seed), "") if seed.isdecimal() else (10**20, seed))


def _most(group: Group, key: str) -> float:
    values = np.concatenate([np.empty(0), *(run.values(key) for run in group.records)])
    return float(np.max(values[np.isfinite(values)], initial=0.0))


def _underflow(group: Group) -> str:
    with_scale, without = _most(group, metrics.UNDERFLOW), _most(group, metrics.UNDERFLOW_UNSCALED)
    if max(with_scale, without) < WORTH_SAYING:
        return ""
    unscaled_text = (
        f" ({formatting.whole_percent(without)} without the loss scale)" if without > with_scale else ""
    )
    in_fp16 = bool(group.records) and all(dtype_16bit_of(run) == "fp16" for run in group.records)
    what = IN_FP16 if in_fp16 else " would be zero in fp16"
    return f"{formatting.whole_percent(with_scale)}{what}{unscaled_text}"


def _updates(group: Group) -> str:
    fractions = [pair for run in group.records if (pair := _at_peak_and_end(run))]
    if not fractions or not _most(group, metrics.LOST_UPDATES):
        return ""
    peak, end = (formatting.whole_percent(float(fraction)) for fraction in np.mean(fractions, axis=0))
    return f"{peak} at the peak learning rate, {end} at the end"


def _at_peak_and_end(run: RunRecord) -> tuple[float, float] | None:
    """Return the fraction of lost updates at the highest learning rate, and at the end."""
    lost, rate = run.numbers(metrics.LOST_UPDATES), run.numbers(metrics.LEARNING_RATE)
    rows = np.flatnonzero(np.isfinite(lost))
    if not len(rows):
        return None
    peak = int(np.nanargmax(rate)) if np.isfinite(rate).any() else int(rows[0])
    return float(lost[rows[np.abs(rows - peak).argmin()]]), float(lost[rows[-1]])


def _activations(group: Group) -> str:
    highest = _most(group, metrics.ACTIVATION_LARGEST)
    return formatting.number(highest) if highest >= LARGEST_FP16 / NEAR else ""


# By phenomenon: its title, the function that describes a group, and what it means.
PHENOMENA: dict[str, tuple[str, Callable[[Group], str], str]] = {
    "scale": (
        "Loss scale",
        _scale,
        ". A dynamic scale grows until gradients overflow. That step is skipped and the scale is halved.",
    ),
    "underflow": ("Largest fraction of gradient elements below fp16's range", _underflow, "."),
    "updates": (
        "Updates lost to rounding",
        _updates,
        ". Adding a small update can leave a 16-bit weight unchanged. Stochastic rounding prevents this on "
        "average.",
    ),
    "activations": ("Largest activations", _activations, ". The largest fp16 number is 65,504."),
}
