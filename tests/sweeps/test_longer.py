"""A sweep that gets longer, by its file or until all is decided, or has a control: each run once."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import pytest

from ampcompare.errors import UserError
from ampcompare.sweeps.decide import Decisions, Look, check_can_be_decided, next_seeds
from ampcompare.sweeps.definition import Added
from ampcompare.sweeps.queue import Queue
from ampcompare.sweeps.storage import sqlite_url
from ampcompare.sweeps.sweep_file import Sweep, read_sweep

BACKENDS = ["none", "native"]
LOOKS = (2, 4, 5)


@pytest.fixture
def read(place):
    """The sweep of a file with lists of values."""

    def made(control: bool = False, **changes) -> Sweep:
        lists = {"backend": BACKENDS, "seed": [1, 2]} | changes.pop("parameters", {})
        parameters = {key: {"values": values} for key, values in lists.items() if values}
        return dataclasses.replace(read_sweep(place.file(parameters=parameters, **changes)), control=control)

    return made


@pytest.fixture
def begin(tmp_path, read):
    """The queue of such a sweep, in one and the same database."""

    def made(words=(), **changes) -> Queue:
        return Queue(read(**changes), sqlite_url(tmp_path), "mine", words=words, plan={})

    return made


def take(queue: Queue, most: int = 1000) -> list[tuple]:
    """Make the runs that are left, at most so many: (backend, seed, arm)."""
    made = []
    while len(made) < most and (row := queue.claim()):
        point = row.parameters
        made.append((point["backend"], point["seed"], row.plan.get("arm")))
        queue.end(row, "finished")
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


class Looker:
    """Decides at a number of seeds, and remembers at which it was asked."""

    def __init__(self, queue: Queue, decided_at: int = 4) -> None:
        self.queue, self.decided_at = queue, decided_at
        self.asked: list[int] = []
        self.said: list[str] = []
        self.go_on = Decisions(queue, LOOKS, self.look, self.said.append).go_on

    def look(self) -> Look:
        self.asked.append(self.queue.sweep.seeds)
        return Look(self.asked[-1] >= self.decided_at, (f"looked at {self.asked[-1]}",))


def test_seeds_come_in_the_groups_of_the_plan_until_all_is_decided_for_good(begin):
    late, queue = Looker(begin()), begin()
    looker = Looker(queue)
    assert sorted(take(queue)) == every([1, 2])
    assert looker.go_on()
    assert sorted(take(queue)) == every([3, 4])
    for one in (looker, late):  # who comes when all is made looks, or hears of it
        assert not one.go_on()
        assert one.said == ["looked at 2", "adding seeds 3, 4", "looked at 4"]
    again = Looker(begin(), decided_at=99)  # the sweep is started once more
    assert not again.go_on()
    assert late.asked == again.asked == []


def test_of_several_workers_that_look_one_decides_and_all_hear_it(begin):
    queues = [begin() for _ in range(4)]
    take(queues[0])
    lookers = [Looker(queue) for queue in queues]
    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(lambda looker: looker.go_on(), lookers)] == [True] * 4
    assert all("looked at 2" in looker.said for looker in lookers)
    assert {queue.sweep.added for queue in queues} == {((3, 4),)}


def test_a_look_goes_by_the_seeds_that_there_were_when_it_began(begin):
    queue, other = begin(), begin()
    take(queue)

    def slow() -> Look:
        assert Looker(other).go_on()  # another is faster
        queue.beat()
        return Look(False, ())

    assert Decisions(queue, LOOKS, slow, print).go_on()
    assert queue.sweep.added == ((3, 4),)


def test_new_seeds_continue_the_last_and_are_nobody_elses(read):
    sweep = read(parameters={"seed": [1, 5, 2]})
    assert next_seeds(sweep, 3) == (3, 4, 6)
    assert next_seeds(dataclasses.replace(sweep, added=((8, 9), (20,))), 2) == (21, 22)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "random"}, "method='random': --until-decided needs a grid; use method: grid"),
        ({"parameters": {"seed": []}}, "--until-decided adds seeds, the file has none"),
        ({"parameters": {"backend": ["none"]}}, "--until-decided needs a comparison"),
        (
            {"parameters": {"seed": ["a"]}},
            "parameters.seed='a': --until-decided counts on from the last; use whole",
        ),
        (
            {"parameters": {"seed": [*range(6)]}},
            "parameters.seed: 6 seeds: more than the 5 of the last look; set plan.looks",
        ),
        ({"run_cap": 3}, "run_cap: --until-decided looks at whole groups of seeds"),
        ({"metric": {"name": "x", "target": 0.9}}, "metric.target: --until-decided looks at whole groups"),
        (
            {"early_terminate": {"type": "hyperband", "min_iter": 3}, "metric": {"name": "x"}},
            "early_terminate: --until-decided looks at whole groups",
        ),
    ],
)
def test_a_sweep_that_cannot_be_decided_is_refused_in_a_line(read, changes, said):
    with pytest.raises(UserError) as caught:
        check_can_be_decided(read(**changes), LOOKS)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_search_through_a_range_cannot_be_decided_either(tmp_path):
    (tmp_path / "s.yaml").write_text("program: p\nmethod: random\nparameters: {x: {min: 0.0, max: 1.0}}\n")
    with pytest.raises(UserError, match="needs a grid; use method: grid"):
        check_can_be_decided(read_sweep(tmp_path / "s.yaml"), LOOKS)
