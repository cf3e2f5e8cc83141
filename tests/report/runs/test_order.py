"""How groups lie in time and on cards."""

from __future__ import annotations

import itertools
import random
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from support.fakes import make, put

from ampcompare import metrics
from ampcompare.report import analyse_runs
from ampcompare.report.runs.figures import figures_of
from ampcompare.report.runs.groups import group_runs
from ampcompare.report.runs.order import layout

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = 3600.0


def sweep(order, *, drift: float = 0.0, sd: float = 0.0, chance=None, seconds: float = 0.9 * HOUR, gpus=()):
    """Runs of (backend, seed), one an hour; throughput rises by the share `drift` from first to last."""
    runs = []
    for place, (backend, seed) in enumerate(order):
        run = make(backend, seed, steps=10, epochs=5, id=f"{backend}{seed}{place}")
        run.started_at = BEGAN + timedelta(seconds=HOUR * place)
        put(run, metrics.ELAPSED, np.linspace(0, seconds, run.rows))
        noise = chance.normal(0, sd) if chance is not None else 0.0
        at = place / max(1, len(order) - 1)
        run.summary[metrics.THROUGHPUT_MEDIAN] = 50.0 * (1 + drift * at) * (1 + noise)
        if gpus:
            run.summary["environment"] = run.summary["environment"] | {
                "machine": {"gpu": gpus[place], "host": "h"}
            }
        runs.append(run)
    return runs


def laid_out(runs):
    return layout(group_runs([figures_of(run) for run in runs]))


def blocks(backends, seeds):
    """One backend after the other, as a grid with the backend outermost."""
    return list(itertools.product(backends, range(seeds)))


def interleaved(backends, seeds, chance):
    """All backends within each seed, in an order drawn anew."""
    return [(b, s) for s in range(seeds) for b in chance.sample(backends, len(backends))]


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize("count", [2, 3])
def test_block_order_is_flagged_in_every_permutation_and_no_interleaved_one_is(seeds, count):
    said = analyse_runs(sweep(blocks(["none", "native"], seeds))).verdict.cautions
    assert "none and native ran one after the other: drift counts as difference." in said
    names = ["none", "native", "fp16"][:count]
    for order in itertools.permutations(names):
        assert laid_out(sweep(blocks(order, seeds))).one_after_the_other
    chance = random.Random(14)
    for _ in range(20):
        assert not laid_out(sweep(interleaved(names, seeds, chance))).one_after_the_other


def test_runs_that_all_go_on_at_one_time_are_not_one_after_the_other():
    order = blocks(["none", "native"], 2)
    assert not laid_out(sweep(order, seconds=10 * HOUR, gpus="abcd")).one_after_the_other
    assert laid_out(sweep(order, seconds=HOUR, gpus="abcd")).one_after_the_other
    assert laid_out(sweep(order, seconds=10 * HOUR)).one_after_the_other  # on one card they cannot have


def test_the_control_at_the_ends_is_no_part_of_the_lay_out():
    runs = sweep([("none", 1), ("none", 2), ("native", 1), ("native", 2)])
    for run in runs[:2]:
        run.config["plan"] = {"arm": "first"}
    assert not laid_out(runs).one_after_the_other


def test_a_backend_with_a_card_of_its_own_is_named():
    order = [("none", 1), ("native", 1), ("none", 2), ("native", 2)]
    alike = laid_out(sweep(order, gpus=["a", "b", "b", "a"]))
    assert alike.on_other_cards == ()
    aliased = laid_out(sweep(order, gpus=["a", "b", "a", "b"]))
    assert aliased.on_other_cards == (("none", "native"),)
    assert "none and native ran on different cards" in aliased.sentences[0]


def test_figures_of_two_cards_are_not_pooled_without_a_word():
    order = [("none", 1), ("native", 1), ("none", 2), ("native", 2)]
    said = analyse_runs(sweep(order, gpus=["a", "a", "b", "a"])).verdict.cautions
    assert "none pools runs of 2 cards or hosts of the same name." in said
    assert "pools runs" not in " ".join(analyse_runs(sweep(order, gpus=["a"] * 4)).verdict.cautions)


def test_drift_over_the_sweep_is_found_and_noise_is_not():
    """5 % each way at a run-to-run deviation of 0.5 %; the test is at 1 %."""
    chance, order = np.random.default_rng(14), random.Random(14)
    names = ["none", "native", "fp16"]
    steady = [laid_out(sweep(interleaved(names, 3, order), sd=0.005, chance=chance)) for _ in range(100)]
    assert sum(found.drifted for found in steady) <= 5
    falls = {"drift": -0.05, "sd": 0.005, "chance": chance}
    falling = [laid_out(sweep(interleaved(names, 3, order), **falls)) for _ in range(20)]
    assert sum(found.drifted for found in falling) >= 19
    assert np.median([found.drift.value for found in falling]) == pytest.approx(0.95, abs=0.01)
    assert "from the first run to the last" in falling[0].sentences[-1]
