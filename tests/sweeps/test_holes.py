"""`ampcompare sweep FILE --missing` and `--fill`: what was not run is listed, and only that is run."""

from __future__ import annotations

from collections import Counter

import pytest
from support.offline_runs import write_runs

pytestmark = pytest.mark.slow

GRID = {"parameters": {"x": {"values": [1, 2, 3]}, "fail": {"value": 2}}}


def ran(place) -> Counter:
    return Counter(event["given"]["x"] for event in place.events("began"))


def tree(folder):
    return sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts)


def test_missing_lists_every_point_of_a_sweep_that_never_ran_and_writes_nothing(place):
    place.file(**GRID)
    before = tree(place.folder)
    code, said = place.sweep("--missing")
    assert code == 3
    told = [line.split()[1] for line in said.splitlines() if line.startswith("missing")]
    assert sorted(told) == ["x=1", "x=2", "x=3"]
    assert "3 points: 3 missing" in said
    assert tree(place.folder) == before


def test_a_failed_point_is_told_with_its_reason_and_filled_by_a_new_run(place):
    place.file(**GRID)
    assert place.sweep()[0] == 1
    code, said = place.sweep("--missing")
    assert code == 3
    assert "3 points: 2 finished, 1 failed" in said
    (line,) = (line for line in said.splitlines() if line.startswith("failed"))
    assert "the last words" in line
    (failed,) = (e["run"] for e in place.events("began") if e["given"]["x"] == "2")
    assert failed in line
    program = place.folder / "program.py"
    program.write_text(program.read_text().replace("sys.exit(3)", "pass"))
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


def records(place, *states, group="sweep"):
    """Records of a job array, which has no database: (x, exit code) each, None: killed."""
    plans = []
    for number, (x, code) in enumerate(states):
        plans.append(
            {
                "config": {"x": x},
                "rows": [{"score": 1.0}],
                "summary": {},
                "exit_code": code,
                "kill": code is None,
                "wandb": {"id": f"r{number}", "project": "p", "group": group},
            }
        )
    write_runs(place.out, plans)


def test_holes_of_a_job_array_are_told_by_its_records_and_filled(place):
    place.file(parameters={"x": {"values": [1, 2, 3, 4]}})
    records(place, ("1", 0), (2, 1), (3, 143))
    code, said = place.sweep("--missing")
    assert (code, "4 points: 1 finished, 1 failed, 1 stopped, 1 missing" in said) == (3, True)
    code, said = place.sweep("--fill")
    assert code == 0, said
    assert ran(place) == {"2": 1, "3": 1, "4": 1}
    assert place.sweep("--missing")[0] == 0
    assert place.sweep("--fill")[0] == 0
    assert sum(ran(place).values()) == 3


def test_runs_of_another_group_in_the_folder_are_no_points_of_the_sweep(place):
    place.file(parameters={"x": {"values": [1, 2]}})
    records(place, (1, 0), group="another")
    assert "2 points: 2 missing" in place.sweep("--missing")[1]


def test_the_run_that_is_done_tells_and_else_the_newest_and_points_of_the_same_values_have_one_each(place):
    place.file(parameters={"x": {"values": [1, 2, 3, 3, 4]}, "y": {"values": [1]}})
    records(place, (1, 0), (1, 1), (2, 1), (2, 143), (3, 0), (4, 0), (9, 0))
    code, said = place.sweep("--missing")
    assert (code, "5 points: 3 finished, 1 stopped, 1 missing" in said) == (3, True), said
    assert "1 run of this sweep at none of its points" in said
    assert [line.split()[:2] for line in said.splitlines() if line.startswith("missing")] == [
        ["missing", "x=3"]
    ]


def test_draws_of_a_search_without_end_are_counted_by_their_values(place):
    """A failed one is taken for repeated where another of its values is done; none is missing."""
    place.file(method="random", parameters={"x": {"values": [1, 2, 3]}})
    records(place, (1, 0), (1, 1), (2, 0), (2, 0), (3, 1))
    code, said = place.sweep("--missing")
    assert (code, "4 points: 3 finished, 1 failed" in said) == (3, True), said
    assert "has no end" in said
    code, said = place.sweep("--fill")
    assert (code, ran(place)) == (0, {"3": 1}), said


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
