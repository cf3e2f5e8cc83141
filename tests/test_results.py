"""The published results in docs/results: whole, derived again from their records, quoted as they are."""

from __future__ import annotations

import json
import math
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.quick import ROOT

from ampcompare.records import load_runs
from ampcompare.report import analyse_runs
from ampcompare.report.exports import to_json

RESULTS = ROOT / "docs" / "results"
COMPARISONS = sorted(RESULTS.glob("*/*/comparison.json"))
PARTS = [pytest.param(path, id=f"{path.parts[-3]}/{path.parts[-2]}") for path in COMPARISONS]
STORIES = [ROOT / "docs" / "results.md", ROOT / "README.md", ROOT / "run_experiment.py"]
MOST_BYTES = 5_000_000

# `1.77× as fast (1.48 to 2.10`, `−11 % (−12 to −10`, `−0.11 points (95 %: −0.70 to +0.44`: with an interval.
NUMBER = r"[+−±]?\d[\d,]*(?:\.\d+)?"
QUOTED = re.compile(
    rf"({NUMBER})\s?(?:×|%|points|images/s)[^()|]{{0,60}}\((?:95 %: )?({NUMBER})[^()]{{0,3}} to ({NUMBER})"
)


def number(text: str) -> float:
    return float(text.replace("−", "-").replace("±", "").replace(",", ""))


def is_rounded(shown: str, value: float) -> bool:
    """Whether a figure as it is written is the value, to its own number of digits."""
    digits = len(shown.partition(".")[2])
    return math.isclose(number(shown), value, rel_tol=0, abs_tol=0.5 * 10.0**-digits + 1e-9)


def estimates(found: Any) -> Iterator[tuple[float, float, float]]:
    """Every figure with an interval that a comparison holds, at whatever depth: value, low, high."""
    if isinstance(found, dict):
        if all(isinstance(found.get(key), float) for key in ("value", "low", "high")):
            yield found["value"], found["low"], found["high"]
        for inner in found.values():
            yield from estimates(inner)
    elif isinstance(found, list):
        for inner in found:
            yield from estimates(inner)


def as_shown(estimate: tuple[float, float, float]) -> Iterator[tuple[float, ...]]:
    """An estimate as it may be written: as it is, a share in percent, a ratio as the change in percent."""
    yield estimate
    yield tuple(100 * x for x in estimate)
    yield tuple(100 * (x - 1) for x in estimate)


def test_there_is_a_result():
    assert len(COMPARISONS) >= 3


@pytest.mark.parametrize("comparison", PARTS)
def test_a_result_is_whole(comparison: Path):
    folder = comparison.parent
    for name in ("index.html", "comparison.csv", "comparison.md", "sweep.yaml"):
        assert (folder / name).stat().st_size > 0
    runs = json.loads(comparison.read_text())["runs"]
    assert {run["outcome"] for run in runs} == {"finished"}
    assert 0 < (folder.parent / "records.tar.xz").stat().st_size < MOST_BYTES


@pytest.mark.parametrize("comparison", PARTS)
def test_the_records_give_the_same_figures_again(comparison: Path, tmp_path: Path):
    with tarfile.open(comparison.parents[1] / "records.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    again = json.loads(to_json(analyse_runs(load_runs([str(tmp_path / comparison.parent.name)]))))
    committed = json.loads(comparison.read_text())
    found, known = list(estimates(again)), list(estimates(committed))
    assert len(found) == len(known) > 10
    for ours, theirs in zip(found, known, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-9)


def test_stories_quote_figures_of_a_result_and_no_others():
    known = [
        shown
        for path in sorted(RESULTS.glob("*/*/*.json"))
        for e in estimates(json.loads(path.read_text()))
        for shown in as_shown(e)
    ]
    quoted = [(path.name, *found) for path in STORIES for found in QUOTED.findall(path.read_text())]
    assert len(quoted) > 10
    wrong = [one for one in quoted if not any(all(map(is_rounded, one[1:], figures)) for figures in known)]
    assert wrong == []
