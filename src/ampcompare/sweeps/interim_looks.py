"""Interim looks of `ampcompare sweep --until-decided`.

Seeds are added in groups until the report has decided every claim. Looking often and stopping at the first
answer that one likes finds differences where there are none. So the looks are planned (`plan.looks`), every
run carries the plan, and the report tests at a level that keeps 5% over all looks together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, islice

from ampcompare.errors import UserError
from ampcompare.sweeps.distributions import is_whole
from ampcompare.sweeps.journal import Journal, SeedGroup
from ampcompare.sweeps.sweep import Sweep


@dataclass(frozen=True)
class Look:
    """The result of an interim look at the runs.

    Attributes:
        is_over: Whether more seeds would decide nothing more.
        messages: What to tell the user.
    """

    is_over: bool
    messages: tuple[str, ...]


def check_can_be_decided(sweep: Sweep, looks: Sequence[int]) -> None:
    """Check that seeds can be added to a sweep until every claim is decided.

    Raises:
        UserError: If they cannot.
    """
    option, seed, problem = "--until-decided", sweep.seed, ""
    target = sweep.metric.target if sweep.metric else None
    ending = {"run_cap": sweep.run_cap, "early_terminate": sweep.hyperband, "metric.target": target}
    cutting = next((key for key, value in ending.items() if value is not None), None)
    if not sweep.is_grid:
        problem = f"method={sweep.method!r}: {option} needs a grid; use method: grid"
    elif seed is None:
        problem = (
            f"parameters: {option} adds seeds, but the file varies no seed; add seed: {{values: [1, 2, 3]}}"
        )
    elif sweep.compared is None:
        problem = (
            f"parameters: {option} needs a parameter to compare; "
            "add for example backend: {values: [none, native]}"
        )
    elif wrong := [value for value in seed.examples() if not is_whole(value, 0)]:
        problem = (
            f"parameters.seed={wrong[0]!r}: {option} adds the next whole numbers; use whole numbers as seeds"
        )
    elif sweep.seeds > looks[-1]:
        problem = (
            f"parameters.seed: {sweep.seeds} seeds: more than the {looks[-1]} seeds of the last look; "
            "set plan.looks"
        )
    elif cutting:
        problem = (
            f"{cutting}: {option} needs all runs of each seed, but this can end runs or the sweep early; "
            "leave it out"
        )
    if problem:
        raise UserError(f"{sweep.path}: {problem}")


def next_seeds(sweep: Sweep, amount: int) -> tuple[int, ...]:
    """Return the seeds that continue those of the sweep: counted on from the last one, none twice."""
    own = sweep.seed
    assert own is not None
    have = own.values() + [seed for group in sweep.added for seed in group]
    return tuple(islice((seed for seed in count(have[-1] + 1) if seed not in have), amount))


def fill_first_look(sweep: Sweep, journal: Journal, looks: Sequence[int]) -> None:
    """Add the seeds that are missing for the first look that the sweep has not passed."""
    if sweep.seeds not in looks:
        ahead = next(look for look in looks if look > sweep.seeds)
        journal.add_seeds(SeedGroup(next_seeds(sweep, ahead - sweep.seeds)))
