"""The rules that the simulations use are those of the report: the same numbers, case by case."""

from __future__ import annotations

import numpy as np
import pytest
from report.simulated import rules
from report.simulated.records import record

from ampcompare.report import analyse_runs
from ampcompare.report.statistics import family
from ampcompare.report.statistics.samples import Estimate, difference, equivalence

MARGIN = 0.8


def keyed(values: np.ndarray, pairs: int, side: int) -> dict:
    return {(i if i < pairs else (side, i)): float(v) for i, v in enumerate(values)}


@pytest.mark.parametrize(("n", "m", "pairs"), [(5, 5, 5), (4, 6, 0), (10, 10, 2), (6, 5, 3), (5, 4, 4)])
def test_value_error_and_p_are_those_of_the_report(n, m, pairs):
    generator = np.random.default_rng(n)
    ours, theirs = generator.normal(0.3, 1, (20, n)), generator.normal(0, 2, (20, m))
    if n == m == pairs:
        value, error, df = rules.paired(ours - theirs)
    else:
        value, error, df = rules.partly_paired(ours, theirs, pairs)
    p, same = rules.p_two_sided(value, error, df), rules.p_equivalent(value, error, df, MARGIN)
    half = rules.half_width(error, df, 0.02)
    for i in range(20):
        real = difference(keyed(ours[i], pairs, 0), keyed(theirs[i], pairs, 1))
        test = equivalence(real, MARGIN)
        assert (value[i], error[i], p[i], same[i]) == pytest.approx(
            (real.value, real.error, real.p_of(0.0), test.p)
        )
        assert half[i] == pytest.approx(real.at(0.98).high - real.value)
    assert isinstance(real, Estimate)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_levels_and_rejections_are_those_of_the_report(k):
    p = np.random.default_rng(k).beta(0.3, 2, (300, k))
    levels, rejected = rules.holm(p, 0.04)
    for i in range(300):
        real = family.holm(dict(enumerate(p[i])), 0.04)
        assert [real[j].rejected for j in range(k)] == list(rejected[i])
        assert [real[j].level for j in range(k)] == pytest.approx(list(levels[i]))


@pytest.mark.parametrize(
    ("plan", "two_sided", "one_sided"),
    [({}, 0.05, 0.05), ({"looks": [3, 6, 10]}, 0.0194, 0.0204)],
    ids=["no looks", "looks"],
)
@pytest.mark.parametrize("k", [1, 3])
def test_a_whole_report_tests_its_claims_so(k, plan, two_sided, one_sided):
    """From records to claims: families and looks as they are simulated, by question over all backends."""
    generator = np.random.default_rng(k)
    n, backends = 3, ["none", "native", "apex_o1", "fp16"][: k + 1]
    for _ in range(15):
        speeds = np.exp(generator.normal(4.6, 0.004, (k + 1, n)) + 0.01 * np.arange(k + 1)[:, None])
        last = generator.normal(0.93, 0.001, (k + 1, n))
        runs = [
            record(b, s, speed=speeds[i, s], accuracies=[0.5, 0.8, last[i, s]], plan=plan)
            for i, b in enumerate(backends)
            for s in range(n)
        ]
        comparisons = analyse_runs(runs, margin=MARGIN).comparisons
        found = rules.paired(np.log(speeds[1:] / speeds[0]))
        check(comparisons, "speed", rules.p_two_sided(*found), two_sided)
        found = rules.paired(100 * (last[1:] - last[0]))
        check(comparisons, "quality", rules.p_two_sided(*found), two_sided)
        check(comparisons, "equivalence", rules.p_equivalent(*found, MARGIN), one_sided)


def check(comparisons, question: str, p: np.ndarray, alpha: float) -> None:
    levels, rejected = rules.holm(p[None], alpha)
    claims = [comparison.claims[question] for comparison in comparisons]
    assert [claim.p for claim in claims] == pytest.approx(list(p))
    assert [claim.level for claim in claims] == pytest.approx(list(levels[0]))
    assert [claim.rejected for claim in claims] == list(rejected[0])
