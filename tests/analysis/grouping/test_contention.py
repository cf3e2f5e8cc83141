"""Two runs at once on one machine: their times are not compared."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from support.fakes import make, put

from ampcompare import analyse_runs, metrics

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
LASTS = 100.0
CPU = {"host": "h", "gpu": None}


def run(backend, seed, begin, *, machine=CPU, lasts=LASTS, device_type="cpu", stamps=None, **more):
    """Return a run that trains for `lasts` seconds from `begin` on. `stamps` are added to its timestamps."""
    record = make(
        backend, seed, steps=40, epochs=4, id=f"{backend}{seed}at{begin:g}", device_type=device_type, **more
    )
    record.started_at = BEGAN + timedelta(seconds=begin)
    clock = np.linspace(lasts / record.rows, lasts, record.rows)
    for key in (metrics.ELAPSED, metrics.TRAIN_SECONDS):
        put(record, key, clock)
    if stamps is not None:
        put(record, "_timestamp", BEGAN.timestamp() + begin + clock + stamps)
    if machine is not None:
        record.summary["environment"]["machine"] = machine
    return record


def overlaps(*runs):
    """Return the fraction of each run's time that was shared, None if unknown."""
    return [None if share != share else share for share in analyse_runs(runs).table["overlap"]]


@pytest.mark.parametrize(("begin", "share"), [(0, 1), (50, 0.5), (LASTS, 0)])
def test_simultaneous_runs_on_one_cpu_share_it(begin, share):
    assert overlaps(run("none", 1, 0), run("native", 1, begin)) == pytest.approx([share, share])


def test_a_short_overlap_at_the_ends_does_not_count():
    order = [(backend, seed) for seed in range(3) for backend in ("none", "native")]
    analysis = analyse_runs([run(*one, place * (LASTS - 5)) for place, one in enumerate(order)])
    assert "speed" in analysis.comparison("native").estimates
    assert "overlapped" not in " ".join(analysis.caveats)


def test_runs_on_gpus_share_a_gpu_not_the_host():
    def on(gpu, seed):
        return run("none", seed, 0, machine={"host": "h", "gpu": gpu}, device_type="cuda")

    assert overlaps(on("a", 1), on("a", 2)) == pytest.approx([1, 1])
    assert overlaps(on("a", 1), on("b", 2)) == pytest.approx([0, 0])
    assert overlaps(on(None, 1), on(None, 2)) == [None, None]  # which GPU it was is not known


def test_every_card_of_a_distributed_run_counts():
    both = {"host": "h", "gpu": "a", "others": [{"host": "h", "gpu": "b"}]}
    alone = {"host": "h", "gpu": "b"}
    fractions = overlaps(
        *(run("none", i, 0, machine=m, device_type="cuda") for i, m in enumerate((both, alone)))
    )
    assert fractions == pytest.approx([1, 1])


def test_an_interrupted_run_shares_nothing_during_its_pause_or_on_another_machine():
    """Of a run that was stopped half way for 1,000 seconds."""
    here, there = ({"host": host, "gpu": None} for host in "ab")
    pause = np.where(np.arange(n := run("none", 1, 0).rows) < n // 2, 0.0, 1000.0)
    stopped = run("none", 1, 0, stamps=pause)
    moved = run("none", 1, 0, stamps=pause, machine=there | {"earlier": [here]})
    for first, begin, machine, shares in [
        (stopped, 400, CPU, [0, 0]),
        (stopped, 0, CPU, [0.5, 0.5]),
        (moved, 0, there, [0, 0]),
        (moved, 1050, there, [1, 0.5]),
    ]:
        assert overlaps(first, run("native", 1, begin, machine=machine)) == pytest.approx(shares, abs=0.06)


def pairs(seeds, apart):
    """Return both backends with each seed, `apart` seconds after each other, or at once for 0."""
    return [
        run(backend, seed, 1000.0 * seed + place * apart)
        for seed in range(seeds)
        for place, backend in enumerate(("none", "native"))
    ]


def test_times_of_simultaneous_runs_are_not_compared_with_a_caveat():
    at_once = analyse_runs(pairs(4, 0))
    assert set(at_once.comparison("native").estimates) == {"memory", "quality"}
    assert any("overlapped" in line and "4 of 4 runs" in line for line in at_once.caveats)
    assert "images_per_second" in at_once.baseline.estimates  # what was measured is shown


def test_speed_is_compared_only_for_runs_alone_on_their_machine():
    runs = [*pairs(3, 200), run("none", 7, 9000), run("native", 7, 9000)]
    for one in runs[-2:]:
        one.summary[metrics.THROUGHPUT_MEDIAN] = 1.0
    analysis, alone = analyse_runs(runs), analyse_runs(runs[:-2])
    comparison = analysis.comparison("native")
    assert (comparison.estimates["speed"].n, comparison.estimates["quality"].n) == (3, 4)
    assert comparison.estimates["speed"].value == pytest.approx(alone.comparison("native").speedup)
    (line,) = [line for line in analysis.caveats if "overlapped" in line]
    assert line.count("1 of 4 runs of") == 2
