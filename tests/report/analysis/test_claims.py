"""What is claimed: families by Holm, the printed interval is the tested one, a control takes no part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from support.known_runs import BASE, FAST, FASTER, SAME, less, plain, runs

from ampcompare.report import analyse_runs
from ampcompare.report.analysis.claims import EQUIVALENCE, QUESTIONS

FIVE = [
    *runs("none", BASE),
    *runs("native", SAME, FAST),
    *runs("apex_o1", less(0.37), (76, 77, 81, 75, 79)),
    *runs("fp16", less(0.52), FASTER),
]


def scattered(seed: int, n: int = 5, groups: int = 3) -> list[Any]:
    chance = np.random.default_rng(seed)
    names = ("none", "native", "apex_o1", "fp16")[: groups + 1]
    return [
        run
        for name in names
        for run in runs(name, 0.93 + 0.004 * chance.standard_normal(n), 40 + chance.standard_normal(n))
    ]


@pytest.mark.parametrize("seed", range(20))
def test_a_claim_is_made_exactly_if_its_interval_leaves_out_no_change(seed: int):
    for comparison in analyse_runs(scattered(seed)).comparisons:
        for question, claim in comparison.claims.items():
            low, high = claim.estimate.low, claim.estimate.high
            if question == EQUIVALENCE:
                assert claim.rejected == (low > -0.5 and high < 0.5)
            elif claim.estimate.error:
                assert claim.rejected == (not low <= claim.null <= high)
            assert claim.rejected == (claim.p < claim.level)


def test_the_family_of_a_question_are_the_compared_groups_that_have_it():
    analysis = analyse_runs([*FIVE, *runs("apex_o2", SAME, FASTER, failed=(0,))])
    levels = [
        sorted(c.claims[q].level for c in analysis.comparisons if q in c.claims) for q in ("speed", "quality")
    ]
    assert levels[0] == pytest.approx([0.05 / 4, 0.05 / 3, 0.05 / 2, 0.05])  # all four are faster
    assert len(levels[1]) == 3  # a group with a failed run claims nothing of quality, and costs nothing


def test_with_one_compared_group_all_is_the_plain_level():
    claims = analyse_runs([*runs("none", BASE), *runs("native", SAME, FAST)]).comparison("native").claims
    assert {claim.level for claim in claims.values()} == {0.05}
    assert {claims[q].estimate.confidence for q in claims} == {0.95, 0.9}
    assert set(claims) <= set(QUESTIONS)


def again(speeds: Sequence[float]) -> list[Any]:
    return runs("none", SAME, speeds, arms=("first", "first", "last", "last", "last"))


def test_a_control_takes_no_part_in_a_family_and_has_no_chip():
    alone = [*runs("none", BASE), *runs("native", SAME, FAST)]
    analysis = analyse_runs([*alone, *again((40, 42, 41, 40, 42))])
    control = next(c for c in analysis.comparisons if c.is_control)
    assert (control.claims, control.chip) == ({}, "")
    assert analysis.comparison("native").claims["speed"].level == 0.05
    assert not any(u.label == "none again (A/A)" for u in analysis.undecided)


def test_a_speed_up_that_no_change_shows_as_well_is_none():
    small = [*runs("none", BASE), *runs("native", SAME, (40.4, 41.42, 42.41, 40.41, 41.4))]
    assert analyse_runs(small).comparison("native").is_faster
    held = analyse_runs([*small, *again((38, 43.5, 40, 43, 41))])
    assert held.comparison("native").claims["speed"].rejected
    assert not held.comparison("native").is_faster
    assert "no more than no change at all shows here" in dict(held.verdict.lines)["native"]


def test_what_is_undecided_is_told_with_the_seeds_that_it_would_take():
    noisy = [*runs("none", BASE), *runs("native", (0.928, 0.935, 0.930, 0.936, 0.933), FAST)]
    analysis = analyse_runs(noisy, margin=0.3)
    (left,) = analysis.undecided
    assert (left.label, left.question) == ("native", "quality")
    assert not analysis.is_decided
    assert f"about {left.more_seeds} more seeds would decide it" in plain(analysis.verdict.headline)
    assert analyse_runs(FIVE, margin=0.1).is_decided


def test_what_learned_nothing_beside_a_baseline_that_did_has_lost_and_is_never_equivalent():
    stuck = runs("fp16", [0.1] * len(BASE), FASTER)
    for margin in (0.5, 99.0):
        analysis = analyse_runs([*runs("none", BASE), *stuck], margin=margin)
        comparison = analysis.comparison("fp16")
        assert comparison.chip == "lower"
        assert comparison.equivalence is None
        assert "points lower" in dict(analysis.verdict.lines)["fp16"]
        assert any("at chance" in caution for caution in analysis.verdict.cautions)
    both = analyse_runs([*runs("none", [0.1] * len(BASE)), *stuck])
    assert both.comparison("fp16").chip == "undecided"


def test_a_group_of_which_every_run_failed_leaves_nothing_to_wait_for():
    every = tuple(range(len(BASE)))
    analysis = analyse_runs([*runs("none", BASE), *runs("fp16", BASE, FASTER, failed=every)])
    assert analysis.comparison("fp16").chip == "failed"
    assert analysis.is_decided


def test_a_lower_loss_wears_the_look_of_a_gain():
    found = [*runs("none", BASE), *runs("native", SAME, FAST)]
    for run in found:
        run.summary["eval/loss"] = 1.0 - 0.5 * (run.option("backend") == "native") + run.option("seed") / 1000
    loss = analyse_runs(found, metric="eval/loss").comparison("native")
    assert (loss.chip, loss.look, loss.keeps_quality) == ("lower", "higher", True)
    lost = analyse_runs([*runs("none", BASE), *runs("native", less(2.0), FAST)]).comparison("native")
    assert (lost.chip, lost.look, lost.keeps_quality) == ("lower", "lower", False)
