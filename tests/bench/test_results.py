"""Medians with intervals, and the files of a result."""

from __future__ import annotations

import json
import random
import statistics
from pathlib import Path

import pytest

from ampcompare.bench.results import estimate, header, machine_words, write_results
from ampcompare.errors import UserError

MACHINE = {
    "device_name": "Some GPU 80 GB",
    "torch": "2.14",
    "python": "3.11",
    "cpu_threads": 1,
    "cpu_count": 2,
}
HEAD = header({**MACHINE, "git_commit": None})


def test_an_interval_holds_the_true_median_as_often_as_it_says():
    draw = random.Random(3)
    for n in (3, 7, 12, 40):
        found = [estimate([draw.lognormvariate(0, 1) for _ in range(n)]) for _ in range(1500)]
        share = statistics.fmean(
            e.low <= 1.0 <= e.high for e in found
        )  # the median of this distribution is 1
        assert share == pytest.approx(found[0].coverage, abs=0.03)
        assert (found[0].coverage >= 0.95) == (n >= 6)


def test_one_value_is_its_own_range_and_covers_nothing():
    found = estimate([5.0])
    assert (found.n, found.median, found.low, found.high, found.coverage) == (1, 5.0, 5.0, 5.0, 0.0)


def test_a_result_says_when_where_and_with_what(tmp_path: Path):
    paths = write_results(tmp_path / "new", "speed", HEAD, {"rate": estimate([1.0, 2.0])}, "# Speed")
    assert [p.suffix for p in paths] == [".json", ".md"]
    assert all(p.name.startswith("speed-some-gpu-80-gb-2") for p in paths)
    stored = json.loads(paths[0].read_text())
    assert stored["environment"]["device_name"] == "Some GPU 80 GB"
    assert stored["rate"]["median"] == 1.5
    assert stored["date"].endswith("+00:00")
    assert machine_words(HEAD) in paths[1].read_text()
    assert "commit unknown" in machine_words(HEAD)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"--out .*cannot be written"):
        write_results(tmp_path / "file", "speed", HEAD, {}, "")
