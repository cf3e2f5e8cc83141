"""The demo from its words to its last line: its order, its lines, a small real one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ampcompare.demo import plan, run
from ampcompare.demo.plan import Costs
from ampcompare.errors import UserError
from ampcompare.records import load_runs
from ampcompare.sweeps.order import in_blocks

COSTS = Costs("Test CPU", {"float32": 100.0}, {"float32": 0.1, "bfloat16": 0.1})


CODES: list[int] = []


def see_through(words: list[str], environment: object) -> int:
    """A training that has ended, without one."""
    STARTED.append(words)
    return CODES.pop() if CODES else 0


STARTED: list[list[str]] = []


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch):
    STARTED.clear()
    monkeypatch.setattr(run, "measured", lambda words: COSTS)
    monkeypatch.setattr(run, "see_through", see_through)
    said: list[str] = []
    reports: list[tuple[str, str]] = []

    def play(*words: str) -> int:
        return run.run_demo(words, said.append, lambda folder, out: reports.append((folder, out)))

    play.said, play.reports = said, reports
    return play


def options(words: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words if "=" in word)


def test_it_trains_in_an_order_drawn_for_its_folder(played):
    orders = []
    for number in range(8):
        STARTED.clear()
        assert played(f"output_dir=runs/{number}") == 0
        trained = [options(words)["backend"] for words in STARTED]
        drawn = [backend for backend, _ in in_blocks(f"runs/{number}", plan.BACKENDS["bfloat16"], [None])]
        assert trained == drawn
        orders.append(tuple(trained))
    assert len(set(orders)) > 2


def test_what_is_given_goes_before_what_is_chosen(played):
    assert played("epochs=2", "output_dir=mine") == 0
    assert all(options(words)["epochs"] == "2" for words in STARTED)
    assert played.reports == [("mine", "mine/report")]
    assert any("128 steps, as asked for" in line for line in played.said)


def test_every_part_is_announced_with_what_follows_and_the_time_left(played):
    played()
    parts = [line for line in played.said if line.startswith("---")]
    assert [line.partition(":")[0] for line in parts] == [f"--- {n} of 4" for n in (1, 2, 3, 4)]
    assert "the page: " in parts[0]
    assert all("left in all" in line for line in parts[:-1])
    assert "the page, about" in parts[-1]


def test_a_training_that_fails_ends_it_without_a_page(played, monkeypatch):
    CODES.append(1)
    assert played() == 1
    assert len(STARTED) == 1
    assert not played.reports


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("backend=native", "the demo trains none, native, apex_o1; one backend alone: "),
        ("epoch=1", "epochs"),
    ],
)
def test_what_it_cannot_do_is_said_before_anything_is_measured(word, why, monkeypatch):
    monkeypatch.setattr(run, "measured", lambda words: pytest.fail("measured"))
    with pytest.raises(UserError, match=why):
        run.run_demo([word], print, lambda folder, out: None)


TINY = "model.name=tiny epochs=1 data.train_limit=32 data.test_limit=20 device=cpu".split()


@pytest.mark.slow
def test_a_small_demo_measures_trains_three_times_and_writes_its_page(tmp_path: Path):
    command = [sys.executable, "-m", "ampcompare", "demo", *TINY, "output_dir=out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    runs = load_runs([str(tmp_path / "out")])
    assert len({run.option("backend") for run in runs}) == 3
    assert "mixed precision in" in done.stdout
    assert "sync:" not in done.stdout
    assert "4 of 4: the page" in done.stdout
    page = (tmp_path / "out" / "report" / "index.html").read_text(encoding="utf-8")
    assert "tiny on synthetic data" in page
