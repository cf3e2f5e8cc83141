"""The statistics of a comparison: small pure functions over one figure per seed, each to be checked by hand.

Ratios (speed, memory, energy) are taken of the logarithms, so that 2x and 0.5x are equally far from 1;
differences (accuracy) as they are. Both are paired by seed where two seeds or more are in common: same seed,
same first weights and order of images, so what the seeds share drops out. Intervals are Student's t. From one
seed there is none.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, final

from ampcompare.report.words import plural

CONFIDENCE = 0.95
TOST_LEVEL = 0.05  # of each of the two one-sided tests
T, WELCH = "t", "Welch t"  # kinds of interval

PerSeed = Mapping[Hashable, float]


@final
@dataclass(frozen=True)
class Estimate:
    """A value, its 95 % interval (None from one seed) and how both were found.

    `n` is the number of pairs, or of seeds on the smaller side where nothing can be paired; `left_out` how
    many seeds have no partner and were not used. `method` says in full how it was found, `kind` what sort of
    interval it is ("t", "Welch t"), `paired` whether seed by seed. `error` and `df` are the standard error
    and the degrees of freedom on the scale on which the interval was computed.
    """

    value: float
    low: float | None
    high: float | None
    n: int
    method: str
    kind: str
    paired: bool = False
    left_out: int = 0
    error: float | None = None
    df: float | None = None

    @property
    def has_interval(self) -> bool:
        """Whether there are seeds enough for an interval."""
        return self.low is not None

    @property
    def basis(self) -> str:
        """What it rests on, for a table's cell: `n = 3, paired t, 1 seed left out`."""
        how = f"{'paired ' * self.paired}{self.kind}" if self.has_interval else "no interval"
        left_out = f", {plural(self.left_out, 'seed')} left out" if self.left_out else ""
        return f"n = {self.n}, {how}{left_out}"


@dataclass(frozen=True)
class Equivalence:
    """Two one-sided t tests of |difference| < margin: the larger `p`, and the 90 % interval they are.

    `holds` at the 5 % level. That it does not hold is no evidence of a difference.
    """

    margin: float
    p: float
    low: float
    high: float

    @property
    def holds(self) -> bool:
        """Whether equivalence within the margin is shown."""
        return self.p < TOST_LEVEL

    @property
    def words(self) -> str:
        """What the test came to, for a table's cell."""
        return f"{'equivalent' if self.holds else 'not shown'} within {self.margin:g}"


def t_quantile(probability: float, df: float) -> float:
    """Quantile of Student's t. From `scipy.special`: `scipy.stats` takes a second to import."""
    from scipy.special import stdtrit

    return float(stdtrit(df, probability))


def t_tail(t: float, df: float) -> float:
    """P(T > t) of Student's t."""
    from scipy.special import stdtr

    return float(stdtr(df, -t))


def mean_of_seeds(pairs: Iterable[tuple[Hashable, float]]) -> dict[Hashable, float]:
    """One figure per seed; a seed that was run several times counts once, with its mean."""
    found: dict[Hashable, list[float]] = {}
    for seed, value in pairs:
        found.setdefault(seed, []).append(value)
    return {seed: statistics.fmean(values) for seed, values in found.items()}


def mean(values: PerSeed) -> Estimate | None:
    """The mean over seeds with a t interval; None without a value."""
    if not (numbers := list(values.values())):
        return None
    return _interval(statistics.fmean(numbers), *_error(numbers), len(numbers), "t interval over seeds", T)


