"""What a sweep is, as its database keeps it: a file that says something else is another sweep.

But for more seeds: they are the same sweep, continued. The database keeps them in groups, each written once,
so that every worker has the same runs under the same numbers.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ampcompare.errors import UserError
from ampcompare.sweeps.distributions import Parameter, parse_spec
from ampcompare.sweeps.sweep import SEED, Sweep

DEFINING = ("method", "metric", "early_terminate", "program", "command")
PARAMETERS, WORDS = "parameters", "words of the command line"
ORDER = "the order of parameters"


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


def agreed(
    sweep: Sweep,
    words: Sequence[str],
    began: Mapping[str, Any],
    added: Sequence[Sequence[Any]],
    where: str,
) -> tuple[Sweep, tuple[Any, ...]]:
    """The sweep of a file and its words as it began `where` it is kept, with the seeds that were `added`
    since and those that the file has beyond, and these. Raises UserError with what the file says otherwise.
    """
    theirs, ours = _parts(began), _parts(definition(sweep, words))
    differing = [key for key in {**theirs, **ours} if theirs.get(key) != ours.get(key)]
    own, key, more = sweep.seed if sweep.is_grid else None, f"{PARAMETERS}.{SEED}", ()
    if own and differing == [key]:
        first = Parameter((SEED,), *parse_spec(json.loads(theirs[key])))
        had, have = first.values(), own.values()
        gone = ", ".join([str(seed) for seed in had if seed not in have][:3])
        differing = [f"{key} ({gone} is gone; it can only get more)"] if gone else []
        known = [*had, *(seed for seeds in added for seed in seeds)]
        more = tuple(seed for seed in have if seed not in known)
        parameters = tuple(first if p == own else p for p in sweep.parameters)
        sweep = dataclasses.replace(sweep, parameters=parameters)
    if differing:
        said = ", ".join(key for key in differing if key != ORDER or len(differing) == 1)
        why = f"a sweep named {sweep.name!r} is in {where} already and differs in {said}"
        todo = "set output_dir=... (--name) for a new one, or give it the file and the words of that one"
        raise UserError(f"{sweep.path}: {why}; {todo}")
    groups = (*map(tuple, filter(None, added)), *([more] if more else []))
    return dataclasses.replace(sweep, added=groups), more


def _parts(made: Mapping[str, Any]) -> dict[str, str]:
    """All that can differ by its name, as JSON: the order within it is that of the grid."""
    parts = {k: v for k, v in made.items() if k not in (PARAMETERS, WORDS) and v is not None}
    parts |= {f"{PARAMETERS}.{name}": spec for name, spec in made[PARAMETERS]}
    parts |= {f"{WORDS} ({word})": True for word in made[WORDS]}
    parts[ORDER] = [name for name, _ in made[PARAMETERS]]
    return {key: json.dumps(value) for key, value in parts.items()}
