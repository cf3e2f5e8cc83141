"""The definition of a sweep: what must not change while it continues.

A file with another definition is another sweep. More seeds are the exception: they continue the sweep. The
journal keeps added seeds in groups, in the order in which they were added, so that a run keeps its index.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ampcompare.errors import UserError
from ampcompare.identity.agreement import SWEEP
from ampcompare.identity.run_identity import RunIdentity, differences, differing
from ampcompare.runtime.formatting import some
from ampcompare.sweeps.distributions import Parameter, parse_spec
from ampcompare.sweeps.journal import NEW_FOLDER_HINT, SweepState
from ampcompare.sweeps.sweep import BOOKENDS, SEED, Sweep
from ampcompare.sweeps.sweep_command import SweepCommand

DEFINING = ("method", "metric", "early_terminate", "program", "command")
PARAMETERS, OVERRIDES = "parameters", "words of the command line"
ORDER = "the order of parameters"
SETTINGS = "resolved options"
MAX_NAMED = 4


def definition(
    sweep: Sweep, overrides: Sequence[str], settings: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the definition of a sweep in types that JSON has.

    Args:
        overrides: Options for every run (`key=value`).
        settings: The options that all runs share (`training_options.shared_settings`).
    """
    content: dict[str, Any] = {key: sweep.raw.get(key) for key in DEFINING}
    # As a list: the order of parameters is the order of the grid.
    content[PARAMETERS] = [*(sweep.raw.get(PARAMETERS) or {}).items()]
    # Bookends were the only control of earlier versions, which wrote true and false.
    control = {None: False, BOOKENDS: True}.get(sweep.control, sweep.control)
    content |= {OVERRIDES: sorted(overrides), "control": control}
    if sweep.control == BOOKENDS:  # the last runs of the control come behind the cap
        content["run_cap"] = sweep.run_cap
    if sweep.seeds_per_process > 1:  # the order of the runs depends on it
        content["seeds per process"] = sweep.seeds_per_process
    if sweep.distinct_points:  # another version of AMP Compare may find other equal points
        content["points that are runs"] = [
            sweep.distinct_points.keys,
            sorted(sweep.distinct_points.combinations),
        ]
    if settings:
        content[SETTINGS] = settings
    return json.loads(json.dumps(content))


def seed_of(sweep: Sweep, began: Mapping[str, Any]) -> str:
    """Return the seed of a random search: its name, and the definition with which it began.

    The resolved options are left out, so that a new option of AMP Compare changes no draws.
    """
    return json.dumps([sweep.name, {key: value for key, value in began.items() if key != SETTINGS}])


def continued_sweep(
    sweep: Sweep, present: Mapping[str, Any], state: SweepState, where: str
) -> tuple[Sweep, tuple[Any, ...]]:
    """Return the sweep as it began, with the seeds that were added since, and the seeds that are new.

    Args:
        sweep: The sweep of the file.
        present: Its definition.
        state: The sweep as its journal tells it.
        where: Folder of the sweep, for the message.

    Raises:
        UserError: If the definition differs in more than added seeds; the message names the difference.
    """
    recorded, parts = _parts(state.definition), _parts(present)
    changed = [difference.key for difference in differing(recorded, parts)]
    own, key, more = sweep.seed if sweep.is_grid else None, f"{PARAMETERS}.{SEED}", ()
    if own and changed == [key]:
        first = Parameter((SEED,), *parse_spec(json.loads(recorded[key])))
        had, have = first.values(), own.values()
        gone = ", ".join([str(seed) for seed in had if seed not in have][:3])
        changed = [f"{key} ({gone} is missing; seeds can only be added)"] if gone else []
        known = [*had, *(seed for seeds in state.added_seeds for seed in seeds)]
        more = tuple(seed for seed in have if seed not in known)
        parameters = tuple(first if p == own else p for p in sweep.parameters)
        sweep = dataclasses.replace(sweep, parameters=parameters)
    if changed:
        names = ", ".join(key for key in changed if key != ORDER or len(changed) == 1)
        why = f"the folder {where} has a sweep that differs in {names}"
        begun = SweepCommand.of_data(state.command).text()
        raise UserError(
            f"{sweep.path}: {why}; {NEW_FOLDER_HINT}; the sweep in this folder was started with: {begun}"
        )
    first_runs, next_runs = (
        RunIdentity.of_parts(content.get(SETTINGS, {}), is_complete=True)
        for content in (state.definition, present)
    )
    if found := differences(first_runs, next_runs, SWEEP.equal):
        settings = [f"{key}={now} instead of {before}" for key, before, now in found]
        raise UserError(
            f"{sweep.path}: the next runs of the sweep in {where} would have other settings than its first "
            f"runs ({some(settings, MAX_NAMED)}); restore the config file or the version of AMP Compare, "
            f"or {NEW_FOLDER_HINT}"
        )
    return dataclasses.replace(sweep, added=(*state.added_seeds, *([more] if more else []))), more


def _parts(content: Mapping[str, Any]) -> dict[str, str]:
    """Return the parts of a definition by name, as JSON text, for the message about a difference."""
    parts = {k: v for k, v in content.items() if k not in (PARAMETERS, OVERRIDES, SETTINGS) and v is not None}
    parts |= {f"{PARAMETERS}.{name}": spec for name, spec in content[PARAMETERS]}
    parts |= {f"the option {override}": True for override in content[OVERRIDES]}
    parts[ORDER] = [name for name, _ in content[PARAMETERS]]
    return {key: json.dumps(value) for key, value in parts.items()}