def difference(ours: PerSeed, theirs: PerSeed) -> Estimate | None:
    """The mean of ours minus theirs, paired by seed where possible; None where one side has nothing."""
    if not ours or not theirs:
        return None
    seeds = [seed for seed in ours if seed in theirs]
    if len(seeds) > 1 or (len(seeds) == 1 and (len(ours) == 1 or len(theirs) == 1)):
        pairs = [ours[seed] - theirs[seed] for seed in seeds]
        left_out = len(ours) + len(theirs) - 2 * len(seeds)
        method = "paired by seed, t interval" if len(pairs) > 1 else "one pair, no interval"
        value, n = statistics.fmean(pairs), len(pairs)
        return _interval(value, *_error(pairs), n, method, T, paired=True, left_out=left_out)
    value = statistics.fmean(ours.values()) - statistics.fmean(theirs.values())
    n = min(len(ours), len(theirs))
    if n < 2:
        return _interval(value, None, None, n, "not paired: no seed in common; no interval", WELCH)
    error, df = _welch(list(ours.values()), list(theirs.values()))
    method = "not paired: fewer than two seeds in common; Welch's t interval"
    return _interval(value, error, df, n, method, WELCH)


def ratio(ours: PerSeed, theirs: PerSeed) -> Estimate | None:
    """The geometric mean of ours over theirs, by `difference` of the logarithms. Values must be above 0."""
    logs = [{seed: math.log(value) for seed, value in side.items() if value > 0} for side in (ours, theirs)]
    if (found := difference(*logs)) is None:
        return None
    found = transformed(found, math.exp)
    if len(ours) == len(theirs) == 1:  # as it is, without the rounding of a logarithm
        return replace(found, value=next(iter(ours.values())) / next(iter(theirs.values())))
    return found


def transformed(estimate: Estimate, change: Callable[[float], float]) -> Estimate:
    """The estimate on another scale, by a rising function; its error stays on the computation's scale."""
    low, high = (None if end is None else change(end) for end in (estimate.low, estimate.high))
    return replace(estimate, value=change(estimate.value), low=low, high=high)


def equivalence(found: Estimate, margin: float) -> Equivalence | None:
    """Two one-sided tests that a difference is within the margin (Schuirmann 1987); None from one seed."""
    if found.error is None or found.df is None:
        return None
    half = t_quantile(1 - TOST_LEVEL, found.df) * found.error
    if found.error == 0:  # the same difference for every seed
        p = 0.0 if abs(found.value) < margin else 1.0
    else:
        above = t_tail((found.value + margin) / found.error, found.df)
        p = max(above, t_tail((margin - found.value) / found.error, found.df))
    return Equivalence(margin, p, found.value - half, found.value + half)


def _error(values: list[float]) -> tuple[float | None, float | None]:
    """Standard error of the mean and its degrees of freedom."""
    if len(values) < 2:
        return None, None
    if min(values) == max(values):  # exactly 0, where rounding in the mean would leave 1e-17
        return 0.0, float(len(values) - 1)
    return statistics.stdev(values) / math.sqrt(len(values)), float(len(values) - 1)


def _welch(a: list[float], b: list[float]) -> tuple[float, float]:
    """Standard error of the difference of two means, with Welch and Satterthwaite's degrees of freedom."""
    parts = [(statistics.variance(side) / len(side), len(side) - 1) for side in (a, b)]
    total = sum(part for part, _ in parts)
    if total == 0:
        return 0.0, float(sum(df for _, df in parts))
    return math.sqrt(total), total**2 / sum(part**2 / df for part, df in parts)


def _interval(
    value: float, error: float | None, df: float | None, n: int, method: str, kind: str, **more: Any
) -> Estimate:
    if error is None or df is None:
        return Estimate(value, None, None, n, method, kind, **more)
    half = t_quantile((1 + CONFIDENCE) / 2, df) * error
    return Estimate(value, value - half, value + half, n, method, kind, error=error, df=df, **more)


def explained(kind: str) -> tuple[str, str]:
    """In full, for the page: intervals of this kind, and that of two means that cannot be paired."""
    if kind == T:
        return "Student's t over seeds, of the logarithm for ratios", "Welch's interval of the two means"
    return f"{kind} over seeds", f"the {kind} interval of the two means"
