"""A sweep made ready to run, to submit or to be looked at: file, words and options as one, checked once."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ampcompare.config.load import parse_override
from ampcompare.config.schema import PlanConfig
from ampcompare.errors import UserError
from ampcompare.runtime.atomic_files import make_folder
from ampcompare.runtime.paths import shell_command
from ampcompare.sweeps.code_version import code_files
from ampcompare.sweeps.run_process import RunLauncher, offline_environment
from ampcompare.sweeps.sweep import Sweep
from ampcompare.sweeps.sweep_file import key_of, read_sweep
from ampcompare.sweeps.training_check import check, trains_here

CONTROL, BOOKENDS = "plan.control", "bookends"
LOOKS = (3, 6, 10)  # numbers of seeds, where a plan names none


@dataclass(frozen=True)
class SweepOptions:
    """Options of `ampcompare sweep` beside the file and the words for its runs.

    Attributes:
        workers: Number of runs at a time.
        name: Name of the sweep, in place of the file's.
        control: `bookends`, or `none`.
        until_decided: Whether seeds are added until each claim is decided.
        cluster: `slurm` or `ray`; None runs on this machine.
        wait: Whether the driver stays until a job array has ended.
        rerun: Whether to make new runs of what is neither finished nor running.
        changed_code: Whether to continue although the user's code has changed.
        report: Whether to make the report at the end.
    """

    workers: int | None = None
    name: str | None = None
    control: str | None = None
    until_decided: bool = False
    cluster: str | None = None
    wait: bool = False
    rerun: bool = False
    changed_code: bool = False
    report: bool = True


@dataclass(frozen=True)
class PreparedSweep:
    """A sweep, and what follows from it and from its command line.

    Attributes:
        sweep: The sweep.
        plan: Its plan.
        given: All words of the command line, those of a cluster among them.
        words: Those that go behind every command.
        output: Folder of all runs.
        trains_here: Whether the runs are our own training.
        messages: Lines to print before the first run.
        looks: Numbers of seeds at which somebody looks, with `--until-decided`.
        on_cpu: Whether the words ask for a CPU.
        code_files: The user's own files that the runs execute.
        file: The sweep file as it was named.
        options: The options.
    """

    sweep: Sweep
    plan: PlanConfig
    given: tuple[str, ...]
    words: tuple[str, ...]
    output: Path
    trains_here: bool
    messages: tuple[str, ...] = ()
    looks: tuple[int, ...] = ()
    on_cpu: bool = False
    code_files: tuple[Path, ...] = ()
    file: str = ""
    options: SweepOptions = SweepOptions()

    @property
    def shared_plan(self) -> dict[str, Any] | None:
        """What each run records of the plan beside the file's part.

        None: nothing, not even the run's number. Another program, or a run of W&B's server, records a plan
        only where there is one.
        """
        shared: dict[str, Any] = {"control": BOOKENDS} if self.sweep.control else {}
        shared |= {"looks": [*self.looks]} if self.looks else {}
        return shared if shared or (self.trains_here and not self.sweep.on_server) else None

    @property
    def plan_summary(self) -> str:
        """Briefly: `margin 0.5, looks [3, 6, 10]`; empty where nothing was planned."""
        own = vars(self.plan) | ({"control": BOOKENDS} if self.sweep.control else {})
        return ", ".join(f"{key} {value}" for key, value in own.items() if value != vars(PlanConfig())[key])

    def command(self, *flags: str) -> str:
        """Return the command that continues with what was asked for.

        Args:
            *flags: Options without a value, beside those that were given.
        """
        options = self.options
        values = {
            "--workers": options.workers,
            "--name": options.name,
            "--control": options.control,
            "--cluster": options.cluster,
        }
        given_flags = {
            "--rerun": options.rerun,
            "--until-decided": options.until_decided and "--rerun" not in flags,
            "--wait": options.wait,
            "--changed-code": options.changed_code,
        }
        words = [*dict.fromkeys([*flags, *(flag for flag, is_given in given_flags.items() if is_given)])]
        words += [f"{key}={value}" for key, value in values.items() if value is not None]
        return shell_command("ampcompare", "sweep", self.file, *words, *self.given)

    def launcher(self, folder: Path) -> RunLauncher:
        """Return what starts the runs, into this folder.

        Raises:
            UserError: If the credentials for W&B have the wrong form.
        """
        overrides = (*self.words, f"output_dir={folder}") if self.trains_here else self.words
        environment = {} if self.trains_here else offline_environment()
        # A new copy of the sweep has no list of its points, which would travel with every run of a cluster.
        return RunLauncher(replace(self.sweep), folder, overrides, environment, self.trains_here)


def make_output(output: Path) -> Path:
    """Make the folder of the runs with what has to be in it.

    Raises:
        UserError: If it cannot be written to.
    """
    option = f"output_dir={str(output)!r}"
    folder = make_folder(output, option).resolve()
    for inner in ("logs", "wandb"):
        make_folder(folder / inner, option)
    return folder


def prepare(file: str, words: Sequence[str], options: SweepOptions = SweepOptions()) -> PreparedSweep:
    """Read a sweep file, or a bundled one by its name, and check it. Nothing is written or started.

    Raises:
        UserError: For a bad file, bad words or options that do not fit.
    """
    for word in words:
        parse_override(word)  # whether it is one
    sweep = read_sweep(file, words)
    sweep = sweep if options.name is None else replace(sweep, name=options.name)
    prepared = prepare_sweep(sweep, words, options)
    return replace(prepared, file=file)


def prepare_sweep(
    sweep: Sweep, words: Sequence[str], options: SweepOptions = SweepOptions()
) -> PreparedSweep:
    """Check a sweep that was read; words that name one of its parameters have changed its values.

    Raises:
        UserError: As `prepare`.
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
    plan, cells, messages = check(sweep, own)
    has_control = not sweep.on_server and _has_control(plan, sweep, options.control)
    given = dict(parse_override(word) for word in own)
    is_ours = trains_here(sweep)
    return PreparedSweep(
        replace(sweep, control=has_control, cells=cells),
        plan,
        given=tuple(words),
        words=tuple(word for word in own if key_of(word) != "output_dir"),
        output=Path(given.get("output_dir") or Path("runs") / sweep.name),
        trains_here=is_ours,
        messages=tuple(messages),
        looks=_looks_of(plan) if options.until_decided else (),
        on_cpu=given.get("device", "").startswith("cpu"),
        code_files=code_files(sweep, own, trains_here=is_ours),
        options=options,
    )


def _has_control(plan: PlanConfig, sweep: Sweep, asked: str | None) -> bool:
    """Return whether the sweep has a control, given `--control`.

    Raises:
        UserError: If it cannot have one.
    """
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
    """Return the numbers of seeds at which somebody looks; the last look ends the sweep."""
    looks = plan.looks or LOOKS
    most = plan.max_seeds or looks[-1]
    return (*(look for look in looks if look < most), most)
