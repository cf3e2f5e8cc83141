"""Problems of finished runs: metrics at chance, groups run one after the other, stalls, drift."""

import math
from collections.abc import Sequence
from itertools import combinations, permutations

import numpy as np
import pandas as pd

from ampcompare import metrics
from ampcompare.analysis.grouping.compared_metric import ComparedMetric
from ampcompare.analysis.grouping.distinguishing_settings import control_position
from ampcompare.analysis.grouping.groups import Group
from ampcompare.analysis.grouping.rounding import THROUGHPUT_RESOLUTION, count_decimals, relative_resolution
from ampcompare.analysis.grouping.run_metrics import CHANCE, IMAGES, SCORE, SECONDS, STEPS, THROUGHPUT
from ampcompare.analysis.grouping.run_table import CARDS, RUN, STARTED, is_machine_shared
from ampcompare.analysis.grouping.unevaluated_values import final_placeholder
from ampcompare.analysis.statistics.estimate import Estimate
from ampcompare.analysis.statistics.mean_difference import MIN_RUNS, estimate_difference, estimate_mean
from ampcompare.runtime.formatting import number, plural

MIN_EVALUATIONS = 3  # evaluations with the same value; two may agree by chance on a small test set
SATURATION = 0.995  # a constant accuracy above this is plausible
ERRORS_ABOVE_CHANCE = 3.0
ONE_SIDED_LEVEL = 0.9  # of a two-sided interval, each end of which is the bound of a one-sided test at 5%
MIN_LOSSES = 5  # logged losses; with fewer, the first and the last say little
FLAT_LOSS = 0.05  # a smaller relative change of the training loss is hardly any
MEDIAN_GAP = 0.03


def explain_constant(group: Group) -> str:
    """Return that the metric never changed in some runs, "" otherwise.

    A run is constant if at least three evaluations gave the same value, of an accuracy below 99.5%.
    """
    metric = group.metric
    runs = group.rows[RUN][group.rows[SCORE].notna()]
    ceiling = SATURATION * 100 if metric.is_accuracy else math.inf
    series = [run.values(metric.key) * metric.factor for run in runs]
    constant = [v for v in series if len(v) >= MIN_EVALUATIONS and np.ptp(v) == 0 and v[0] < ceiling]
    if not constant:
        return ""
    return f"the same at every evaluation in {len(constant)} of {plural(len(runs), 'run')}"


def explain_chance(group: Group) -> str:
    """Return that runs of a group are at chance level, "" otherwise.

    An accuracy says something only if it is shown to be above chance: above what always guessing the
    commonest class of the test set gives (`run_metrics.CHANCE`). A single run is above chance if its accuracy
    exceeds p + 3 sqrt(p (1 - p) / images), the binomial bound on the test set. Runs within this bound count
    as above chance only if three or more seeds together show it: a one-sided t test of their mean at 5%. Even
    then a run counts as at chance that is nearer to chance than to the mean of its group. Where the size of
    the test set is not known, the bound is p itself for fewer than three seeds, and the seeds decide
    otherwise.
    """
    rows = group.rows[group.rows[SCORE].notna() & (group.rows[CHANCE] > 0) & (group.rows[CHANCE] < 1)]
    if rows.empty:
        return ""
    p = rows[CHANCE].to_numpy(float)
    scores = rows[SCORE].to_numpy(float) / 100
    images = rows[IMAGES].to_numpy(float)
    sample = group.sample(SCORE) / 100
    has_seeds = len(sample) >= MIN_RUNS
    errors = np.sqrt(p * (1 - p) / np.where(images > 0, images, math.nan))
    bound = p + ERRORS_ABOVE_CHANCE * np.where(np.isnan(errors), math.inf if has_seeds else 0.0, errors)
    at_chance = scores <= bound
    mean = estimate_mean(sample, resolution=group.metric.resolution / 100)
    low = mean.at_level(ONE_SIDED_LEVEL).low if mean and has_seeds else None
    if mean is not None and low is not None and low > p.max():
        at_chance &= scores - p < mean.value - scores
    if not at_chance.any():
        return ""
    runs = plural(len(rows), "run")
    percent = f"{100 * p[at_chance][0]:.4g}%"
    return f"at chance level in {at_chance.sum()} of {runs} ({percent} by {_name_guess(rows)})"


def _name_guess(rows: pd.DataFrame) -> str:
    """Return which guess gives the accuracy that counts as chance."""
    commonest = [run.summary_number(metrics.COMMONEST_CLASS) for run in rows[RUN]]
    is_commonest = any(fraction == p for fraction, p in zip(commonest, rows[CHANCE], strict=True))
    return "always guessing the commonest class" if is_commonest else "guessing"


