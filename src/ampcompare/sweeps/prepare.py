"""A sweep made ready to run, to submit or to be looked at: file, words and options as one, checked once."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ampcompare.config.beside import PlanConfig
from ampcompare.config.load import split_override
from ampcompare.errors import UserError
from ampcompare.sweeps.check import check, trains_here
from ampcompare.sweeps.file import Sweep, key_of, read_sweep

CONTROL, BOOKENDS = "plan.control", "bookends"
LOOKS = (3, 6, 10)  # numbers of seeds, where a plan names none


@dataclass(frozen=True)
class Prepared:
    """A sweep, and what follows from it and from the words of its command line.

    `given` are these, `words` those of them that go behind every command, `output` is the folder of all runs,
    `here` whether it is our training, `said` what is to be said of it before the first run. `told` is what of
    the plan each run is told beside what is in the file; None: nothing, not even its place, as a program of
    others or a run of W&B's server needs to know of a plan only where there is one.
    """

    sweep: Sweep
    plan: PlanConfig
    given: tuple[str, ...]
    words: tuple[str, ...]
    output: Path
    here: bool
    said: tuple[str, ...] = ()
    looks: tuple[int, ...] = ()
    on_cpu: bool = False

    @property
    def told(self) -> dict[str, Any] | None:
        told: dict[str, Any] = {"control": BOOKENDS} if self.sweep.control else {}
        told |= {"looks": [*self.looks]} if self.looks else {}
        return told if told or (self.here and not self.sweep.on_server) else None

    @property
    def planned(self) -> str:
        """Briefly: `margin 0.5, looks [3, 6, 10]`; nothing where nothing was."""
        own = vars(self.plan) | ({"control": BOOKENDS} if self.sweep.control else {})
        return ", ".join(f"{key} {value}" for key, value in own.items() if value != vars(PlanConfig())[key])


def prepare(
    file: str,
    words: Sequence[str],
    name: str | None = None,
    control: str | None = None,
    *,
    decides: bool = False,
) -> Prepared:
    """The sweep of a file, or of one that comes along. `name` and `control` are those options, `decides` is
    whether it goes on until all is decided. Raises UserError; nothing has been written or started.
    """
    for word in words:
        split_override(word)  # whether it is one
    sweep = read_sweep(file, words)
    return prepared(sweep if name is None else replace(sweep, name=name), words, control, decides=decides)


def prepared(
    sweep: Sweep, words: Sequence[str], control: str | None = None, *, decides: bool = False
) -> Prepared:
    """The same of a sweep that was read; words that name one of its parameters have changed its values."""
    # The name becomes a folder and W&B's group.
    is_word = re.fullmatch(r"[^\x00-\x1f\x7f/\\:\ud800-\udfff]{1,100}", sweep.name) and sweep.name.strip(" .")
    if not is_word or len(sweep.name.encode()) > 200:
        expected = "expected 1 to 100 characters that can be a folder's name"
        raise UserError(f"name={sweep.name!r}: {expected}; set name or --name")
    varied = {p.key for p in sweep.parameters}
    own = tuple(word for word in words if key_of(word) not in varied)
    if sweep.on_server and (taken := [word for word in words if word not in own]):
        raise UserError(f"{taken[0]}: the sweep varies it; leave it out")
    plan, cells, said = check(sweep, own)
    has_control = not sweep.on_server and _has_control(plan, sweep, control)  # of which that knows nothing
    given = dict(split_override(word) for word in own)
    return Prepared(
        replace(sweep, control=has_control, cells=cells),
        plan,
        tuple(words),
        tuple(word for word in own if key_of(word) != "output_dir"),
        Path(given.get("output_dir") or Path("runs") / sweep.name),
        trains_here(sweep),
        tuple(said),
        _looks_of(plan) if decides else (),
        given.get("device", "").startswith("cpu"),
    )


def _has_control(plan: PlanConfig, sweep: Sweep, asked: str | None) -> bool:
    """Whether the sweep has a control, given `--control`. Raises UserError where it cannot have one."""
    if asked not in (None, "none", BOOKENDS):
        raise UserError(f"--control {asked!r}: expected one of none, {BOOKENDS}")
    if asked not in (None, plan.control) and CONTROL in {p.key for p in sweep.parameters}:
        raise UserError(f"--control {asked}: the file has plan.control={plan.control}; change one of them")
    if (asked or plan.control) != BOOKENDS:
        return False
    option = f"--control {asked}" if asked else f"plan.control={plan.control}"
    if not sweep.is_grid or sweep.hyperband:
        what = "early_terminate" if sweep.is_grid else f"method {sweep.method}"
        raise UserError(f"{option}: needs a grid whose runs all end, the file has {what}; leave one out")
    if sweep.run_cap is not None and sweep.run_cap <= 2 * sweep.seeds:
        least = f"more than the {2 * sweep.seeds} runs of the control"
        raise UserError(f"run_cap={sweep.run_cap}: {option} needs {least}; raise it or leave one out")
    return True


def _looks_of(plan: PlanConfig) -> tuple[int, ...]:
    """At how many seeds a sweep that goes on until all is decided is looked at; the last look ends it."""
    looks = plan.looks or LOOKS
    most = plan.max_seeds or looks[-1]
    return (*(look for look in looks if look < most), most)
