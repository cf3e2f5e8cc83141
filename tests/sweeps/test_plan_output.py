"""`ampcompare sweep --plan` into a file: no sentence is broken at 80 columns."""

import io

import pytest
from rich.console import Console

from ampcompare.sweeps.decision_plan import describe_decision_plan, print_plan
from ampcompare.sweeps.prepare import prepare


def printed(*words: str) -> tuple[list[str], list[str]]:
    """Return the lines that the plan prints, and its sentences."""
    prepared, screen = prepare("compare_backends", words), io.StringIO()
    print_plan(prepared, Console(file=screen, width=80))
    return screen.getvalue().splitlines(), describe_decision_plan(prepared)


def test_each_sentence_of_a_plan_is_one_line(tmp_path):
    lines, sentences = printed(f"output_dir={tmp_path}")
    assert sentences
    assert [line for line in sentences if line not in lines] == []
    assert max(map(len, sentences)) > 80
    assert "Seeds that decide 9 of 10 comparisons of 2 groups with equal quality:" in lines


def test_a_search_says_in_one_line_that_it_decides_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    screen = io.StringIO()
    print_plan(prepare("learning_rate", ()), Console(file=screen, width=80))
    (line,) = screen.getvalue().splitlines()
    assert line.endswith(": a search compares no groups over seeds, so it decides nothing")


@pytest.mark.parametrize("seeds", ["1", "1,2", "7", "1,2,3", "1,2,3,4"])
def test_a_sweep_of_any_number_of_seeds_has_a_plan(tmp_path, seeds):
    lines, _ = printed(f"seed={seeds}", f"output_dir={tmp_path}")
    is_too_few = seeds.count(",") < 2
    assert any("a confidence interval needs at least 3 seeds" in line for line in lines) == is_too_few
    assert any("have a standard deviation of at most" in line for line in lines) != is_too_few
