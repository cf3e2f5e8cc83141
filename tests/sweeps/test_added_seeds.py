"""A sweep that gets longer, by its file or until each claim is decided, or has a control: each run once."""

import dataclasses
import re

import pytest
from support.refusals import line_of
from support.scripted_executor import ScriptedExecutor, drive

from ampcompare.errors import UserError
from ampcompare.sweeps.decisions import Look, check_can_be_decided, next_seeds
from ampcompare.sweeps.journal import read_journal
from ampcompare.sweeps.prepare import SweepOptions
from ampcompare.sweeps.sweep_file import Sweep, read_sweep

BACKENDS = ["none", "native"]
LOOKS = (2, 4, 5)


@pytest.fixture
def read(project, monkeypatch):
    """Return the sweep of a file with lists of values."""
    monkeypatch.chdir(project.folder)

    def made(**changes) -> Sweep:
        lists = {"backend": BACKENDS, "seed": [1, 2]} | changes.pop("parameters", {})
        parameters = {key: {"values": values} for key, values in lists.items() if values}
        return read_sweep(project.write_file(parameters=parameters, **changes))

    return made


@pytest.fixture
def take(tmp_path, read):
    """Make the runs of such a sweep that are left, in one folder: (backend, seed, arm)."""

    def made(words=(), control=False, decided_at=None, seen=None, **changes) -> list[tuple]:
        executor = ScriptedExecutor()
        options = SweepOptions(control="bookends" if control else None)

        def look(sweep: Sweep) -> Look:
            seen.append(sweep.seeds)
            return Look(sweep.seeds >= decided_at, (f"looked at {sweep.seeds}",))

        looks = () if decided_at is None else LOOKS
        drive(tmp_path / "out", read(**changes), executor, words, options, looks, look)
        runs = executor.submitted
        return [(r.parameters["backend"], r.parameters["seed"], r.plan.get("arm")) for r in runs]

    return made


def every(seeds) -> list[tuple]:
    """Every backend with each of the seeds, sorted."""
    return sorted((backend, seed, None) for seed in seeds for backend in BACKENDS)


def test_more_seeds_in_the_file_continue_the_sweep(take):
    assert sorted(take()) == every([1, 2])
    assert sorted(take(parameters={"seed": [1, 2, 3, 4]})) == every([3, 4])
    assert take(parameters={"seed": [1, 2, 3, 4]}) == []
    assert take() == []  # the file from before is the same sweep


def test_any_other_change_is_refused_and_named(take):
    take()
    for changes, named in (
        ({"parameters": {"seed": [1, 3]}}, "parameters.seed (2 is missing"),
        ({"parameters": {"backend": ["none", "fp16"]}}, "parameters.backend"),
        ({"control": True}, "control"),
    ):
        with pytest.raises(UserError, match=re.escape(f"differs in {named}")):
            take(**changes)


def test_added_seeds_have_a_control_of_their_own(take):
    first = take(control=True)
    assert [arm for _, _, arm in first] == ["first"] * 2 + [None] * 4 + ["last"] * 2
    rest = take(control=True, parameters={"seed": [1, 2, 3]})
    assert (rest[0], rest[-1]) == (("none", 3, "first"), ("none", 3, "last"))
    assert sorted(rest[1:3]) == every([3])


def test_seeds_come_in_the_groups_of_the_plan_until_each_claim_is_decided(take, tmp_path):
    seen: list[int] = []
    assert sorted(take(decided_at=4, seen=seen)) == every([1, 2, 3, 4])
    assert seen == [2, 4]
    messages = [line for group in read_journal(tmp_path / "out").seed_groups for line in group.messages]
    assert messages == ["looked at 2", "adding seeds 3, 4", "looked at 4"]
    assert take(decided_at=99, seen=seen) == []  # started once more: what was decided stays so
    assert seen == [2, 4]


def test_the_last_look_of_the_plan_ends_the_sweep(take, tmp_path):
    seen: list[int] = []
    assert sorted(take(decided_at=99, seen=seen)) == every([1, 2, 3, 4, 5])
    assert seen == [2, 4, 5]
    last = read_journal(tmp_path / "out").seed_groups[-1]
    assert last.messages[-1] == "this was the last look of the plan, so open claims stay undecided"


def test_new_seeds_continue_the_last_one_and_none_comes_twice(read):
    sweep = read(parameters={"seed": [1, 5, 2]})
    assert next_seeds(sweep, 3) == (3, 4, 6)
    assert next_seeds(dataclasses.replace(sweep, added=((8, 9), (20,))), 2) == (21, 22)


EARLY = {"early_terminate": {"type": "hyperband", "min_iter": 3}, "metric": {"name": "x"}}


def test_a_sweep_that_cannot_be_decided_is_refused_in_a_line(read):
    for changes, expected in (
        ({"method": "random"}, "needs a grid"),
        ({"parameters": {"seed": []}}, "the file varies no seed"),
        ({"parameters": {"seed": ["a"]}}, "parameters.seed='a': "),
        ({"parameters": {"seed": [*range(6)]}}, "more than the 5 seeds of the last look"),
        (EARLY, "early_terminate: --until-decided needs all runs of each seed"),
    ):
        assert expected in line_of(check_can_be_decided, read(**changes), LOOKS)
