"""Read what the record of a run says about its steps: the options, the losses, and the step to look at."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ampcompare import __version__, metrics
from ampcompare.config.compose import ConfigSource, compose
from ampcompare.config.load import parse_overrides
from ampcompare.config.option_spec import Role
from ampcompare.config.removed import had_no_effect
from ampcompare.config.schema import GROUPS, Config, find_option
from ampcompare.errors import UserError
from ampcompare.identity.agreement import REPLAY
from ampcompare.identity.run_identity import (
    DATA,
    DEVICE_TYPE,
    ENVIRONMENT,
    SOURCE,
    Difference,
    RunIdentity,
    differences,
    keys_with,
)
from ampcompare.runs.loader import load_runs
from ampcompare.runs.nested import flatten
from ampcompare.runs.run_record import RunRecord
from ampcompare.runtime.formatting import plural, some
from ampcompare.training.checkpoint.store import FOLDER, describe_difference
from ampcompare.wandb_client.record_folders import find_record_files

OPTION = "--at"
OUTPUT_DIR = "output_dir"
RECORDS = ("wandb", ".wandb")  # folders of W&B's client
# Options of a run that may differ here, because they do not change its numbers.
MAY_DIFFER = sorted([*keys_with([Role.SESSION]), OUTPUT_DIR])
# Options with code of the user, by the name of its hash in the record.
OPTIONS_WITH_CODE = {
    "model": "model.name",
    "data": "data.source",
    "backend": "backend",
    "task_loss": "task.loss",
}
ASKED, LAST = "the step that --at names", "the last step of the run"
ANOMALY = (
    "the first step that was skipped after the loss scale had settled, or whose loss or updated weights were "
    "inf or nan"
)


@dataclass(frozen=True)
class RecordedRun:
    """A run of `ampcompare run`, as its record describes it.

    Attributes:
        config: The options of the run.
        output_dir: The folder of the record and the checkpoints.
        steps: The steps of the rows with a training loss, ascending.
        losses: The training loss of each of these rows.
        skipped: The number of skipped steps up to each of these rows.
        seconds: The elapsed seconds of each of these rows.
    """

    record: RunRecord
    config: Config
    output_dir: Path
    steps: list[int]
    losses: list[float]
    skipped: list[int]
    seconds: list[float]

    @property
    def name(self) -> str:
        """The id of the run."""
        return self.record.id

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints, which may not exist."""
        return self.output_dir / FOLDER / self.name

    def seconds_per_step(self) -> float | None:
        """Return the mean elapsed time of a step, evaluations included; None if it is not recorded."""
        known = [(step, s) for step, s in zip(self.steps, self.seconds, strict=True) if math.isfinite(s)]
        if not known:
            return None
        (first, start), (last, end) = known[0], known[-1]
        if last == first:
            return end / last
        return max(0.0, (end - start) / (last - first))

    def choose_step(self, asked: int | None) -> tuple[int, str]:
        """Return the step that was asked for, else the first anomaly, else the last, and which it is.

        Raises:
            UserError: The run has no such step, or no step at all.
        """
        if not self.steps:
            raise UserError(f"{OPTION} {self.name}: the record has no training step")
        end = self.steps[-1]
        if asked is None:
            anomaly = self.record.summary.get(metrics.FIRST_ANOMALY)
            return (end, LAST) if anomaly is None else (int(anomaly), ANOMALY)
        if not 1 <= asked <= end:
            raise UserError(
                f"{OPTION} {self.name}@{asked}: the record has no such step; name one from 1 to {end}"
            )
        return asked, ASKED

    def has_updated(self, step: int) -> bool:
        """Return whether an earlier step than this one has changed the weights.

        While a loss scaler finds its first scale, it skips the first steps of a run.
        """
        skipped = next((n for end, n in zip(self.steps, self.skipped, strict=True) if end >= step), 0)
        return step > max(1, skipped)


def parse_moment(text: str) -> tuple[str, int | None]:
    """Return run and step of `RUN[@STEP]`.

    >>> parse_moment("runs/wandb/run-1-abc@300")
    ('runs/wandb/run-1-abc', 300)
    """
    match = re.fullmatch(r"(.+)@(\d+)", text)
    if match is None or Path(text).exists():
        return text, None
    return match[1], int(match[2])


def read_run(run: str, overrides: Sequence[str]) -> RecordedRun:
    """Return a run from its record.

    Args:
        run: Its folder, or its id in `output_dir`.
        overrides: Options that may differ from those of the run, such as `device=cpu`.

    Raises:
        UserError: There is no such run, it is no run of `ampcompare run`, or an option may not differ.
    """
    config_name, values = parse_overrides(overrides)
    refused = [] if config_name is None else [f"--config {config_name}"]
    refused += [key for key, _ in values if key not in MAY_DIFFER]
    if refused:
        raise UserError(
            f"{refused[0]}: {OPTION} takes the options of the run; leave it out "
            f"(allowed: {', '.join(MAY_DIFFER)})"
        )
    given = dict(values)
    output_dir, run_id = _find(run, Path(given.get(OUTPUT_DIR, Config().output_dir)))
    (record,) = load_runs(find_record_files(output_dir, run_id))
    _check_record(run, record)
    config = compose(
        ConfigSource(_recorded_options(record)),
        ConfigSource(given),
        ConfigSource({OUTPUT_DIR: str(output_dir), "wandb.mode": "disabled"}),
    )
    rows, losses = record.logged_numbers(metrics.LOSS)
    return RecordedRun(
        record=record,
        config=config,
        output_dir=output_dir,
        steps=[int(step) for step in record.numbers(metrics.STEP)[rows]],
        losses=losses.tolist(),
        skipped=[int(number) for number in np.nan_to_num(record.numbers(metrics.SKIPPED)[rows])],
        seconds=record.numbers(metrics.ELAPSED)[rows].tolist(),
    )


