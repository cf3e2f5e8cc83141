"""Whether two backends answer test images differently more often than two seeds of one backend do."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

import numpy as np

FEWEST = 4  # runs a side: of 3 and 3 the smallest p that can be reached is 1 in 10
MOST_EXACT = 20_000  # divisions of the runs that are all tried; of more, so many are drawn
SEED = 223

Answers = Mapping[Hashable, np.ndarray]


@dataclass(frozen=True)
class Disagreement:
    """How many of `images` test images two runs answer differently, in the mean over pairs of runs.

    `between`: one run of each backend, `within`: two of the same, both of different seeds; `same_seed`: one
    of each backend with the seed in common. Each is None where there is no such pair. `p` is that of the test
    that the backend matters, None with the `reason`. `divisions` of the runs were tried, and `is_exact` says
    that there are no more. `runs` are the runs of either side.
    """

    images: int
    runs: tuple[int, int]
    between: float | None = None
    within: float | None = None
    same_seed: float | None = None
    p: float | None = None
    divisions: int = 0
    is_exact: bool = False
    reason: str = ""

    @property
    def method(self) -> str:
        """How it was tested, in words; why not, where it was not."""
        if self.p is None:
            return f"not tested: {self.reason}"
        tried = f"all {self.divisions:,}" if self.is_exact else f"{self.divisions:,} drawn"
        return f"permutation test over runs, {tried} divisions into {self.runs[0]} and {self.runs[1]}"


def disagreement(ours: Answers, theirs: Answers) -> Disagreement:
    """Compare the answers of two backends' runs: for each seed one class per test image, in the same order.

    If the backend did not matter, any division of the runs into two sides would be as likely as the one that
    was run. `p` is the share of divisions whose sides differ by at least as much from each other, beyond what
    they differ within themselves (as Anderson 2001 tests distances; the runs are what is divided, as the
    images of one run are not independent). Runs of one seed begin with the same weights, so that they are no
    pair of the test: they would make any two backends look alike.
    """
    runs = (len(ours), len(theirs))
    answers = [np.asarray(one) for one in (*ours.values(), *theirs.values())]
    if min(runs) == 0:
        return Disagreement(0, runs, reason="no predictions are recorded on one side")
    if len({one.shape for one in answers}) != 1 or answers[0].ndim != 1:
        return Disagreement(0, runs, reason="the runs did not answer the same number of test images")
    keys = [*ours, *theirs]
    counts = np.zeros((len(answers), len(answers)))
    for i, j in itertools.combinations(range(len(answers)), 2):
        counts[i, j] = counts[j, i] = np.count_nonzero(answers[i] != answers[j])
    is_pair = np.array([[a != b for b in keys] for a in keys])
    is_ours = np.arange(sum(runs)) < runs[0]
    across = is_ours[:, None] != is_ours[None, :]
    found = Disagreement(
        len(answers[0]),
        runs,
        between=_mean(counts[across & is_pair]),
        within=_mean(counts[~across & is_pair]),
        same_seed=_mean(counts[across & ~is_pair]),
    )
    if min(runs) < FEWEST:
        return replace(found, reason=f"it needs {FEWEST} runs of each, and there are {runs[0]} and {runs[1]}")
    sides, is_exact = _divisions(sum(runs), runs[0])
    excess = _excess(sides, counts, is_pair)
    as_run = _excess(is_ours[None, :], counts, is_pair)[0]
    at_least = int(np.count_nonzero(excess >= as_run - 1e-9 * (1 + abs(as_run))))
    # Of drawn ones the division as run is one more (Phipson and Smyth 2010): no p of 0.
    p = at_least / len(sides) if is_exact else (at_least + 1) / (len(sides) + 1)
    return replace(found, p=p, divisions=len(sides), is_exact=is_exact)


def _divisions(runs: int, ours: int) -> tuple[np.ndarray, bool]:
    """Which runs are ours in each division, (divisions, runs), and whether they are all there are."""
    if math.comb(runs, ours) <= MOST_EXACT:
        chosen = np.array(list(itertools.combinations(range(runs), ours)))
    else:
        places = np.random.default_rng(SEED).random((MOST_EXACT, runs))
        chosen = np.argsort(places, axis=1)[:, :ours]
    sides = np.zeros((len(chosen), runs), dtype=bool)
    np.put_along_axis(sides, chosen, True, axis=1)
    return sides, math.comb(runs, ours) <= MOST_EXACT


def _excess(sides: np.ndarray, counts: np.ndarray, is_pair: np.ndarray) -> np.ndarray:
    """For each division: the mean disagreement of pairs across it less that of pairs within its sides."""
    ours, theirs = sides.astype(float), (~sides).astype(float)

    def across(table: np.ndarray) -> np.ndarray:
        return np.einsum("di,ij,dj->d", ours, table, theirs, optimize=True)

    paired = is_pair.astype(float)
    pairs, differ = across(paired), across(counts * paired)
    whole, all_differ = paired.sum() / 2, (counts * paired).sum() / 2
    return differ / pairs - (all_differ - differ) / (whole - pairs)


def _mean(counts: np.ndarray) -> float | None:
    return float(counts.mean()) if counts.size else None
