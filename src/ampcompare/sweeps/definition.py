"""What makes a sweep the one that it is. A file that says something else is another sweep.

More seeds are the exception: they continue the sweep. The journal keeps them in groups, in the order in which
they came, so that a run keeps its number.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ampcompare.errors import UserError
from ampcompare.sweeps.distributions import Parameter, parse_spec
from ampcompare.sweeps.journal import NEW_FOLDER_HINT
from ampcompare.sweeps.sweep import SEED, Sweep

DEFINING = ("method", "metric", "early_terminate", "program", "command")
PARAMETERS, WORDS = "parameters", "words of the command line"
ORDER = "the order of parameters"


def definition(sweep: Sweep, words: Sequence[str]) -> dict[str, Any]:
    """Return what makes a sweep the one that it is, as JSON."""
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
    """Return what a random search draws from: its name, and the definition with which it began."""
    return json.dumps([sweep.name, began])


def continued_sweep(
    sweep: Sweep,
    words: Sequence[str],
    began: Mapping[str, Any],
    added: Sequence[Sequence[Any]],
    where: str,
) -> tuple[Sweep, tuple[Any, ...]]:
    """Return the sweep as it began, with the seeds that were added since, and the seeds that are new.

    Args:
        sweep: The sweep of the file.
        words: `key=value` words behind every command.
        began: The definition with which the sweep began.
        added: Groups of seeds that were added since.
        where: Folder of the sweep, for the message.

    Raises:
        UserError: If the file says anything else than more seeds; the message names it.
    """
    try:
        recorded = _parts(began)
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{where}: its sweep.json does not define a sweep; {NEW_FOLDER_HINT}") from None
    present = _parts(definition(sweep, words))
    differing = [key for key in {**recorded, **present} if recorded.get(key) != present.get(key)]
    own, key, more = sweep.seed if sweep.is_grid else None, f"{PARAMETERS}.{SEED}", ()
    if own and differing == [key]:
        first = Parameter((SEED,), *parse_spec(json.loads(recorded[key])))
        had, have = first.values(), own.values()
        gone = ", ".join([str(seed) for seed in had if seed not in have][:3])
        differing = [f"{key} ({gone} is gone; it can only get more)"] if gone else []
        known = [*had, *(seed for seeds in added for seed in seeds)]
        more = tuple(seed for seed in have if seed not in known)
        parameters = tuple(first if p == own else p for p in sweep.parameters)
        sweep = dataclasses.replace(sweep, parameters=parameters)
    if differing:
        names = ", ".join(key for key in differing if key != ORDER or len(differing) == 1)
        why = f"the sweep in {where} differs in {names}"
        todo = f"{NEW_FOLDER_HINT}, or use the file and the words of that one"
        raise UserError(f"{sweep.path}: {why}; {todo}")
    groups = (*map(tuple, filter(None, added)), *([more] if more else []))
    return dataclasses.replace(sweep, added=groups), more


def _parts(made: Mapping[str, Any]) -> dict[str, str]:
    """Return all that can differ by its name, as JSON; the order of parameters is that of the grid."""
    parts = {k: v for k, v in made.items() if k not in (PARAMETERS, WORDS) and v is not None}
    parts |= {f"{PARAMETERS}.{name}": spec for name, spec in made[PARAMETERS]}
    parts |= {f"{WORDS} ({word})": True for word in made[WORDS]}
    parts[ORDER] = [name for name, _ in made[PARAMETERS]]
    return {key: json.dumps(value) for key, value in parts.items()}
