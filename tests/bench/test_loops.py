"""The loops of `bench overhead` train alike; the batches of `bench data` are the same."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from batches import run_batches
from overhead import Loops, run_overhead
from overhead_table import BARE_RECORDED, OURS_RECORDED, bench_overhead, verdict
from rich.console import Console

from ampcompare.bench.results import Median
from ampcompare.tracking.tracker import NoRecord
from ampcompare.train.build import build_trainer
from ampcompare.train.trainer import Trainer

SOME = {"device_name": "x", "torch": "1", "python": "3", "cpu_threads": 1, "cpu_count": 1, "git_commit": None}


class Noted:
    """In the place of a W&B run."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def log(self, row: dict[str, float]) -> None:
        self.rows.append(row)


def test_ours_does_the_same_step_as_the_bare_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made: list[Trainer] = []

    def build(*args):
        made.append(build_trainer(*args))
        return made[-1]

    monkeypatch.setattr("overhead.build_trainer", build)
    loops = Loops(8, 5, str(tmp_path), every=4)
    record = Noted()
    for run in (
        loops.bare(),
        loops.bare_recorded(record),  # type: ignore[arg-type]
        loops.seed_style(),
        loops.ours(NoRecord()),
    ):
        run(0)
        run(1)
    assert [row["global_step"] for row in record.rows] == [4, 8]
    bare, *others = ([p.detach() for p in t.model.parameters()] for t in made)
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(bare, other, strict=True))


def test_overhead_gives_every_loop_a_time_in_every_round():
    found = run_overhead(target_ms=0.1, steps=4, rounds=3, every=2)
    assert set(found["ms"]) == {"bare", BARE_RECORDED, "seed-style", "ours", OURS_RECORDED}
    assert all(
        len(times) == 3 and min(times) > 0
        for key in ("ms", "cpu_ms", "parts_ms")
        for times in found[key].values()
    )


def play_measure(monkeypatch: pytest.MonkeyPatch, extra_ms: float = 0.03) -> list[dict]:
    """In the place of the measuring processes; returns what they are asked."""
    asked: list[dict] = []

    def measure(module: Path, request: dict, what: str, threads: int) -> dict:
        asked.append(request)
        slow = 2.0 if len(asked) % 12 == 1 else 1.0  # one unlucky process of each twelve
        times = {"bare": [4.0] * 2, BARE_RECORDED: [4.01] * 2, "ours": [4.0 * slow, 4.04 * slow]}
        times[OURS_RECORDED] = [4.01 * slow + extra_ms] * 2
        return {
            "batch_size": 7,
            "ms": times,
            "cpu_ms": times,
            "parts_ms": {"batch": [1.0]},
            "environment": SOME,
        }

    monkeypatch.setattr("overhead_table.measure", measure)
    return asked


def test_rounds_are_spread_over_processes_which_count_once_each(monkeypatch: pytest.MonkeyPatch):
    asked = play_measure(monkeypatch)
    console = Console(file=io.StringIO(), width=120)
    assert bench_overhead(24, None, console)
    assert [(r["rounds"], r["every"]) for r in asked] == [(2, 10)] * 12 + [(2, 50)] * 24
    assert [r.get("batch_size") for r in asked] == [None, *[7] * 11] * 3
    assert " 1.005 (1.005–1.005) " in console.file.getvalue()
    assert " 0.030 (0.030–0.030) " in console.file.getvalue()


def test_the_cpu_time_over_a_bare_loop_that_records_is_judged(monkeypatch: pytest.MonkeyPatch):
    play_measure(monkeypatch, extra_ms=0.06)
    console = Console(file=io.StringIO(), width=120)
    assert not bench_overhead(24, None, console)
    assert "above a limit" in console.file.getvalue()


def test_batches_are_the_same_image_for_image():
    found = run_batches(rounds=1, images=256)
    assert found["largest_difference"] < 1e-6
    assert all(len(rates) == 1 for rates in found["images_per_second"].values())


@pytest.mark.parametrize(
    ("median", "low", "expected"),
    [(1.01, 1.0, "within"), (1.02, 1.0, "within"), (1.03, 1.01, "not decided"), (1.04, 1.03, "above")],
)
def test_a_ratio_is_above_its_limit_when_its_whole_interval_is(median: float, low: float, expected: str):
    judged = [
        (Median(40, 1.0, 0.99, 1.01, 0.95), 1.05),
        (Median(40, median, low, 1.1, 0.95), 1.02),
    ]
    assert verdict(judged).startswith(expected)
