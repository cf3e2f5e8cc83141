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

    A look that asked for none (`is_last`) ended it: all was decided, or no more looks were planned.
    """

    seeds: tuple[Any, ...]
    look: int | None = None  # the number of seeds at which somebody looked
    said: tuple[str, ...] = ()

    @property
    def is_last(self) -> bool:
        return self.look is not None and not self.seeds


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


class Changed(UserError):
    """A database holds another sweep under this name; the message is the list of what differs."""


def agreed(sweep: Sweep, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> tuple[Sweep, tuple[Any, ...]]:
    """The sweep as it began by the database, and the seeds that the file has beyond those it began with.

    Raises Changed with the keys in which the file says something else.
    """
    changed = [key for key in {**theirs, **ours} if _differ(ours.get(key), theirs.get(key))]
    if WORDS in changed:  # by their names, as the file's keys
        words = sorted({*ours[WORDS]} ^ {*theirs[WORDS]})
        some = ", ".join([*words[:3], *(["..."] if len(words) > 3 else [])])
        changed[changed.index(WORDS)] = f"{WORDS} ({some})"
    more: tuple[Any, ...] = ()
    if PARAMETERS in changed and sweep.is_grid:
        place, before, now = changed.index(PARAMETERS), dict(theirs[PARAMETERS]), dict(ours[PARAMETERS])
        names = [name for name in {**before, **now} if _differ(before.get(name), now.get(name))]
        if names == [SEED] and [*before] == [*now]:
            had, have = (_seeds(spec[SEED]) for spec in (before, now))
            gone, more = [s for s in had if s not in have], tuple(s for s in have if s not in had)
            some = ", ".join(map(str, gone[:3]))
            changed[place : place + 1] = (
                [f"parameters.{SEED} ({some} is gone; it can only get more)"] if gone else []
            )
            began = Parameter((SEED,), *parse_spec(before[SEED]))
            parameters = tuple(began if p.path == (SEED,) else p for p in sweep.parameters)
            sweep = dataclasses.replace(sweep, parameters=parameters)
        else:
            changed[place] = ", ".join(f"parameters.{name}" for name in names) or "the order of parameters"
    if changed:
        raise Changed(", ".join(changed))
    return sweep, more


def _differ(one: Any, other: Any) -> bool:
    """Whether two parts of a definition do, the order in them included: it is that of the grid."""
    return json.dumps(one) != json.dumps(other)


def _seeds(spec: Any) -> list[Any]:
    parameter = Parameter((SEED,), *parse_spec(spec))
    return [parameter.grid_value(i) for i in range(parameter.grid_size())]
