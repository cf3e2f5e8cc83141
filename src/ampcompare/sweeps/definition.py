"""What a sweep is, as its database keeps it: a file that says something else is another sweep.

But for more seeds: they are the same sweep, continued. The database keeps them in groups, each written once,
so that every worker has the same runs under the same numbers.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ampcompare.errors import UserError
from ampcompare.sweeps.distributions import Parameter, parse_spec
from ampcompare.sweeps.file import Sweep
from ampcompare.sweeps.points import SEED

DEFINING = ("method", "metric", "early_terminate", "program", "command")
PARAMETERS, WORDS = "parameters", "words of the command line"


@dataclass(frozen=True)
class Added:
    """A group of seeds: those that came, and what was said of the look that asked for them, if any.

    A look that asked for none ended it: all was decided, or no more looks were planned.
    """

    seeds: tuple[Any, ...]
    look: int | None = None  # the number of seeds at which somebody looked
    said: tuple[str, ...] = ()


def definition(sweep: Sweep, words: Sequence[str]) -> dict[str, Any]:
    """What makes a sweep the one it is, as JSON has it."""
    made: dict[str, Any] = {key: sweep.raw.get(key) for key in DEFINING}
    # In their order, which is that of the grid.
    made[PARAMETERS] = [*(sweep.raw.get(PARAMETERS) or {}).items()]
    made |= {WORDS: sorted(words), "control": sweep.control}
    if sweep.control:  # behind what the cap leaves of the grid
        made["run_cap"] = sweep.run_cap
    if sweep.cells:  # another version of ours may know other points for one run
        made["points that are runs"] = [sweep.cells.keys, sorted(sweep.cells.kept)]
    return json.loads(json.dumps(made))


def seed_of(sweep: Sweep, began: Mapping[str, Any]) -> str:
    """What a random search draws from: its name, and the definition with which it began."""
    return json.dumps([sweep.name, began])


class Changed(UserError):
    """A database holds another sweep under this name; the message is the list of what differs."""


def agreed(
    sweep: Sweep, theirs: Mapping[str, Any], ours: Mapping[str, Any], added: Sequence[Sequence[Any]] = ()
) -> tuple[Sweep, tuple[Any, ...]]:
    """The sweep as it began by the database, with the seeds that were `added` since, and those that the file
    has beyond. Raises Changed with the keys in which the file says something else.
    """
    differing, more = _differing(theirs, ours), ()
    if PARAMETERS in differing and sweep.is_grid:
        before, now = dict(theirs[PARAMETERS]), dict(ours[PARAMETERS])
        names = _differing(before, now)
        said = [f"parameters.{name}" for name in names] or ["the order of parameters"]
        own = sweep.axes.seed
        if own and names == [SEED] and [*before] == [*now]:
            began = Parameter((SEED,), *parse_spec(before[SEED]))
            had, have = began.values(), own.values()
            gone = ", ".join([str(seed) for seed in had if seed not in have][:3])
            said = [f"parameters.{SEED} ({gone} is gone; it can only get more)"] if gone else []
            known = [*had, *(seed for seeds in added for seed in seeds)]
            more = tuple(seed for seed in have if seed not in known)
            parameters = tuple(began if p == own else p for p in sweep.parameters)
            sweep = dataclasses.replace(sweep, parameters=parameters)
        place = differing.index(PARAMETERS)
        differing[place : place + 1] = said
    if WORDS in differing:  # by their names, as the file's keys
        words = sorted({*ours[WORDS]} ^ {*theirs[WORDS]})
        differing[differing.index(WORDS)] += f" ({', '.join([*words[:3], *(['...'] if words[3:] else [])])})"
    if differing:
        raise Changed(", ".join(differing))
    return dataclasses.replace(sweep, added=tuple(map(tuple, filter(None, added)))), more


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The keys of what differs, the order within it included: it is that of the grid."""
    return [key for key in {**one, **other} if json.dumps(one.get(key)) != json.dumps(other.get(key))]
