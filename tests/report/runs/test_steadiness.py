"""Stalls, drift within a run, what a median leaves out: found where they are, in steady runs never."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.fakes import make

from ampcompare import metrics
from ampcompare.report import analyse_runs
from ampcompare.report.runs.figures import figures_of
from ampcompare.report.runs.groups import group_runs
from ampcompare.report.runs.steadiness import stalled_share, trend
from ampcompare.report.runs.unsteady import median_gap, odd_ones, skipped_share

CHANCE = np.random.default_rng


def steady(chance, n: int, spread: float, kind: str = "normal") -> np.ndarray:
    """Throughputs of n intervals of a steady run."""
    noise = {
        "normal": lambda: chance.normal(0, spread, n),
        "heavy": lambda: chance.standard_t(3, n) * spread / math.sqrt(3),
        "neighbours alike": lambda: _alike(chance, n, spread),
        "slow start": lambda: chance.normal(0, spread, n) - 0.3 * np.exp(-np.arange(n) / (0.03 * n)),
        "fast start": lambda: chance.normal(0, spread, n) + 0.08 * np.exp(-np.arange(n) / (0.05 * n)),
    }[kind]()
    return 100 * np.exp(noise)


def _alike(chance, n, spread):
    x = chance.normal(0, spread, n)
    for i in range(1, n):
        x[i] = 0.7 * x[i - 1] + math.sqrt(1 - 0.49) * x[i]
    return x


NOISE = [("normal", 0.005), ("normal", 0.15), ("heavy", 0.03), ("neighbours alike", 0.01)]
NOISE += [("slow start", 0.02), ("fast start", 0.01)]


@pytest.mark.parametrize("n", [20, 1000])
@pytest.mark.parametrize(("kind", "spread"), NOISE)
def test_steady_noise_is_neither_a_stall_nor_a_trend(kind, spread, n):
    chance = CHANCE(14)
    runs = [steady(chance, n, spread, kind) for _ in range(200)]
    assert sum(stalled_share(run) is not None for run in runs) <= 2
    assert sum(trend(run) is not None for run in runs) <= 2


@pytest.mark.parametrize(("factor", "share"), [(3.0, 0.05), (1.4, 0.1), (10.0, 0.02)])
def test_stalls_are_found_with_the_time_that_they_took(factor, share):
    speeds = steady(CHANCE(1), 200, 0.02)
    stalled = np.arange(30, 200)[:: round(1 / share)]
    speeds[stalled] /= factor
    lost = len(stalled) * (factor - 1) / (180 + len(stalled) * (factor - 1))
    assert stalled_share(speeds) == pytest.approx(lost, rel=0.15)


@pytest.mark.parametrize("n", [25, 200])
@pytest.mark.parametrize("change", [-0.1, 0.1])
def test_a_trend_is_found_with_its_size_in_spite_of_stalls(n, change):
    speeds = steady(CHANCE(2), n, 0.01) * np.linspace(1, 1 + change, n)
    speeds[n // 2] /= 5
    assert trend(speeds) == pytest.approx(1 + 0.75 * change, abs=0.02)  # of the last 80 %, between blocks


def slow_row(made):
    for row in made["rows"][10::4]:
        if metrics.THROUGHPUT in row:
            row[metrics.THROUGHPUT] /= 4


def test_stalls_are_said_by_seed():
    said = " ".join(analyse_runs([make("none", 1), make("none", 2, edit=slow_row)]).verdict.cautions)
    assert "Stalls, which a median does not show: none, seed 2:" in said
    assert "seed 1:" not in said


def compile_time(made):
    for row in made["rows"]:
        if metrics.TRAIN_SECONDS in row:
            row[metrics.TRAIN_SECONDS] += 100


def test_a_median_that_leaves_out_a_compilation_is_said_with_both_ratios():
    runs = [make("none", 1), make("native", 1, edit=compile_time)]
    analysis = analyse_runs(runs)
    none, native = analysis.groups
    by_median, by_seconds = median_gap(native, none)
    assert by_median == pytest.approx(1.9)
    seconds = [195 * 128 / 40, 195 * 128 / 76 + 100]
    assert by_seconds == pytest.approx(seconds[0] / seconds[1])
    assert "By medians native trains 1.90× as fast as none, by whole training seconds 1.46×" in " ".join(
        analysis.verdict.cautions
    )


def with_speeds(*speeds):
    runs = []
    for seed, speed in enumerate(speeds):
        run = make("none", seed, steps=50, epochs=5)
        run.summary[metrics.THROUGHPUT_MEDIAN] = speed
        runs.append(run)
    (group,) = group_runs([figures_of(run) for run in runs])
    return group


def test_a_process_unlike_all_others_is_named():
    ((figures, ratio),) = odd_ones(with_speeds(100, 101, 70))
    assert (figures.seed, ratio) == (2, pytest.approx(70 / math.sqrt(100 * 101), rel=0.01))
    assert odd_ones(with_speeds(100, 101, 95)) == []
    assert odd_ones(with_speeds(100, 70)) == []
    assert odd_ones(with_speeds(120, 100, 80, 60)) == []


def test_skipped_steps_above_1_percent_are_said():
    def many(made):
        made["summary"][metrics.SKIPPED] = 8

    few, more = make("native", 1, skip_steps=(0,)), make("native", 2, edit=many)
    assert skipped_share(figures_of(few)) == pytest.approx(1 / 200)
    said = analyse_runs([few, more]).verdict.cautions
    assert "Skipped steps above 1 %: 1 of 2 runs of native (up to 4.0 %)." in said
