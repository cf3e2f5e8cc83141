"""A sweep that gets longer or has a control: no run twice, none lost."""

from __future__ import annotations

import dataclasses

import pytest
import yaml

from ampcompare.errors import UserError
from ampcompare.sweeps.definition import Added
from ampcompare.sweeps.file import read_sweep
from ampcompare.sweeps.queue import Queue
from ampcompare.sweeps.storage import sqlite_url

BACKENDS = ["none", "native"]


@pytest.fixture
def begin(tmp_path):
    """The queue of a sweep file with these parameters, in one and the same database."""

    def made(control: bool = False, words=(), **changes) -> Queue:
        parameters = {
            key: {"values": spec}
            for key, spec in ({"backend": BACKENDS, "seed": [1, 2]} | changes.pop("parameters", {})).items()
        }
        file = tmp_path / "mine.yaml"
        content = {"program": "p.py", "method": "grid", "parameters": parameters} | changes
        file.write_text(yaml.safe_dump(content, sort_keys=False))
        sweep = dataclasses.replace(read_sweep(file), control=control)
        return Queue(sweep, sqlite_url(tmp_path), "mine", words=words, plan={})

    return made


def take(queue: Queue, most: int = 1000) -> list[tuple]:
    """Make the runs that are left, at most so many: (backend, seed, arm)."""
    made = []
    while len(made) < most and (attempt := queue.claim()):
        point = attempt.parameters
        made.append((point["backend"], point["seed"], attempt.plan.get("arm")))
        queue.end(attempt, "finished", None)
    return made


def every(seeds) -> list[tuple]:
    """Every backend with each of the seeds, sorted."""
    return sorted((backend, seed, None) for seed in seeds for backend in BACKENDS)


def test_more_seeds_in_the_file_continue_the_sweep(begin):
    assert sorted(take(begin())) == every([1, 2])
    assert sorted(take(begin(parameters={"seed": [1, 2, 3, 4]}))) == every([3, 4])
    assert take(begin(parameters={"seed": [1, 2, 3, 4]})) == []
    assert begin().sweep.total() == 8  # whoever has the file from before helps with what is left


def test_seeds_that_two_add_at_once_come_once_each(begin):
    one, other = begin(), begin()
    assert one.add(Added((3, 4), look=2))
    assert not other.add(Added((3,), look=2))
    assert other.sweep.added == ((3, 4),)
    assert sorted(take(other)) == every([1, 2, 3, 4])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"parameters": {"seed": [1, 3]}}, "differs in parameters.seed (2 is gone; it can only get more)"),
        ({"parameters": {"backend": ["none", "fp16"]}}, "differs in parameters.backend; set output_dir"),
        (
            {"parameters": {"seed": [1, 2, 3], "lr": [0.1]}},
            "differs in parameters.seed, parameters.lr; set output_dir",
        ),
        ({"method": "random", "parameters": {"seed": [1, 2, 3]}}, "differs in method, parameters.seed; set"),
        ({"control": True}, "differs in control; set output_dir"),
        ({"words": ["epochs=3"]}, "differs in words of the command line (epochs=3); set output_dir"),
    ],
)
def test_any_other_change_is_refused_and_named(begin, changes, said):
    begin()
    with pytest.raises(UserError) as caught:
        begin(**changes)
    assert said in str(caught.value)


def test_added_seeds_have_a_control_of_their_own(begin):
    take(begin(control=True), most=5)  # and stopped
    queue = begin(control=True, parameters={"seed": [1, 2, 3]})
    assert queue.sweep.total() == 12
    rest = take(queue)
    assert rest[1:3] == [("none", 1, "last"), ("none", 2, "last")]
    assert (rest[3], rest[-1]) == (("none", 3, "first"), ("none", 3, "last"))
    assert sorted(rest[4:6]) == every([3])
