"""The plan of a sweep (`plan.*`): what file, command and command line say of it, and what follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ampcompare.config.beside import PlanConfig
from ampcompare.config.load import split_override, typed_values
from ampcompare.config.schema import Config
from ampcompare.errors import UserError
from ampcompare.sweeps.check import first_config, trains_here
from ampcompare.sweeps.file.sweep import BOOKENDS, Sweep

GROUP = "plan."
LOOKS = (3, 6, 10)  # numbers of seeds, where a plan names none


def plan_of(sweep: Sweep, words: Sequence[str]) -> PlanConfig:
    """The plan that the runs will have in their config, with the `key=value` words behind every command.

    Of a program that is not ours it is what file and words say, as far as it is a plan. Raises UserError.
    """
    if trains_here(sweep):
        return first_config(sweep, words).plan
    known = {f"{GROUP}{name}" for name in PlanConfig.__dataclass_fields__}
    found: dict[str, Any] = {p.key: p.grid_value(0) for p in sweep.parameters if p.is_listed}
    found |= dict(split_override(word) for word in words)
    try:
        typed = typed_values(Config(), {key: value for key, value in found.items() if key in known})
    except UserError:  # options of its own that are called so
        return PlanConfig()
    return PlanConfig(**{key.removeprefix(GROUP): value for key, value in typed.items()})


def with_control(plan: PlanConfig, sweep: Sweep, asked: str | None) -> bool:
    """Whether the sweep has a control, given `--control`. Raises UserError where it cannot have one."""
    said = {p.key for p in sweep.parameters} & {f"{GROUP}control"}
    if asked is not None and asked not in ("none", BOOKENDS):
        raise UserError(f"--control {asked!r}: expected one of none, {BOOKENDS}")
    if asked is not None and said and asked != plan.control:
        raise UserError(f"--control {asked}: the file has plan.control={plan.control}; change one of them")
    if (asked or plan.control) != BOOKENDS:
        return False
    option = f"--control {asked}" if asked else f"plan.control={plan.control}"
    if not sweep.is_grid or sweep.hyperband:
        what = "early_terminate" if sweep.is_grid else f"method {sweep.method}"
        raise UserError(f"{option}: needs a grid whose runs all end, the file has {what}; leave one out")
    return True


def looks_of(plan: PlanConfig) -> tuple[int, ...]:
    """The numbers of seeds at which a sweep that goes on until all is decided is looked at; the last ends it.

    Raises UserError where the plan has seeds beyond its last look.
    """
    if plan.looks:
        if plan.max_seeds is not None and plan.max_seeds != plan.looks[-1]:
            where = f"plan.looks={plan.looks}: the last is not plan.max_seeds={plan.max_seeds}"
            raise UserError(f"{where}; look at the last seeds too, or leave max_seeds out")
        return tuple(plan.looks)
    most = plan.max_seeds or LOOKS[-1]
    return (*(look for look in LOOKS if look < most), most)


def told_to_runs(sweep: Sweep, plan: PlanConfig, looks: Sequence[int], here: bool) -> dict[str, Any] | None:
    """What of the plan every run is told beside what is in the file; None: nothing, not even its place.

    A program of others is told of a plan only where there is something that the report has to know.
    """
    known = {name for name in ("control", "looks") if getattr(plan, name) not in (None, "none")}
    if not here:  # words of the command line reach its record no more than its options
        known = {p.key.removeprefix(GROUP) for p in sweep.parameters if p.key.startswith(GROUP)}
    asked = {"control": BOOKENDS if sweep.control else None, "looks": [*looks] or None}
    told = {name: value for name, value in asked.items() if value is not None and name not in known}
    return told if here or sweep.control or looks else None


def shown(plan: PlanConfig) -> str:
    """What was planned, briefly: `margin 0.5, looks 3, 6, 10`; nothing where nothing was."""
    parts = [f"margin {plan.margin:g}"] if plan.margin is not None else []
    parts += [f"target {plan.target:g}"] if plan.target is not None else []
    parts += [f"looks at {', '.join(map(str, plan.looks))} seeds"] if plan.looks else []
    parts += [f"{plan.max_seeds} seeds at most"] if plan.max_seeds else []
    parts += [f"control {plan.control}"] if plan.control != "none" else []
    return ", ".join(parts)