def _check_record(run: str, record: RunRecord) -> None:
    """Raise UserError unless the record is of `ampcompare run` in one process."""
    if record.is_recorded or not record.environment:
        raise UserError(
            f"{OPTION} {run}: only a run of `ampcompare run` can be replayed, and this is the record of "
            "another program; leave --at out and name your network, for example model.name=./net.py:build"
        )
    processes = record.environment.get("processes", 1)
    if processes != 1:
        raise UserError(
            f"{OPTION} {run}: the run trained in {processes} processes, "
            "and only a run of one process can be replayed; leave --at out"
        )


def _find(run: str, output_dir: Path) -> tuple[Path, str]:
    """Return the folder of the run's record and checkpoints, and the id of the run."""
    path = Path(run)
    if not path.exists():
        return _find_by_id(run, output_dir), run
    checkpoints = path.resolve()
    if checkpoints.parent.name == FOLDER and find_record_files(checkpoints.parents[1], checkpoints.name):
        return checkpoints.parents[1], checkpoints.name
    runs = load_runs([path])
    if len(runs) > 1:
        names = some([one.id for one in runs])
        raise UserError(f"{OPTION} {run}: {len(runs)} runs are there; name one of them: {names}")
    files = [file.resolve() for file in runs[0].paths]
    if not files or files[0].suffix != ".wandb" or files[0].parents[1].name not in RECORDS:
        raise UserError(
            f"{OPTION} {run}: this is no record of `ampcompare run` in its output folder; "
            "give the folder that the run named at its end (record: ...)"
        )
    return files[0].parents[2], runs[0].id


def _find_by_id(run_id: str, output_dir: Path) -> Path:
    """Return the folder with the record of a run: `output_dir`, or that of a sweep below it or below here."""
    here = [Path()] if output_dir == Path(Config().output_dir) else []  # where `sweep --out` may write
    for top in (output_dir, *here):
        for folder in (
            top,
            *(wandb.parent for depth in ("*", "*/*") for wandb in top.glob(f"{depth}/wandb")),
        ):
            if find_record_files(folder, run_id):
                return folder
    raise UserError(
        f"{OPTION} {run_id}: no such folder, and no run with this id in {output_dir}; "
        "give the folder of the run, or the id and output_dir=FOLDER"
    )


def _recorded_options(record: RunRecord) -> dict[str, Any]:
    """Return the options of the run by dotted key, without those of its record and its sweep.

    Raises:
        UserError: The run has an option that this version does not know.
    """
    options = {"recipe": "reference"}  # versions before 0.4 had no other
    for key, value in flatten(record.config):
        option = find_option(key)
        group = key.partition(".")[0]
        if option is not None:
            if option[0].role is not Role.PRESENTATION or key == "recipe":
                options[key] = value
        elif GROUPS.get(group, Role.PRESENTATION) is not Role.PRESENTATION and not had_no_effect(key, value):
            recorded_by = (record.environment.get("packages") or {}).get("ampcompare", "unknown")
            raise UserError(
                f"{OPTION} {record.id}: this version ({__version__}) has no option {key}, which the run has; "
                f"use version {recorded_by}"
            )
    return options


def describe_changes(run: RecordedRun, identity: RunIdentity, saved: Mapping[str, Any] | None) -> list[str]:
    """Return what has changed since the run, so that a replay would be another training.

    Args:
        identity: What a run with these options is now.
        saved: The identity of the run's checkpoints, which also has the data of runs before version 0.4; None
            without checkpoints.
    """
    record = run.record
    recorded = RunIdentity.of_run(record.config, record.environment, record.summary)
    found = differences(recorded, identity, REPLAY.equal)
    if saved is not None:
        of_checkpoints = RunIdentity.of_parts(saved, is_complete=True)
        found += differences(of_checkpoints, identity, REPLAY.equal)
    return list(dict.fromkeys(_name_change(difference, identity, run.config) for difference in found))


def _name_change(difference: Difference, identity: RunIdentity, config: Config) -> str:
    """Return which code or data has changed, by the option that names it."""
    key, there, here = difference
    part = key.removeprefix(ENVIRONMENT)
    if part.endswith(SOURCE):
        option = OPTIONS_WITH_CODE.get(part.removesuffix(SOURCE))
        return f"the code of {option}={config.value(option)}" if option else f"the code behind {part}"
    if key == DATA:
        return f"the data of data.source={config.data.source}"
    if key == DEVICE_TYPE:
        return f"the device ({there} in the run, {here} now)"
    return describe_difference(difference, identity)


def describe_equality(run: RecordedRun, replayed: Mapping[int, float]) -> str:
    """Return whether the losses of the replay are those of the record, and if not, by how much they differ.

    Args:
        replayed: The loss of each replayed row, by its step.
    """
    recorded = dict(zip(run.steps, run.losses, strict=True))
    pairs = [(loss, recorded[step]) for step, loss in replayed.items() if step in recorded]
    if not pairs:
        return "no row of the record lies within the replayed steps, so the replay could not be checked"
    rows = plural(len(pairs), "row")
    if all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in pairs):
        return f"the replayed losses equal the recorded losses, bit for bit ({rows})"
    differences = [abs(a - b) / abs(b) if b else abs(a - b) for a, b in pairs if a != b]
    largest = max((d for d in differences if math.isfinite(d)), default=math.inf)
    size = f"by up to {largest:.1e} of the loss" if math.isfinite(largest) else "in being finite"
    return f"the replayed losses differ from the recorded losses {size} ({rows})"
