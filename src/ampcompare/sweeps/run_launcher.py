"""Start the runs of a sweep: their commands, their environment, and the files that they read.

`RunLauncher` starts a run, or several in one process, with the environment that `wandb agent` gives it.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ampcompare.config.load import RESUME_VARIABLE
from ampcompare.config.run_series import FLAG, NEEDS_VARIABLE, progress_file
from ampcompare.config.schema import ONE_ULP, PERTURBATION, PlanConfig
from ampcompare.sweeps.command_macros import build_command
from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.process_guard import ProcessGuard, write_end
from ampcompare.sweeps.run_end import NOT_STARTED, RunEnd, end_file_of
from ampcompare.sweeps.run_process import SERIES_VARIABLE, RunProcess
from ampcompare.sweeps.sweep import CHAOS, SEED, Sweep

SERIES = "series"  # folder in the sweep's output folder: the runs of each process that trains several


@dataclass(frozen=True)
class RunLauncher:
    """Starts the runs of one sweep, on this machine or in the job or task to which it travels.

    Attributes:
        folder: Output folder of the sweep.
        overrides: `key=value` words that are added to every command.
        environment: Variables of the runs, in addition to those of this process.
        trains_here: Whether the runs are our own training, which has an option for the plan and resumes.
        prefix: Arguments before every command.
    """

    sweep: Sweep
    folder: Path
    overrides: tuple[str, ...]
    environment: Mapping[str, str]
    trains_here: bool
    prefix: tuple[str, ...] = ()

    def log_file(self, run_id: str) -> Path:
        """Return the file for the output of the run."""
        return self.folder / "logs" / f"{run_id}.log"

    def start(
        self,
        runs: Sequence[SweepRun],
        guard: ProcessGuard,
        gpu: str | None = None,
        *,
        is_requeued: bool = False,
    ) -> RunProcess | None:
        """Start a process that trains these runs one after the other.

        Args:
            runs: The runs; several may differ only in the seed. With `starts` above 0, an earlier start of a
                run may have left a checkpoint.
            guard: Ends the process if this one dies.
            gpu: Value of CUDA_VISIBLE_DEVICES; None leaves it as it is.
            is_requeued: Whether this start of the runs has begun before, in a job that Slurm has requeued.

        Returns:
            The process; None if it cannot be started. Then the log of the first run has the reason, and the
            facts about its end say so.
        """
        first = runs[0]
        log = self.log_file(first.run_id)
        try:
            for run in runs:  # of this start before Slurm requeued its job
                end_file_of(self.folder, run).unlink(missing_ok=True)
            command = self._command(first)
            environment = self._environment(first, gpu, is_requeued=is_requeued)
            file = None
            if len(runs) > 1:
                file = self._write_series(runs, environment, gpu)
                command += [FLAG, str(file)]
                environment[SERIES_VARIABLE] = ",".join(run.run_id for run in runs)
            return RunProcess(command, environment, log, guard, self.folder, runs, file)
        except (OSError, ValueError) as problem:  # ValueError: a NUL in an argument
            with suppress(OSError), log.open("a", encoding="utf-8", errors="backslashreplace") as output:
                print(f"cannot be started: {problem}", file=output)
            write_end(end_file_of(self.folder, first), RunEnd(NOT_STARTED).facts())
            return None

    def _write_series(
        self,
        runs: Sequence[SweepRun],
        environment: Mapping[str, str],
        gpu: str | None,
    ) -> Path:
        """Write the file that lists the runs of a process (`run_series`), and return the file.

        Args:
            environment: The variables of the process.
            gpu: As in `start`.
        """
        first, entries = runs[0], []
        for run in runs:
            self._write_parameters(run)
            own = self._environment(run, gpu)
            entries.append(
                {
                    "overrides": [f"{SEED}={run.parameters[SEED]}", *self._plan_words(run)],
                    "environment": {k: v for k, v in own.items() if environment.get(k) != v},
                    "log": str(self.log_file(run.run_id)),
                }
            )
        file = self.folder / SERIES / f"{first.run_id}-{first.last_start}.json"
        file.parent.mkdir(exist_ok=True)
        # A process of this start may have left its progress: a driver was killed before it wrote the start
        # down, or Slurm has requeued the job.
        progress_file(file).unlink(missing_ok=True)
        file.write_text(json.dumps(entries, indent=1), encoding="utf-8")
        return file

    def _parameters_file(self, run: SweepRun) -> Path:
        """Return the file from which W&B's client takes a run's sweep parameters."""
        return self.folder / "wandb" / f"sweep-{self.sweep.name}" / f"config-{run.run_id}.yaml"

    def _write_parameters(self, run: SweepRun) -> Path:
        """Write the file with a run's sweep parameters, make the folder of its log, and return the file."""
        file = self._parameters_file(run)
        values = {key: {"value": value} for key, value in recorded_parameters(run).items()}
        content = {"wandb_version": 1, **values}
        self.log_file(run.run_id).parent.mkdir(parents=True, exist_ok=True)
        file.parent.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump(content, allow_unicode=True, sort_keys=False)
        file.write_text(text, encoding="utf-8")
        return file

    def _command(self, run: SweepRun) -> list[str]:
        """Return the words of a run's command, after writing the files that it reads."""
        sweep, file = self.sweep, self._write_parameters(run)
        parameters = run.parameters if self.trains_here else _without_plan(sweep, run.parameters)
        command = build_command(sweep.command, sweep.program, parameters, file.with_suffix(".json"))
        command += self.overrides
        if self.trains_here:
            command += self._plan_words(run)
            command += [f"{PERTURBATION}={ONE_ULP}"] if run.plan.get("arm") == CHAOS else []
        return [*self.prefix, *command]

    @staticmethod
    def _plan_words(run: SweepRun) -> list[str]:
        """Return the overrides with a run's part of the plan."""
        known = PlanConfig.__dataclass_fields__
        return [f"plan.{key}={value}" for key, value in run.plan.items() if key in known]

    def _environment(self, run: SweepRun, gpu: str | None, *, is_requeued: bool = False) -> dict[str, str]:
        """Return the variables of W&B's agent, the record's folder, and whether a server knows the sweep."""
        sweep = self.sweep
        # Our own training always looks for an earlier start: its folder may be that of an earlier sweep.
        resumes = self.trains_here or run.starts > 0 or is_requeued
        given = {
            "WANDB_SWEEP_ID": sweep.name,
            "WANDB_RUN_ID": run.run_id,
            "WANDB_SWEEP_PARAM_PATH": str(self._parameters_file(run)),
            "WANDB_DIR": str(self.folder),
            "WANDB_PROJECT": sweep.project,
            "WANDB_ENTITY": sweep.entity,
            "AMPCOMPARE_LOCAL_SWEEP": None if sweep.on_server else sweep.name,
            RESUME_VARIABLE: "auto" if resumes else None,
            "CUDA_VISIBLE_DEVICES": gpu,
            # `ampcompare run` of a command is found also where the environment is not activated.
            "PATH": os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)]),
        }
        # A sweep may itself be the program of a run: that run's service and resuming are not for these runs.
        own = ("WANDB_SERVICE", RESUME_VARIABLE, "AMPCOMPARE_LOCAL_SWEEP", SERIES_VARIABLE, NEEDS_VARIABLE)
        inherited = {key: value for key, value in os.environ.items() if key not in own}
        known = {key: value for key, value in given.items() if value is not None}
        return {**self.environment, **inherited, **known}


