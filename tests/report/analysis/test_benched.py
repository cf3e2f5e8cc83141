"""Speed and memory that `ampcompare bench` measured, in a report of runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.known_runs import BASE, FAST, SAME, SLOW, runs

from ampcompare.errors import UserError
from ampcompare.report import analyse_runs

RUNS = [*runs("none", BASE), *runs("native", SAME, FAST), *runs("fp16", SAME, SLOW)]
(DEVICE,) = analyse_runs(RUNS).groups[0].devices


def arm(label: str, ratio: float, *ends: float | None, **more: str) -> dict[str, Any]:
    low, high = ends or (None, None)
    figures = {"step_ms": 1.0, "images_per_second": 100.0 * ratio, "peak_mib": 50.0, "failed": None}
    told = {"label": label, "options": {"backend": label} | more, "rounds": 24}
    return figures | told | {"ratio": ratio, "low": low, "high": high}


NATIVE = arm("native", 1.3, 1.2, 1.4)


def with_bench(folder: Path, *arms: dict[str, Any], control: tuple[float, float] = (0.98, 1.02), **more: Any):
    every = [arm("none", 1.0, 1.0, 1.0), *arms]
    content = {"baseline": "none", "level": 0.99, "machine": "a card", "device": DEVICE, "minutes": 1.0}
    file = folder / "bench.json"
    file.write_text(json.dumps(content | {"control": arm("control", 1.01, *control), "arms": every} | more))
    return analyse_runs(RUNS, bench=str(file))


def test_speed_is_that_of_the_bench_and_all_else_that_of_the_runs(tmp_path: Path):
    found, alone = with_bench(tmp_path, NATIVE, arm("fp16", 1.1)), analyse_runs(RUNS)
    native, fp16 = found.comparison("native"), found.comparison("fp16")
    assert (native.speedup, native.estimates["speed"].ends) == (1.3, (1.2, 1.4))
    assert native.claims["speed"].shown == ("faster",)
    assert (fp16.speedup, fp16.claims["speed"].why) == (1.1, "24 rounds in turns")
    assert native.group.figures["images_per_second"].value == pytest.approx(130)
    for question in ("memory", "quality"):
        assert native.estimates[question] == alone.comparison("native").estimates[question]
    assert found.headline.startswith("native: 1.30× as fast, ")
    assert "Speed is by `ampcompare bench`: 24 rounds in turns on a card, intervals at 99 %" in found.caption


@pytest.mark.parametrize(("options", "device"), [({"batch_size": "7"}, DEVICE), ({}, "another card")])
def test_a_group_that_the_bench_has_not_keeps_its_own_speed(tmp_path: Path, options, device: str):
    found = with_bench(tmp_path, arm("native", 1.3, 1.2, 1.4, **options), device=device)
    alone = analyse_runs(RUNS)
    for label in ("native", "fp16"):
        assert found.comparison(label).estimates["speed"] == alone.comparison(label).estimates["speed"]
    assert "None of the arms of --bench has" in found.caption


def test_where_the_control_is_none_nothing_is_claimed(tmp_path: Path):
    found = with_bench(tmp_path, NATIVE, control=(1.05, 1.1))
    assert not found.comparison("native").claims["speed"].shown
    assert "without intervals, as its control, nothing changed, came out at 1.01×" in found.caption


@pytest.mark.parametrize(("content", "why"), [("{", "cannot be read"), ('{"arms": 3}', "not what")])
def test_another_file_is_refused_in_one_line(content: str, why: str, tmp_path: Path):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(UserError, match=why) as problem:
        analyse_runs(RUNS, bench=str(tmp_path / "x.json"))
    assert len(problem.value.lines) == 1
