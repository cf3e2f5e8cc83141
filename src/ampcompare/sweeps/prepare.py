"""A sweep made ready to run, to submit or to be looked at: file, words and options as one, checked once."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ampcompare.config.load import parse_override
from ampcompare.config.schema import PlanConfig
from ampcompare.errors import UserError
from ampcompare.program.place import as_typed
from ampcompare.sweeps.check import check, trains_here
from ampcompare.sweeps.file import key_of, read_sweep
from ampcompare.sweeps.storage import Address, shown, sqlite_url
from ampcompare.sweeps.sweep import Sweep

GRACE_SECONDS = 60.0
CONTROL, BOOKENDS = "plan.control", "bookends"
LOOKS = (3, 6, 10)  # numbers of seeds, where a plan names none


@dataclass(frozen=True)
class Request:
    """What the command line asks of a sweep beside its file and the options of its runs."""

    workers: int | None = None
    storage: str | None = None
    name: str | None = None
    grace_seconds: float = GRACE_SECONDS
    control: str | None = None
    until_decided: bool = False
    report: bool = True  # the table and the page behind the last run


@dataclass(frozen=True)
class Prepared:
    """A sweep, and what follows from it and from its command line.

    `file` and `request` are what that asked for, `given` its words, `words` those of them that go behind
    every command, `output` is the folder of all runs, `here` whether it is our training, `said` what is to
    be said of it before the first run.
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
    file: str = ""
    request: Request = Request()

    @property
    def url(self) -> Address:
        """Of the sweep's database, by default in its folder."""
        return sqlite_url(self.output) if self.request.storage is None else self.request.storage

    @property
    def told(self) -> dict[str, Any] | None:
        """What of the plan each run is told beside what is in the file; None: nothing, not even its place, as
        a program of others or a run of W&B's server needs to know of a plan only where there is one.
        """
        told: dict[str, Any] = {"control": BOOKENDS} if self.sweep.control else {}
        told |= {"looks": [*self.looks]} if self.looks else {}
        return told if told or (self.here and not self.sweep.on_server) else None

    @property
    def planned(self) -> str:
        """Briefly: `margin 0.5, looks [3, 6, 10]`; nothing where nothing was."""
        own = vars(self.plan) | ({"control": BOOKENDS} if self.sweep.control else {})
        return ", ".join(f"{key} {value}" for key, value in own.items() if value != vars(PlanConfig())[key])

    def again(self, *asked: str) -> str:
        """The command that goes on with what was asked for; `asked` are options without a value."""
        of = self.request
        options = {
            "--workers": of.workers,
            "--storage": of.storage and shown(of.storage),
            "--name": of.name,
            "--grace": of.grace_seconds if of.grace_seconds != GRACE_SECONDS else None,
            "--control": of.control,
        }
        words = [*asked, *(["--until-decided"] if of.until_decided else [])]
        words += [f"{key}={value}" for key, value in options.items() if value is not None]
        return as_typed("ampcompare", "sweep", self.file, *words, *self.given)


def prepare(file: str, words: Sequence[str], request: Request = Request()) -> Prepared:
    """The sweep of a file, or of one that comes along. Raises UserError, with nothing written or started."""
    for word in words:
        parse_override(word)  # whether it is one
    sweep = read_sweep(file, words)
    sweep = sweep if request.name is None else replace(sweep, name=request.name)
    ready = prepared(sweep, words, request.control, decides=request.until_decided)
    return replace(ready, file=file, request=request)


def prepared(
    sweep: Sweep, words: Sequence[str], control: str | None = None, *, decides: bool = False
) -> Prepared:
    """The same of a sweep that was read; words that name one of its parameters have changed its values.
    `control` is that option, `decides` is whether it goes on until all is decided.
    """
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
    given = dict(parse_override(word) for word in own)
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