def describe_flat_loss(group: Group) -> str:
    """Return how the training loss of a run hardly moved: `from 1.386 to 1.360`; "" if every loss moved.

    The first logged loss is compared with the mean of the last tenth. Networks that were trained before, and
    language models, may begin at a low loss, so this is no reason to withhold a claim.
    """
    for run in group.records:
        losses = run.values(metrics.LOSS)
        losses = losses[np.isfinite(losses)]
        if len(losses) < MIN_LOSSES or losses[0] <= 0:
            continue
        last = float(losses[-max(1, len(losses) // 10) :].mean())
        if abs(last - losses[0]) < FLAT_LOSS * losses[0]:
            return f"from {number(float(losses[0]), 4)} to {number(last, 4)}"
    return ""


def explain_placeholder(group: Group) -> str:
    """Return that the compared value of some runs may be a placeholder and no result, "" if none may be.

    Our own training evaluates what it records, so there is none. Where less is better, 0 may be a result.
    """
    metric = group.metric
    if metric.is_best and not metric.lower_is_better:
        return ""
    scored = group.rows[RUN][group.rows[SCORE].notna()]
    runs = [run for run in scored if not run.is_own_training]
    series = [run.values(metric.key) for run in runs]
    ends = [final_placeholder(values) for values in series if len(values)]
    found = [end for end in ends if end is not None and not (end == 0 and metric.lower_is_better)]
    if not found:
        return ""
    return (
        f"exactly {found[0]:g} in the last row, after other values, in {len(found)} of "
        f"{plural(len(runs), 'run')}: perhaps it was not evaluated"
    )


def measure_resolution(rows: pd.DataFrame, metric: ComparedMetric) -> float:
    """Return the smallest possible difference between the metric of two runs, in the shown unit.

    For a metric that counts samples it is one sample of the smallest recorded test set, else the last logged
    decimal. 0 if neither is known: for a continuous metric, and if every value is an end of the scale (all 0
    or 1).
    """
    scored = rows[rows[SCORE].notna()]
    if metric.counts_samples and scored[IMAGES].notna().any():
        return float(metric.largest / scored[IMAGES].min())
    values = np.concatenate([run.values(metric.key) for run in scored[RUN]] or [[]])
    values = values[np.isfinite(values)]
    if metric.is_percentage and np.isin(values * metric.factor, (0.0, 100.0)).all():
        return 0.0
    decimals = count_decimals(values)
    return 0.0 if decimals is None else metric.factor * 10.0**-decimals


def measure_speed_resolution(groups: Sequence[Group]) -> float:
    """Return the smallest relative difference between two logged speeds; 0 if they were not rounded."""
    resolutions = [0.0]
    for run in (run for group in groups for run in group.rows[RUN]):
        recorded = run.summary_number(THROUGHPUT_RESOLUTION)
        if recorded is None:
            recorded = relative_resolution(run.values(metrics.THROUGHPUT))
        resolutions.append(recorded)
    return max(resolutions)


def other_speedup(group: Group, base: Group) -> float | None:
    """Return the speed-up by total training time, if that by median throughput differs by more than 3%.

    A median leaves out start-up and stalls. None if the speed-ups agree or are unknown.
    """
    speeds = []
    for side in (group, base):
        rows = side.rows[~is_machine_shared(side.rows)]
        rows = rows[(rows[THROUGHPUT] > 0) & (rows[STEPS] > 0) & (rows[SECONDS] > 1e-9)]
        speeds.append((np.log(rows[THROUGHPUT]).mean(), np.log(rows[STEPS] / rows[SECONDS]).mean()))
    # Both are NaN without such runs.
    by_median, by_seconds = np.diff(speeds[::-1], axis=0)[0]
    return math.exp(by_seconds) if abs(by_median - by_seconds) > math.log1p(MEDIAN_GAP) else None


def find_sequential_groups(groups: Sequence[Group]) -> list[str]:
    """Return the labels of groups that ran one after the other.

    All runs of one group were half done before any run of another began. A machine drifts, and no interval
    accounts for that.
    """
    spans = []  # start of the first run, time at which the last one was half done, label
    for group in groups:
        rows = group.rows[np.isfinite(group.rows[STARTED])]
        if len(rows) > 1:
            half_done = rows[STARTED] + rows[SECONDS].fillna(0.0) / 2
            spans.append((rows[STARTED].min(), half_done.max(), group.display_name))
    pairs = [(one, later) for one, later in permutations(sorted(spans), 2) if one[1] < later[0]]
    return list(dict.fromkeys(label for pair in pairs for _, _, label in pair))


def find_groups_on_other_cards(groups: Sequence[Group]) -> list[str]:
    """Return the labels of groups that share no card, or host, with another group."""
    cards = {g.display_name: frozenset().union(*g.rows[CARDS]) for g in groups if g.n and all(g.rows[CARDS])}
    pairs = [pair for pair in combinations(cards, 2) if not cards[pair[0]] & cards[pair[1]]]
    return list(dict.fromkeys(label for pair in pairs for label in pair))


def estimate_control_drift(control: Group, level: float) -> Estimate | None:
    """Return the throughput of the control's last runs relative to its first; not paired."""
    rows = control.rows[~is_machine_shared(control.rows)]
    arms = rows[RUN].map(control_position)
    last = rows[THROUGHPUT][arms == "last"].dropna()
    first = rows[THROUGHPUT][arms == "first"].dropna()
    estimate = estimate_difference(last, first, log=True)
    return None if estimate is None else estimate.at_level(level)
