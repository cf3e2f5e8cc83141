"""How often a report claims what is not so: experiments of which nothing differs in truth, all through
`analyse_runs`. Sixty of each in every run of the tests; the slow ones hold the rates themselves.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from report.simulated.records import experiment, record
from scipy import stats

from ampcompare.records import RunRecord
from ampcompare.report import analyse_runs
from ampcompare.report.analysis.analysis import Analysis
from ampcompare.report.analysis.comparison import EQUIVALENT
from ampcompare.report.runs.checks import leaves_out
from ampcompare.sweeps.order import in_blocks

FEW, MANY = 60, 1_000
RUN_TO_RUN = 0.005  # standard deviation of the logarithm of throughput
MARGIN = 0.5
DRIFT = 0.03
Chance = np.random.Generator


def cases(*slow: tuple[int, ...], fast: tuple[int, ...]) -> list:
    """Parameters with their number of sets: few in every run of the tests, many where time allows."""
    return [(*fast, FEW), *(pytest.param(*case, MANY, marks=pytest.mark.slow) for case in slow)]


def most(sets: int, share: float = 0.05) -> float:
    """The number of wrong sets that a true rate of `share` exceeds in one case of a hundred."""
    return float(stats.binom.ppf(0.99, sets, share))


def nothing_differs(chance: Chance, k: int, n: int, margin: float = 0.0) -> list[np.ndarray]:
    """Speeds, memory, accuracies (backends, seeds): seeds and runs differ, backends do not, or (`margin`)
    by a loss or gain of just the margin."""
    sides = chance.normal(0, 1, (3, k + 1, n)) + chance.normal(0, 1, (3, 1, n))
    truth = margin * np.sign(chance.normal(0, 1, (k + 1, 1))) * (np.arange(k + 1) > 0)[:, None]
    return [np.exp(4.6 + RUN_TO_RUN * sides[0]), 4000 + 3 * sides[1], 93 + 0.1 * sides[2] + truth]


def claimed(analysis: Analysis) -> set[str]:
    """The questions of which a difference is claimed of any group."""
    claims = [claim for c in analysis.comparisons for claim in c.claims.values()]
    return {claim.question for claim in claims if set(claim.shown) - {EQUIVALENT}}


def check(wrong: Counter[str], sets: int, share: float = 0.05) -> None:
    print({name: count / sets for name, count in wrong.items()})
    assert max(wrong.values(), default=0) <= most(sets, share), wrong


@pytest.mark.parametrize(("k", "n", "sets"), cases((1, 3), (3, 5), fast=(2, 4)))
def test_a_difference_is_claimed_of_each_question_in_at_most_one_set_in_twenty(k, n, sets):
    chance, wrong = np.random.default_rng([k, n]), Counter()
    for _ in range(sets):
        wrong.update(claimed(analyse_runs(experiment(*nothing_differs(chance, k, n)))))
    check(wrong, sets)


@pytest.mark.parametrize(("k", "n", "sets"), cases((1, 5), (2, 5), fast=(1, 4)))
def test_equality_is_claimed_of_a_loss_of_the_margin_in_at_most_one_set_in_twenty(k, n, sets):
    chance, wrong = np.random.default_rng(3), Counter()
    for _ in range(sets):
        found = analyse_runs(experiment(*nothing_differs(chance, k, n, MARGIN)), margin=MARGIN)
        wrong.update({EQUIVALENT} & {word for c in found.comparisons for word in c.shown})
    check(wrong, sets)


@pytest.mark.parametrize(("k", "middle", "last", "sets"), cases((2, 6, 10), fast=(1, 4, 6)))
def test_looks_together_err_in_at_most_one_set_in_twenty(k, middle, last, sets):
    """A sweep that is looked at three times, at 3 seeds first, and ends with the first claim."""
    chance, wrong, looks = np.random.default_rng(last), Counter(), (3, middle, last)
    for _ in range(sets):
        every = nothing_differs(chance, k, last)
        at_a_look = set()
        for n in looks:
            runs = experiment(*(side[:, :n] for side in every), plan={"looks": list(looks)})
            at_a_look |= claimed(analyse_runs(runs))
        wrong.update(at_a_look)
    check(wrong, sets)


def drifting(chance: Chance, name: str, k: int, n: int, *, is_drawn: bool = True) -> list[RunRecord]:
    """Runs one after the other on a machine that slows by 3 % over the whole."""
    order = in_blocks(name, range(k + 1), range(n))
    places = np.empty((k + 1, n))
    for moment, run in enumerate(order if is_drawn else np.ndindex(k + 1, n)):
        places[run] = moment
    logs = chance.normal(0, RUN_TO_RUN, places.shape) - DRIFT * places / (places.size - 1)
    return experiment(100 * np.exp(logs), places=places)


@pytest.mark.parametrize(("k", "n", "sets"), cases((1, 3), (2, 5), (3, 7), fast=(1, 3)))
def test_in_a_drawn_order_drift_passes_for_a_difference_in_at_most_seven_of_a_hundred(k, n, sets):
    chance = np.random.default_rng([k, n, 1])
    wrong = Counter(
        q for i in range(sets) for q in claimed(analyse_runs(drifting(chance, f"sweep {i}", k, n)))
    )
    check(wrong, sets, 0.07)


def test_one_backend_behind_the_other_drift_does_pass_for_a_difference():
    """What the drawn order is there for."""
    chance = np.random.default_rng(1)
    found = [claimed(analyse_runs(drifting(chance, "", 2, 5, is_drawn=False))) for _ in range(20)]
    assert sum("speed" in one for one in found) >= 15


def with_control(chance: Chance, k: int, n: int, drift: float) -> list[RunRecord]:
    """The baseline and `k` backends between bookends: each seed of the control once at either end."""
    runs, total = [], (k + 3) * n
    order = [("none", seed, "first") for seed in range(n)]
    backends = ["none", "native", "apex_o1", "fp16"][: k + 1]
    order += [(backend, seed, "") for backend, seed in in_blocks("sweep", backends, range(n))]
    order += [("none", seed, "last") for seed in range(n)]
    for place, (backend, seed, arm) in enumerate(order):
        speed = 100 * np.exp(chance.normal(0, RUN_TO_RUN) - drift * place / (total - 1))
        one = record(backend, seed, speed=speed, place=place, plan={"control": "bookends"})
        one.id += arm
        one.config["plan"] |= {"arm": arm} if arm else {}
        runs.append(one)
    return runs


def alarms(analysis: Analysis) -> bool:
    (control,) = [c for c in analysis.comparisons if c.is_control]
    return leaves_out(control.drift, 1.0)


@pytest.mark.parametrize(("k", "n", "sets"), cases((1, 3), (1, 6), fast=(1, 3)))
def test_the_control_alarms_without_a_drift_in_at_most_one_sweep_in_twenty(k, n, sets):
    chance, wrong = np.random.default_rng([k, n, 8]), Counter()
    for _ in range(sets):
        found = analyse_runs(with_control(chance, k, n, 0.0))
        wrong.update(claimed(found) | ({"alarm"} if alarms(found) else set()))
    check(wrong, sets)


def test_the_control_sees_a_drift_and_holds_gains_back():
    """All that is faster than the baseline must be so than its control, too: of noise less is claimed."""
    chance = np.random.default_rng(9)
    analyses = [analyse_runs(with_control(chance, 1, 4, DRIFT)) for _ in range(15)]
    assert sum(map(alarms, analyses)) >= 12
    for analysis in analyses:
        assert alarms(analysis) == any("the control changed" in remark for remark in analysis.remarks)
    assert not any(c.is_faster for analysis in analyses for c in analysis.comparisons)
