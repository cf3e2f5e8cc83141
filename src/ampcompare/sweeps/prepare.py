"""Prepare a sweep: combine and check file, overrides and options before anything starts."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

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
from ampcompare.runtime.atomic_files import make_folder
from ampcompare.sweeps.code_version import code_files
from ampcompare.sweeps.executors import split_cluster_options
from ampcompare.sweeps.journal import SweepState
from ampcompare.sweeps.run_launcher import RunLauncher, offline_environment
from ampcompare.sweeps.sweep import BOOKENDS, CHAOS, PLAN, Sweep
from ampcompare.sweeps.sweep_command import DEFAULT_OPTIONS, SweepCommand, SweepOptions
from ampcompare.sweeps.sweep_file import key_of, read_sweep
from ampcompare.sweeps.sweep_identity import definition
from ampcompare.sweeps.training_options import check, shared_settings, trains_here, trains_on_cpu

CONTROL = "plan.control"
MIN_LOOK = 2  # seeds; with one, nothing is compared


@dataclass(frozen=True)
class PreparedSweep:
    """A sweep with everything that follows from its file and its command line.

    Attributes:
        command: The command line.
        cluster_options: Options of the cluster, by name.
        overrides: The `key=value` words that are added to every run's command.
        output: Folder of all runs.
        definition: What must not change while the sweep continues (`sweep_identity.definition`).
        messages: Lines to print before the first run.
        looks: Numbers of seeds for interim looks, with `--until-decided`.
        shares: The fraction of the error for each of these looks; empty for equal fractions.
        shared_plan: The part of the plan that every run records in addition to the file's part. None to
            record nothing, not even the run's index: another program, or a run of W&B's server, records a
            plan only where there is one.
        config: The options of the first run; None for another program.
        on_cpu: Whether all runs train on the CPU.
        code_files: The user's own files that the runs execute.
    """

    sweep: Sweep
    plan: PlanConfig
    command: SweepCommand
    cluster_options: Mapping[str, str]
    overrides: tuple[str, ...]
    output: Path
    definition: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[str, ...] = ()
    looks: tuple[int, ...] = ()
    shares: tuple[float, ...] = ()
    shared_plan: Mapping[str, Any] | None = None
    config: Config | None = None
    on_cpu: bool = False
    code_files: tuple[Path, ...] = ()

    @property
    def trains_here(self) -> bool:
        """Return whether the runs are our own training."""
        return self.config is not None

    def sweep_now(self, state: SweepState) -> Sweep:
        """Return the sweep with the seeds that its journal has added."""
        return replace(self.sweep, added=tuple(state.added_seeds))

    @property
    def continuing(self) -> SweepCommand:
        """The command that begins or continues the sweep: only one of W&B's server has `--rerun`."""
        options = replace(self.command.options, rerun=self.sweep.on_server)
        return replace(self.command, options=options)

    @property
    def plan_summary(self) -> str:
        """A summary such as `margin 0.5, looks [3, 6, 10]`; empty where nothing was planned."""
        own = vars(self.plan) | dict(self.shared_plan or {})
        if self.sweep.is_grid and self.sweep.seeds < MIN_LOOK:
            own |= {"looks": None, "shares": None}
        return ", ".join(f"{key} {value}" for key, value in own.items() if value != vars(PlanConfig())[key])

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


def prepare(file: str, overrides: Sequence[str], options: SweepOptions = DEFAULT_OPTIONS) -> PreparedSweep:
    """Read a sweep file, or a bundled one by its name, and check it. Nothing is written or started.

    Raises:
        UserError: For a bad file, bad overrides or options that contradict each other.
    """
    sweep = read_sweep(file, overrides)
    sweep = sweep if options.name is None else replace(sweep, name=options.name)
    return prepare_sweep(sweep, overrides, options, file)


def prepare_sweep(
    sweep: Sweep, overrides: Sequence[str], options: SweepOptions = DEFAULT_OPTIONS, file: str = ""
) -> PreparedSweep:
    """Check a sweep. Overrides of its parameters were applied when it was read.

    Args:
        file: The sweep file as it was named.

    Raises:
        UserError: As `prepare`.
    """
    cluster_options, run_overrides = split_cluster_options(overrides, options.cluster)
    # The name becomes a folder and W&B's group.
    is_word = re.fullmatch(r"[^\x00-\x1f\x7f/\\:\ud800-\udfff]{1,100}", sweep.name) and sweep.name.strip(" .")
    if not is_word or len(sweep.name.encode()) > 200:
        raise UserError(
            f"name={sweep.name!r}: expected a folder name of 1 to 100 characters; set name or --name"
        )
    varied = {p.key for p in sweep.parameters}
    own = tuple(override for override in run_overrides if key_of(override) not in varied)
    if sweep.on_server and (conflicting := [override for override in run_overrides if override not in own]):
        raise UserError(f"{conflicting[0]}: the sweep varies it; leave it out")
    sweep, plan, messages, config = check(sweep, own, run_overrides)
    control = None if sweep.on_server else _control_of(plan, sweep, own, options.control)
    if options.seeds_per_process and options.seeds_per_process > 1:
        _check_series(sweep, options)
    sweep = replace(sweep, control=control, seeds_per_process=options.seeds_per_process or 1)
    looks, shares = _looks_of(plan) if options.until_decided else ((), ())
    values = dict(parse_override(override) for override in own)
    kept = tuple(override for override in own if key_of(override) != "output_dir")
    return PreparedSweep(
        sweep,
        plan,
        SweepCommand(file, tuple(overrides), options),
        cluster_options,
        kept,
        output=Path(values.get("output_dir") or Path("runs") / sweep.name),
        definition=definition(sweep, kept, shared_settings(sweep, config)),
        messages=tuple(messages),
        looks=looks,
        shares=shares,
        shared_plan=_shared_plan(sweep, plan, kept, looks, shares),
        config=config,
        on_cpu=trains_on_cpu(sweep, own, config),
        code_files=code_files(sweep, own, trains_here=config is not None),
    )


def _shared_plan(
    sweep: Sweep, plan: PlanConfig, overrides: Sequence[str], looks: Sequence[int], shares: Sequence[float]
) -> dict[str, Any] | None:
    """Return `PreparedSweep.shared_plan`."""
    shared: dict[str, Any] = {"control": sweep.control} if sweep.control else {}
    is_ours = trains_here(sweep)
    if not is_ours:  # our own training gets and records these overrides itself
        keys = [key for key in map(key_of, overrides) if sweep.is_plan(key)]
        names = [key.removeprefix(f"{PLAN}.") for key in keys]
        shared |= {name: vars(plan)[name] for name in names}
    if looks:
        shared |= {"looks": [*looks], "shares": [*shares] or None}
    elif (seeds := _single_look(plan, sweep)) is not None:
        shared |= {"looks": [seeds]}
    return shared if shared or (is_ours and not sweep.on_server) else None


def _check_series(sweep: Sweep, options: SweepOptions) -> None:
    """Check that one process can train several seeds of the sweep.

    Raises:
        UserError: If it cannot.
    """
    option = f"--seeds-per-process {options.seeds_per_process}"
    if not trains_here(sweep):
        program = sweep.program or sweep.command[0]
        raise UserError(
            f"{option}: {program} is no training of ampcompare, which alone can do this; leave it out"
        )
    if sweep.on_server:
        raise UserError(f"{option}: W&B's server gives out one run at a time; leave it out")
    if not sweep.is_grid:
        raise UserError(
            f"{option}: method {sweep.method} chooses new values for every run, so no runs differ only in "
            "the seed; list the values to compare in a file with method: grid, or leave the option out"
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
