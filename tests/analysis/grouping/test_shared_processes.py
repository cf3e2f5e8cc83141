"""Runs that one process trained one after the other are one measurement of the machine."""

import math
from statistics import fmean

import pytest
from support.fakes import Plan, make

from ampcompare import analyse_runs
from ampcompare.runs import RunRecord

SPEED, MEMORY = "throughput/images_per_second_median", "memory/peak_mib"


def in_process(backend: str, seed: int, process: str, position: int, speed: float) -> RunRecord:
    def edit(plan: Plan) -> None:
        plan["config"]["run"] = {"process": process, "position_in_process": position}
        plan["summary"][SPEED] = speed
        for row in plan["rows"]:
            row["energy/joules_per_image"] = 400 / speed
        if position == 1:  # on a CPU only the first run has its peak
            plan["summary"][MEMORY] = 100.0 + seed
        else:
            for row in plan["rows"]:
                row.pop(MEMORY, None)

    return make(backend, seed, edit=edit)


def runs_of(backend: str, seeds: int, per_process: int, base: float) -> list[RunRecord]:
    """Each process has a speed of its own, and its runs differ by a little more."""
    runs = []
    for seed in range(1, 1 + seeds):
        number, position = divmod(seed - 1, per_process)
        speed = base * (1 + 0.05 * math.sin(number)) * (1 + 0.001 * position)
        runs.append(in_process(backend, seed, f"{backend}{number}", position + 1, speed))
    return runs


@pytest.mark.parametrize(("per_process", "processes"), [(5, 3), (12, 1)])
def test_speed_and_memory_count_processes_and_quality_counts_runs(per_process: int, processes: int):
    made = [*runs_of("none", 12, per_process, 40.0), *runs_of("native", 12, per_process, 76.0)]
    (comparison,) = analyse_runs(made).comparisons
    found = comparison.estimates
    assert (found["speed"].n, found["memory"].n, found["quality"].n) == (processes, processes, 12)
    # The mean of a process is the geometric mean of its runs, computed here by hand.
    logs = [math.log(run.summary[SPEED]) for run in runs_of("none", 12, per_process, 40.0)]
    starts = range(0, 12, per_process)
    expected = math.exp(fmean(fmean(logs[start : start + per_process]) for start in starts))
    assert comparison.baseline.estimates["images_per_second"].value == pytest.approx(expected, rel=1e-12)
    # More seeds in these processes would decide nothing.
    for claim in (comparison.claims["speed"], comparison.claims["memory"]):
        assert claim.estimate.has_interval == (processes >= 3)
        assert ("ampcompare bench" in claim.why) == (processes < 3)
        assert processes >= 3 or (claim.more_seeds, claim.is_open) == (None, False)
    assert comparison.claims["quality"].estimate.has_interval
