"""`ampcompare sweep --until-decided` and `--control` from the command line, with records of known figures."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from support.quick import QUICK

from ampcompare.records import load_runs

# A run as any user's script would log it: twice as fast under native, and as good but for `off` points, which
# go up and down with the seed.
TRAINING = """
import sys
import wandb
given = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:])
seed, is_native = int(given["seed"]), given["backend"] == "native"
settings = wandb.Settings(console="off", x_disable_stats=True, disable_git=True, save_code=False)
with wandb.init(mode="offline", config={"backend": given["backend"], "seed": seed}, settings=settings) as run:
    speed = 100 * (2 if is_native else 1) * (1 + seed / 1000)
    accuracy = 0.9 + seed / 5000 + is_native * (-1) ** seed * float(given["off"]) / 100
    for step in range(0, 20, 5):
        run.log({"global_step": step, "throughput/images_per_second": speed, "train/loss": 1 / (1 + step)})
        run.log({"global_step": step, "eval/accuracy": accuracy - (20 - step) / 100})
    run.log({"global_step": 20, "eval/accuracy": accuracy})
    run.summary["throughput/images_per_second_median"] = speed
"""


@pytest.fixture
def until(place):
    """The file of a sweep of `off` points, with looks at 3 and 4 seeds."""
    (place.folder / "training.py").write_text(TRAINING)

    def write(off: float, **plan) -> None:
        options = {"margin": 0.5, "looks": [3, 4], **plan}
        parameters = {
            "backend": {"values": ["none", "native"]},
            "seed": {"values": [7, 8, 9]},
            "off": {"value": off},
            "plan": {"parameters": {key: {"value": value} for key, value in options.items()}},
        }
        place.file(program="training.py", parameters=parameters)

    write.place = place
    return write


def runs_of(place) -> Counter:
    found = load_runs([place.out])
    return Counter((run.option("backend"), run.option("seed"), run.option("plan.arm")) for run in found)


def grid(seeds) -> list[tuple]:
    return [(backend, seed, None) for seed in seeds for backend in ("none", "native")]


@pytest.mark.slow
def test_what_is_decided_at_the_first_look_needs_no_more_seeds(until):
    until(off=0.01)  # without any spread nothing would be told
    code, said = until.place.sweep("--until-decided")
    assert code == 0, said
    assert "look at 3 seeds: decided: speed of native and quality of native, which is all" in said
    assert runs_of(until.place) == Counter(grid([7, 8, 9]))


@pytest.mark.slow
def test_two_workers_add_the_same_seeds_and_one_decides(until):
    """0.3 points up and down are more than three or four seeds can tell from a margin of half a point."""
    until(off=0.3, control="bookends")
    workers = [until.place.start("--until-decided") for _ in range(2)]
    said = [worker.communicate()[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], said
    for text in said:
        assert re.search(r"look at 3 seeds: undecided: quality of native; about \d+ more seeds would", text)
        assert "adding seed 10" in text
        assert "this was the last look of the plan" in text
        assert "page: " in text
    control = [("none", seed, arm) for seed in (7, 8, 9, 10) for arm in ("first", "last")]
    assert runs_of(until.place) == Counter(grid([7, 8, 9, 10]) + control)
    code, again = until.place.sweep("--until-decided")
    assert (code, "16 of them done before" in again, "started" in again) == (0, True, False)


@pytest.mark.slow
def test_our_training_records_its_place_its_block_and_its_arm(place):
    tail = ["${args_no_hyphens}", *QUICK, "epochs=1"]
    place.file(
        program="ampcompare",
        command=["${env}", "${interpreter}", "-m", "${program}", "run", *tail],
        parameters={"backend": {"values": ["none", "native"]}, "seed": {"values": [5]}},
    )
    code, said = place.sweep("--control", "bookends")
    assert code == 0, said
    assert "planned: control bookends" in said
    assert "seed=5 (control, first)" in said
    keys = ("place", "block", "arm", "control")
    found = sorted([run.option(f"plan.{key}") for key in keys] for run in load_runs([place.out]))
    assert found == [
        [0, None, "first", "bookends"],
        [1, 0, None, "bookends"],
        [2, 0, None, "bookends"],
        [3, None, "last", "bookends"],
    ]
