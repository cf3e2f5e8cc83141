"""`ampcompare sweep --until-decided`: seeds are added in groups until the report has decided every claim.

Looking often and stopping at the first answer that one likes finds differences where there are none. So the
looks are planned (`plan.looks`), every run carries the plan, and the report tests at the level that keeps 5 %
over all of them. What one worker decides at a look is written once, for all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count, islice

from ampcompare.errors import UserError
from ampcompare.sweeps.definition import Added
from ampcompare.sweeps.distributions import is_whole
from ampcompare.sweeps.queue import Queue
from ampcompare.sweeps.sweep import Sweep


@dataclass(frozen=True)
class Look:
    """What a look at the runs came to: whether more seeds could still decide something, and how to say it."""

    is_over: bool
    said: tuple[str, ...]


def check_can_be_decided(sweep: Sweep, looks: Sequence[int]) -> None:
    """Raise UserError where seeds cannot be added to a sweep until all is decided."""
    option, seed, problem = "--until-decided", sweep.seed, ""
    target = sweep.metric.target if sweep.metric else None
    ending = {"run_cap": sweep.run_cap, "early_terminate": sweep.hyperband, "metric.target": target}
    cutting = next((key for key, value in ending.items() if value is not None), None)
    if not sweep.is_grid:
        problem = f"method={sweep.method!r}: {option} needs a grid; use method: grid"
    elif seed is None:
        problem = f"parameters: {option} adds seeds, the file has none; add seed: {{values: [1, 2, 3]}}"
    elif sweep.compared is None:
        todo = "add such as backend: {values: [none, native]}"
        problem = f"parameters: {option} needs a comparison; {todo}"
    elif wrong := [value for value in seed.examples() if not is_whole(value, 0)]:
        problem = f"parameters.seed={wrong[0]!r}: {option} counts on from the last; use whole numbers"
    elif sweep.seeds > looks[-1]:
        why = f"more than the {looks[-1]} of the last look"
        problem = f"parameters.seed: {sweep.seeds} seeds: {why}; set plan.looks"
    elif cutting:
        why = f"{option} looks at whole groups of seeds, which this cuts short"
        problem = f"{cutting}: {why}; leave it out"
    if problem:
        raise UserError(f"{sweep.path}: {problem}")


def next_seeds(sweep: Sweep, amount: int) -> tuple[int, ...]:
    """The seeds that continue those of the sweep: from the last one on, none of them twice."""
    own = sweep.seed
    assert own is not None
    have = own.values() + [seed for group in sweep.added for seed in group]
    return tuple(islice((seed for seed in count(have[-1] + 1) if seed not in have), amount))


def fill_first_look(queue: Queue, looks: Sequence[int]) -> None:
    """Add the seeds that are missing for the first look that the sweep has not passed."""
    while (now := queue.sweep.seeds) not in looks:
        ahead = next(look for look in looks if look > now)
        queue.add(Added(next_seeds(queue.sweep, ahead - now)))


@dataclass
class Decisions:
    """The looks at a sweep, whose runs `look` looks at. Several workers may look at once; the database keeps
    what the first of them says, and each says what was seen at all of them.
    """

    queue: Queue
    looks: Sequence[int]
    look: Callable[[], Look]
    say: Callable[[str], None]

    def __post_init__(self) -> None:
        self._heard = len(self.queue.read_added())

    def go_on(self) -> bool:
        """With no more runs to make: look, or hear what another saw. Whether there are runs to make now."""
        is_done, seeds = self.queue.is_all_done(), self.queue.sweep.seeds
        if is_done and seeds not in [group.look for group in self.queue.added]:
            found = self.look()
            ahead = next((number for number in self.looks if number > seeds), seeds)
            more = () if found.is_over else next_seeds(self.queue.sweep, ahead - seeds)
            follows = f"adding {'seed' if len(more) == 1 else 'seeds'} {', '.join(map(str, more))}"
            if not more:
                follows = "this was the last look of the plan: what is undecided stays so"
            self.queue.add(Added(more, seeds, found.said if found.is_over else (*found.said, follows)))
        fresh = self.queue.read_added()[self._heard :]
        self._heard += len(fresh)
        for line in (line for group in fresh for line in group.said):
            self.say(line)
        return not self.queue.is_all_done()
