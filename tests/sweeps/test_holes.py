"""`ampcompare sweep FILE --missing` and `--fill`: what was not run is listed, and only that is run."""

from __future__ import annotations

from collections import Counter

import pytest

pytestmark = pytest.mark.slow

GRID = {"parameters": {"x": {"values": [1, 2, 3]}, "fail": {"value": 2}}}


def ran(place) -> Counter:
    return Counter(event["given"]["x"] for event in place.events("began"))


def tree(folder):
    return sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts)


def mended(place) -> None:
    """No run fails from here on."""
    program = place.folder / "program.py"
    program.write_text(program.read_text().replace("sys.exit(3)", "pass"))


def test_holes_are_listed_without_writing_anything_and_filled_by_new_runs(place):
    place.file(**GRID)
    before = tree(place.folder)
    code, said = place.sweep("--missing")
    told = [line.split()[1] for line in said.splitlines() if line.startswith("missing")]
    assert (code, sorted(told)) == (3, ["x=1", "x=2", "x=3"])
    assert "3 points: 3 missing" in said
    assert tree(place.folder) == before
    assert place.sweep()[0] == 1
    code, said = place.sweep("--missing")
    assert (code, "3 points: 2 finished, 1 failed" in said) == (3, True)
    (line,) = (line for line in said.splitlines() if line.startswith("failed"))
    (failed,) = (e["run"] for e in place.events("began") if e["given"]["x"] == "2")
    assert "the last words" in line
    assert failed in line
    mended(place)
    code, said = place.sweep("--fill")
    assert code == 0, said
    assert ran(place) == {"1": 1, "2": 2, "3": 1}
    assert len({event["run"] for event in place.events("began")}) == 4
    code, said = place.sweep("--missing")
    assert (code, "3 points: 3 finished; whole" in said) == (0, True)


def test_two_that_fill_at_once_run_no_point_twice_and_leave_running_ones_alone(place):
    place.file(parameters={"x": {"values": [*range(6)]}, "hold": {"value": "all"}})
    place.hold()
    first = place.start("--fill")
    place.wait_for("began", 1)
    code, said = place.sweep("--missing")
    assert (code, "1 running, 5 missing" in said) == (3, True)
    second = place.start("--fill")
    place.wait_for("began", 2)
    place.release()
    for process in (first, second):
        said, _ = process.communicate()
        assert process.returncode == 0, said
    assert ran(place) == {str(x): 1 for x in range(6)}
    assert place.sweep("--missing")[0] == 0


def test_of_a_search_what_failed_in_its_own_database_is_run_again(place):
    x = {"x": {"values": [1, 2]}, "fail": {"value": 2}}
    place.file(method="bayes", metric={"name": "score"}, run_cap=4, parameters=x)
    assert "never logged score: the sweep learns nothing from it" in place.sweep()[1]
    failed = sum(event["given"]["x"] == "2" for event in place.events("began"))
    code, said = place.sweep("--missing")
    assert (code == 3, f"{failed} failed" in said) == (failed > 0, failed > 0), said
    mended(place)
    code, said = place.sweep("--fill")
    assert (code, "4 points: 4 finished; whole" in said) == (0, True), said
    assert len(place.events("began")) == 4 + failed


def test_wrong_words_are_one_line_and_start_nothing(place):
    place.file(**GRID)
    for words, told in (
        (["--missing", "--fill"], "leave one out"),
        (["--missing", "--until-decided"], "leave it out"),
        (["--missing", "--storage", "nonsense"], "--storage nonsense"),
        (["--fill", "y"], "expected key=value"),
    ):
        code, said = place.sweep(*words)
        assert code == 2
        assert told in said
        assert len(said.strip().splitlines()) == 1
    assert not place.out.exists()