def recorded_parameters(run: SweepRun) -> dict[str, Any]:
    """Return a run's parameters with its part of the plan, in the group where the file has the plan."""
    there = run.parameters.get("plan", {})
    if not isinstance(there, Mapping):  # an option of the user's program that is called so
        return {**run.parameters, **{f"plan.{key}": value for key, value in run.plan.items()}}
    return {**run.parameters, "plan": {**there, **run.plan}} if run.plan else dict(run.parameters)


def _without_plan(sweep: Sweep, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's parameters for another program, which does not know the options of our plan."""
    kept = {}
    for key, value in parameters.items():
        names = [f"{key}.{name}" for name in value] if isinstance(value, Mapping) else []
        if not all(sweep.is_plan(name) for name in names or [key]):
            kept[key] = value
    return kept


def offline_environment() -> dict[str, str]:
    """Return WANDB_MODE=offline for other programs where no W&B account is known.

    Without an account W&B's client would refuse to start them. Our own training decides for itself.

    Raises:
        UserError: If the credentials have the wrong form.
    """
    if any(os.environ.get(f"WANDB_{name}") for name in ("MODE", "DISABLED", "API_KEY")):
        return {}
    offline = {"WANDB_MODE": "offline"}
    # Importing W&B's client is half of the CPU time of a driver's start, so the files are checked first.
    config = os.environ.get("WANDB_CONFIG_DIR", "~/.config/wandb")
    paths = [os.environ.get("NETRC") or "~/.netrc", "~/_netrc", f"{config}/settings"]
    is_there = any(os.path.exists(os.path.expanduser(path)) for path in paths)
    if not is_there and not os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return offline
    from ampcompare.wandb_client.client import end_service, has_account

    try:
        return {} if has_account() else offline
    finally:
        end_service()  # else it would run as long as the sweep
