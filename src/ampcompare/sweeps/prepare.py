"""Prepare a sweep: combine and check file, overrides and options before anything starts."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ampcompare.config.load import parse_override
from ampcompare.config.schema import (
    LOOKS,
    PERTURBATION,
    SEQUENTIAL_LOOKS,
    SEQUENTIAL_SHARES,
    Config,
    PlanConfig,
)
from ampcompare.errors import UserError
from ampcompare.runs.wandb_api import API_PREFIX
from ampcompare.runtime.atomic_files import make_folder
from ampcompare.runtime.paths import find_shipped, shell_command
from ampcompare.sweeps.code_version import code_files
from ampcompare.sweeps.journal import DEFINITION_FILE, read_journal
from ampcompare.sweeps.run_launcher import RunLauncher, offline_environment
from ampcompare.sweeps.sweep import BOOKENDS, CHAOS, PLAN, Sweep
from ampcompare.sweeps.sweep_file import key_of, read_sweep
from ampcompare.sweeps.training_options import check, follow_task, trains_here, trains_on_cpu

CONTROL = "plan.control"
MIN_LOOK = 2  # seeds; with one, nothing is compared


@dataclass(frozen=True)
class SweepOptions:
    """Options of `ampcompare sweep`, without the file and the overrides for its runs.

    Attributes:
        workers: Number of runs at a time.
        name: Name of the sweep, in place of the file's.
        control: `bookends`, `chaos`, or `none`.
        until_decided: Whether seeds are added until each claim is decided.
        cluster: `slurm` or `ray`; None runs on this machine.
        wait: Whether the driver stays until a job array has ended.
        rerun: Whether to make new runs of what is neither finished nor running.
        bench: A file of `ampcompare bench --json` with the speed, for the report and the planned time.
        seeds_per_process: How many seeds one process trains, one after the other; None: one.
    """

    workers: int | None = None
    name: str | None = None
    control: str | None = None
    until_decided: bool = False
    cluster: str | None = None
    wait: bool = False
    rerun: bool = False
    bench: str | None = None
    seeds_per_process: int | None = None


@dataclass(frozen=True)
class PreparedSweep:
    """A sweep with everything that follows from its file and its command line.

    Attributes:
        all_overrides: All `key=value` words of the command line, options of a cluster included.
        overrides: Those that are added to every run's command.
        output: Folder of all runs.
        trains_here: Whether the runs are our own training.
        messages: Lines to print before the first run.
        looks: Numbers of seeds for interim looks, with `--until-decided`.
        shares: The fraction of the error for each of these looks; empty for equal fractions.
        single_look: The number of seeds of a sweep that is compared once, if the file plans another number.
        config: The options of the first run; None for another program.
        on_cpu: Whether all runs train on the CPU.
        code_files: The user's own files that the runs execute.
        file: The sweep file as it was named.
    """

    sweep: Sweep
    plan: PlanConfig
    all_overrides: tuple[str, ...]
    overrides: tuple[str, ...]
    output: Path
    trains_here: bool
    messages: tuple[str, ...] = ()
    looks: tuple[int, ...] = ()
    shares: tuple[float, ...] = ()
    single_look: int | None = None
    config: Config | None = None
    on_cpu: bool = False
    code_files: tuple[Path, ...] = ()
    file: str = ""
    options: SweepOptions = SweepOptions()

    @property
    def shared_plan(self) -> dict[str, Any] | None:
        """The part of the plan that every run records in addition to the file's part.

        None to record nothing, not even the run's index: another program, or a run of W&B's server, records
        a plan only where there is one.
        """
        shared: dict[str, Any] = {"control": self.sweep.control} if self.sweep.control else {}
        if not self.trains_here:  # our own training gets and records these overrides itself
            keys = [key for key in map(key_of, self.overrides) if self.sweep.is_plan(key)]
            names = [key.removeprefix(f"{PLAN}.") for key in keys]
            shared |= {name: vars(self.plan)[name] for name in names}
        if self.looks:
            shared |= {"looks": [*self.looks], "shares": [*self.shares] or None}
        elif self.single_look:
            shared |= {"looks": [self.single_look]}
        return shared if shared or (self.trains_here and not self.sweep.on_server) else None

    @property
    def plan_summary(self) -> str:
        """A summary such as `margin 0.5, looks [3, 6, 10]`; empty where nothing was planned."""
        own = vars(self.plan) | (self.shared_plan or {})
        if self.sweep.is_grid and self.sweep.seeds < MIN_LOOK:
            own |= {"looks": None, "shares": None}
        return ", ".join(f"{key} {value}" for key, value in own.items() if value != vars(PlanConfig())[key])

    def command(self, *flags: str) -> str:
        """Return the command that continues this sweep with the same options.

        Args:
            *flags: Further options without a value.
        """
        return shell_command("ampcompare", *self.words(*flags))

    def words(self, *flags: str) -> list[str]:
        """Return the words of `command` after `ampcompare`."""
        options = self.options
        values = {
            "--workers": options.workers,
            "--name": options.name,
            "--control": options.control,
            "--cluster": options.cluster,
            "--bench": options.bench,
            "--seeds-per-process": options.seeds_per_process,
        }
        set_flags = {
            "--rerun": options.rerun,
            "--until-decided": options.until_decided and "--rerun" not in flags,
            "--wait": options.wait,
        }
        arguments = [*dict.fromkeys([*flags, *(flag for flag, is_set in set_flags.items() if is_set)])]
        arguments += [f"{key}={value}" for key, value in values.items() if value is not None]
        return ["sweep", self.file, *arguments, *self.all_overrides]

    def launcher(self, folder: Path) -> RunLauncher:
        """Return the launcher that starts the runs in this folder.

        Raises:
            UserError: If the credentials for W&B have the wrong form.
        """
        if self.trains_here:
            overrides = (*self.overrides, f"output_dir={folder}")
        else:
            overrides = tuple(word for word in self.overrides if not self.sweep.is_plan(key_of(word)))
        environment = {} if self.trains_here else offline_environment()
        # A copy of the sweep without its cached points, which would travel with every run of a cluster.
        return RunLauncher(replace(self.sweep), folder, overrides, environment, self.trains_here)


class RecordedCommand(NamedTuple):
    """The command of a sweep, as `PreparedSweep.words` wrote it.

    Attributes:
        file: The sweep file as it was named.
        overrides: All `key=value` words.
        command: The command that continues the sweep.
    """

    file: str
    overrides: list[str]
    options: SweepOptions
    command: str


def command_of_folder(folder: str, overrides: Sequence[str], options: SweepOptions) -> RecordedCommand:
    """Return the command of the sweep in a folder.

    Args:
        folder: The output folder of a sweep.
        overrides: Further `key=value` words. They replace recorded ones with the same key.
        options: Options of the command line. What is set replaces what is recorded.

    Raises:
        UserError: There is no sweep in the folder, or its file is not here.
    """
    state = read_journal(Path(folder))
    if state is None:
        raise UserError(
            f"{folder}: no sweep has begun in this folder, it has no {DEFINITION_FILE}; "
            "name the folder of a sweep, such as runs/compare_backends, or a sweep file"
        )
    _, file, *words = state.command
    flags = {word.partition("=")[0]: word.partition("=")[2] for word in words if word.startswith("--")}
    changed = {key_of(override) for override in overrides}
    recorded = [word for word in words if not word.startswith("--") and key_of(word) not in changed]
    if not file.startswith(API_PREFIX) and not find_shipped(file, "sweeps"):
        started = shell_command("ampcompare", *state.command)
        raise UserError(
            f"{folder}: its sweep file {file} is not in {Path.cwd()}; "
            f"go to the folder in which the sweep was started with: {started}"
        )
    named = [word for word in recorded if key_of(word) == "output_dir"]
    output = Path(named[0].partition("=")[2] if named else Path("runs") / state.name)
    if output.resolve() != Path(folder).resolve():  # the folder was moved, or this is another one
        recorded = [*(word for word in recorded if word not in named), f"output_dir={folder}"]
    workers, per_process = flags.get("--workers"), flags.get("--seeds-per-process")
    return RecordedCommand(
        file,
        [*recorded, *overrides],
        replace(
            options,
            workers=options.workers or (int(workers) if workers else None),
            name=options.name or flags.get("--name"),
            control=options.control or flags.get("--control"),
            cluster=options.cluster or flags.get("--cluster"),
            bench=options.bench or flags.get("--bench"),
            seeds_per_process=options.seeds_per_process or (int(per_process) if per_process else None),
            wait=options.wait or "--wait" in flags,
            # --rerun adds no seeds.
            until_decided=options.until_decided or ("--until-decided" in flags and not options.rerun),
        ),
        shell_command(
            "ampcompare", "sweep", file, *(word for word in words if word.startswith("--")), *recorded
        ),
    )


def make_output(output: Path) -> Path:
    """Create the folder of the runs and its subfolders.

    Raises:
        UserError: If it cannot be written to.
    """
    option = f"output_dir={str(output)!r}"
    folder = make_folder(output, option).resolve()
    for inner in ("logs", "wandb"):
        make_folder(folder / inner, option)
    return folder


def prepare(file: str, overrides: Sequence[str], options: SweepOptions = SweepOptions()) -> PreparedSweep:
    """Read a sweep file, or a bundled one by its name, and check it. Nothing is written or started.

    Raises:
        UserError: For a bad file, bad overrides or options that contradict each other.
    """
    for override in overrides:
        parse_override(override)  # raises where it is no key=value
    sweep = read_sweep(file, overrides)
    sweep = sweep if options.name is None else replace(sweep, name=options.name)
    prepared = prepare_sweep(sweep, overrides, options)
    return replace(prepared, file=file)


def prepare_sweep(
    sweep: Sweep, overrides: Sequence[str], options: SweepOptions = SweepOptions()
) -> PreparedSweep:
    """Check a sweep. Overrides of its parameters were applied when it was read.

    Raises:
        UserError: As `prepare`.
    """
    # The name becomes a folder and W&B's group.
    is_word = re.fullmatch(r"[^\x00-\x1f\x7f/\\:\ud800-\udfff]{1,100}", sweep.name) and sweep.name.strip(" .")
    if not is_word or len(sweep.name.encode()) > 200:
        raise UserError(
            f"name={sweep.name!r}: expected a folder name of 1 to 100 characters; set name or --name"
        )
    varied = {p.key for p in sweep.parameters}
    own = tuple(override for override in overrides if key_of(override) not in varied)
    if sweep.on_server and (conflicting := [override for override in overrides if override not in own]):
        raise UserError(f"{conflicting[0]}: the sweep varies it; leave it out")
    sweep, followed = follow_task(sweep, overrides)
    plan, distinct_points, messages, config = check(sweep, own)
    control = None if sweep.on_server else _control_of(plan, sweep, own, options.control)
    looks, shares = _looks_of(plan) if options.until_decided else ((), ())
    values = dict(parse_override(override) for override in own)
    is_ours = trains_here(sweep)
    per_process = options.seeds_per_process or 1
    if per_process > 1:
        _check_series(sweep, options, trains_here=is_ours)
    return PreparedSweep(
        replace(sweep, control=control, distinct_points=distinct_points, seeds_per_process=per_process),
        plan,
        all_overrides=tuple(overrides),
        overrides=tuple(override for override in own if key_of(override) != "output_dir"),
        output=Path(values.get("output_dir") or Path("runs") / sweep.name),
        trains_here=is_ours,
        messages=(*followed, *messages),
        looks=looks,
        shares=shares,
        single_look=None if options.until_decided else _single_look(plan, sweep),
        config=config,
        on_cpu=trains_on_cpu(sweep, own),
        code_files=code_files(sweep, own, trains_here=is_ours),
        options=options,
    )


def _check_series(sweep: Sweep, options: SweepOptions, *, trains_here: bool) -> None:
    """Check that one process can train several seeds of the sweep.

    Raises:
        UserError: If it cannot.
    """
    option = f"--seeds-per-process {options.seeds_per_process}"
    if not trains_here:
        program = sweep.program or sweep.command[0]
        raise UserError(
            f"{option}: {program} is no training of ampcompare, which alone can do this; leave it out"
        )
    if sweep.on_server:
        raise UserError(f"{option}: W&B's server gives out one run at a time; leave it out")
    if sweep.learns:
        raise UserError(
            f"{option}: method {sweep.method} chooses each run from the results of earlier runs, so no runs "
            "that differ only in the seed are known in advance; list the values to compare in a file with "
            "method: grid, or leave the option out"
        )
    if not sweep.is_grid:
        raise UserError(
            f"{option}: method {sweep.method} draws new values for every run, so no runs differ only in the "
            "seed; list the values to compare in a file with method: grid, or leave the option out"
        )
    if sweep.seed is None or sweep.seed.grid_size() < 2:
        raise UserError(f"{option}: the sweep has one seed; name several, such as seed=1,2,3")


def _control_of(plan: PlanConfig, sweep: Sweep, overrides: Sequence[str], asked: str | None) -> str | None:
    """Return the control of the sweep, BOOKENDS or CHAOS, given `--control`; None for none.

    Raises:
        UserError: If it cannot have one.
    """
    if asked not in (None, "none", BOOKENDS, CHAOS):
        raise UserError(f"--control {asked!r}: expected one of none, {BOOKENDS}, {CHAOS}")
    if asked not in (None, plan.control) and CONTROL in {p.key for p in sweep.parameters}:
        raise UserError(
            f"--control {asked}: the sweep file has plan.control={plan.control}; change one of them"
        )
    control = asked or plan.control
    if control == "none":
        return None
    option = f"--control {asked}" if asked else f"plan.control={plan.control}"
    if not sweep.is_grid or sweep.hyperband:
        what = "early_terminate" if sweep.is_grid else f"method {sweep.method}"
        raise UserError(
            f"{option}: needs a grid that trains every run to its end, but the file has {what}; leave one out"
        )
    if control == CHAOS:
        _check_chaos(sweep, overrides, option)
    elif sweep.run_cap is not None and sweep.run_cap <= 2 * sweep.seeds:
        raise UserError(
            f"run_cap={sweep.run_cap}: {option} needs more than the {2 * sweep.seeds} runs of the control; "
            "raise it or leave one out"
        )
    return control


def _check_chaos(sweep: Sweep, overrides: Sequence[str], option: str) -> None:
    """Check that runs of the sweep can begin with changed last bits, and that no others do.

    Raises:
        UserError: If they cannot, or others do.
    """
    if not trains_here(sweep):
        program = sweep.program or sweep.command[0]
        raise UserError(
            f"{option}: {program} is no training of ampcompare, which alone has {PERTURBATION}; a program "
            f"of your own can repeat the baseline with --control {BOOKENDS}"
        )
    words = (*sweep.command, *overrides)
    if PERTURBATION in {*(p.key for p in sweep.parameters), *(key_of(word) for word in words)}:
        raise UserError(f"{option}: it sets {PERTURBATION} itself; leave {PERTURBATION} out")


def _looks_of(plan: PlanConfig) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return the looks of `--until-decided`, and the fraction of the error for each (empty: equal ones).

    The default of one look becomes two, and most of the error is kept for the second. The last look ends the
    sweep.
    """
    looks, shares = tuple(plan.looks or LOOKS), tuple(plan.shares or ())
    if looks == LOOKS:
        looks, shares = SEQUENTIAL_LOOKS, SEQUENTIAL_SHARES
    if plan.max_seeds and plan.max_seeds != looks[-1]:
        looks = (*(look for look in looks if look < plan.max_seeds), plan.max_seeds)
    return looks, shares if len(shares) == len(looks) else ()


def _single_look(plan: PlanConfig, sweep: Sweep) -> int | None:
    """Return the number of seeds at which a sweep is compared once, if the file plans another number.

    With a single seed there is none. The seeds of the command line are chosen before the first run, as
    those of the file are.
    """
    is_single = plan.looks is not None and len(plan.looks) == 1
    if not is_single or not sweep.is_grid or sweep.seed is None or sweep.on_server:
        return None
    if sweep.seeds < MIN_LOOK or plan.looks == [sweep.seeds]:
        return None
    return sweep.seeds
