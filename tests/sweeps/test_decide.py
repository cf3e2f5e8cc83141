"""Seeds are added until all is decided: when it looks, who decides, what it says, and when it cannot."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ampcompare.errors import UserError
from ampcompare.sweeps.decide import Decisions, Look, check_can_be_decided, next_seeds
from ampcompare.sweeps.distributions import Parameter
from ampcompare.sweeps.file import Hyperband, Objective, Sweep
from ampcompare.sweeps.queue import Queue
from ampcompare.sweeps.storage import sqlite_url

LOOKS = (2, 4, 5)


def listed(key, values) -> Parameter:
    return Parameter((key,), "categorical", {"values": values})


def sweep_of(seeds=(1, 2), backends=("none", "native"), **changes) -> Sweep:
    parameters = (listed("backend", [*backends]), listed("seed", [*seeds]))
    raw = {"method": "grid", "parameters": {p.key: dict(p.settings) for p in parameters}}
    return Sweep(
        **{"path": Path("s.yaml"), "name": "s", "method": "grid", "parameters": parameters, "raw": raw}
        | changes
    )


@pytest.fixture
def queue(tmp_path) -> Queue:
    return begin(tmp_path)


def begin(folder: Path) -> Queue:
    return Queue(sweep_of(), sqlite_url(folder), "s", plan={})


def run_all(queue: Queue) -> list[int]:
    """Make every run that is left; returns their seeds, each once."""
    seeds = set()
    while row := queue.claim():
        seeds.add(row.parameters["seed"])
        queue.end(row, "finished")
    return sorted(seeds)


class Looker:
    """Decides at a number of seeds, and remembers at which it was asked."""

    def __init__(self, queue: Queue, decided_at: int) -> None:
        self.queue, self.decided_at = queue, decided_at
        self.asked: list[int] = []
        self.said: list[str] = []
        self.go_on = Decisions(queue, LOOKS, self.look, self.said.append).go_on

    def look(self) -> Look:
        seeds = self.queue.sweep.seeds
        self.asked.append(seeds)
        return Look(seeds >= self.decided_at, (f"looked at {seeds}",))


def see_through(queue: Queue, looker: Looker) -> list[list[int]]:
    rounds = [run_all(queue)]
    while looker.go_on():
        rounds.append(run_all(queue))
    return rounds


def test_seeds_come_in_the_groups_of_the_plan_until_all_is_decided_for_good(queue, tmp_path):
    looker = Looker(queue, decided_at=4)
    assert see_through(queue, looker) == [[1, 2], [3, 4]]
    assert looker.said == ["looked at 2", "adding seeds 3, 4", "looked at 4"]
    again = begin(tmp_path)  # the sweep is started once more
    looker = Looker(again, decided_at=99)
    assert see_through(again, looker) == [[]]
    assert looker.asked == []


def test_of_several_workers_that_look_one_decides_and_all_hear_it(tmp_path):
    queues = [begin(tmp_path) for _ in range(4)]
    run_all(queues[0])
    lookers = [Looker(queue, decided_at=4) for queue in queues]
    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(lambda looker: looker.go_on(), lookers)] == [True] * 4
    assert all("looked at 2" in looker.said for looker in lookers)
    assert {queue.sweep.added for queue in queues} == {((3, 4),)}


def test_a_worker_that_comes_when_all_is_looked_at_looks_at_the_next_number_of_seeds(queue, tmp_path):
    late = Looker(begin(tmp_path), decided_at=4)
    run_all(queue)
    assert Looker(queue, decided_at=4).go_on()
    run_all(queue)
    assert not late.go_on()
    assert late.said == ["looked at 2", "adding seeds 3, 4", "looked at 4"]


def test_new_seeds_continue_the_last_and_are_nobody_elses():
    assert next_seeds(sweep_of([1, 5, 2]), 3) == (3, 4, 6)
    assert next_seeds(sweep_of([7], added=((8, 9), (20,))), 2) == (21, 22)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "random"}, "method='random': --until-decided needs a grid; use method: grid"),
        ({"parameters": (listed("backend", ["a", "b"]),)}, "--until-decided adds seeds, the file has none"),
        ({"backends": ["none"]}, "--until-decided needs a comparison"),
        ({"seeds": ["a"]}, "parameters.seed='a': --until-decided counts on from the last; use whole"),
        ({"seeds": range(6)}, "parameters.seed: 6 seeds: more than the 5 of the last look; set plan.looks"),
        ({"run_cap": 3}, "run_cap: --until-decided looks at whole groups of seeds"),
        ({"metric": Objective(name="x", target=0.9)}, "metric.target: --until-decided looks at whole groups"),
        (
            {"hyperband": Hyperband(type="hyperband", min_iter=3)},
            "early_terminate: --until-decided looks at whole groups",
        ),
    ],
)
def test_a_sweep_that_cannot_be_decided_is_refused_in_a_line(changes, said):
    with pytest.raises(UserError) as caught:
        check_can_be_decided(sweep_of(**changes), LOOKS)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
