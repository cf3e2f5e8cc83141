"""Rounds of a benchmark that was cut short: kept whole, for the same measurement on the same machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from ampcompare.bench.throughput.kept import NAME, Kept
from ampcompare.errors import UserError

HERE = {"device_name": "GPU", "torch": "2.14", "git_commit": "abc", "load": 1}
ASKED = {"words": ["backend=none"], "steps": 5}


def test_what_was_kept_is_found_again_in_its_order(tmp_path: Path):
    kept = Kept(tmp_path / "new", HERE)
    for rate in (3.0, 1.0, 2.0):
        kept.add(ASKED, {"rate": rate})
    again = Kept(tmp_path / "new", {**HERE, "load": 2})
    assert [result["rate"] for result in again.results(ASKED)] == [3.0, 1.0, 2.0]


@pytest.mark.parametrize("other", [{"device_name": "another"}, {"torch": "2.15"}, {"git_commit": "abd"}])
def test_rounds_of_another_machine_or_program_are_not_taken(tmp_path: Path, other: dict[str, str]):
    Kept(tmp_path, HERE).add(ASKED, {"rate": 1.0})
    assert Kept(tmp_path, HERE | other).results(ASKED) == []
    assert len(Kept(tmp_path, HERE).results(ASKED)) == 1


def test_rounds_of_other_options_are_not_taken(tmp_path: Path):
    Kept(tmp_path, HERE).add(ASKED, {"rate": 1.0})
    assert Kept(tmp_path, HERE).results({**ASKED, "steps": 6}) == []


def test_a_line_that_was_cut_is_given_up_and_the_next_one_is_whole(tmp_path: Path):
    Kept(tmp_path, HERE).add(ASKED, {"rate": 1.0})
    with (tmp_path / NAME).open("a") as file:
        file.write('{"request": {"wo')
    Kept(tmp_path, HERE).add(ASKED, {"rate": 2.0})
    assert [result["rate"] for result in Kept(tmp_path, HERE).results(ASKED)] == [1.0, 2.0]


def test_a_file_of_something_else_is_one_line(tmp_path: Path):
    (tmp_path / NAME).write_text("rounds\n")
    with pytest.raises(UserError, match=rf"--go-on: .*{NAME} cannot be used .*; remove it"):
        Kept(tmp_path, HERE)
