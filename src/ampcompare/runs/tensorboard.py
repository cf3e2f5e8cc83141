"""TensorBoard event files: one run a folder, its tags as columns, a row a step.

Written by torch.utils.tensorboard, TensorFlow, Lightning's and Hugging Face's loggers. They are read by
tensorboard's own reader, an optional extra.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from ampcompare import metrics
from ampcompare.errors import UserError, reason
from ampcompare.runs.run_record import STAMP, RunRecord
from ampcompare.runs.run_state import RunState
from ampcompare.runs.trainer_logs import settings_beside

INSTALL = 'they need tensorboard: pip install "ampcompare[tensorboard]"'
ARGUMENTS = "args/text_summary"  # the tag of Hugging Face's settings
PLACEHOLDER = "hp_metric"  # of Lightning's logger, -1 from the beginning
LATEST = datetime.max.replace(tzinfo=UTC).timestamp() - 1e6
STAMPED = re.compile(r"\d+\.\d+")  # the folder of `add_hparams`, named by the time
Points = dict[str, list[tuple[int, float, float]]]  # of each tag: step, seconds since 1970, value


def read_event_files(paths: Iterable[Path]) -> list[RunRecord]:
    """A run for each folder; what `add_hparams` and `add_scalars` of PyTorch's writer leave in folders below
    it is its own. Raises UserError where tensorboard is not installed; what is wrong with a file becomes a
    sentence in `problems`.
    """
    files: dict[Path, list[Path]] = {}
    for path in sorted(paths):
        files.setdefault(path.parent, []).append(path)
    found = {folder: _read_folder(folder, some) for folder, some in files.items()}
    stamped = Counter(folder.parent for folder in files if STAMPED.fullmatch(folder.name))
    for folder in [folder for folder in files if folder.parent in files]:
        (run, points), (whole, its_points) = found[folder], found[folder.parent]
        tag = next(iter(points), "")
        series = folder.name.removeprefix(f"{tag.replace('/', '_')}_")
        # Settings that were written several times are trials, runs of their own.
        if run.config and STAMPED.fullmatch(folder.name) and stamped[folder.parent] == 1:
            whole.config = run.config | whole.config
            whole.summary |= {tag: own[-1][2] for tag, own in points.items()}
        elif len(points) == 1 and series != folder.name:
            its_points[f"{tag}/{series}"] = points[tag]
        else:
            continue
        whole.problems += found.pop(folder)[0].problems
    for run, points in found.values():
        _fill(run, points)
    return [run for run, _ in found.values()]


def _read_folder(folder: Path, files: list[Path]) -> tuple[RunRecord, Points]:
    """Read the event files of a folder, the oldest first. Whether a run came to its end is not in them.

    A later file that logs a tag several times goes on from a checkpoint: from its first step on its values
    count. One that logs a tag once (a test after the fit) replaces the value at that step alone.
    """
    name, points = folder.as_posix(), Points()
    run = RunRecord(id=name, name=name, state=RunState.FINISHED, paths=(files[0],))
    for later in sorted((_read_file(path, run) for path in files), key=_begin):
        for tag, new in later.items():
            steps = {step for step, _, _ in new}
            end = float("inf") if len(steps) > 1 else max(steps)
            kept = [point for point in points.get(tag, []) if not min(steps) <= point[0] <= end]
            points[tag] = kept + new
    return run, points


def _read_file(path: Path, run: RunRecord) -> Points:
    """The points of one file; what else it says goes into the run."""
    try:
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
    except ImportError:
        raise UserError(f"{path.parent}: TensorBoard event files: {INSTALL}") from None
    points, plugins, count = Points(), dict[str, str](), 0
    if not path.is_file():
        run.problems.append(f"{path.name} is not a plain file and was not read.")
        return points
    try:
        for event in LegacyEventFileLoader(str(path)).Load():
            count += 1
            for value in event.summary.value:
                about = value.metadata.plugin_data  # of the first value of a tag alone
                plugin = plugins.setdefault(value.tag, about.plugin_name)
                if plugin == "hparams":
                    _take_settings(run, about.content)
                elif (number := _number(run, value, plugin)) is not None:
                    points.setdefault(value.tag, []).append((event.step, event.wall_time, number))
    except Exception as problem:  # the reader's own kinds, protobuf's, and those of hostile content
        run.problems.append(f"Reading {path.name} stopped: {reason(problem)}.")
    if not count:
        run.problems.append(f"{path.name} holds no event.")
    return points


def _number(run: RunRecord, value: Any, plugin: str) -> float | None:
    """The scalar of a value, in the form of PyTorch's writer or TensorFlow 2's. Hugging Face's settings, a
    text, go into the config.
    """
    from tensorboard.util.tensor_util import make_ndarray

    if value.HasField("simple_value"):
        return float(value.simple_value)
    if not value.HasField("tensor") or (plugin not in ("", "scalars") and value.tag != ARGUMENTS):
        return None
    try:
        tensor = make_ndarray(value.tensor)
        if value.tag == ARGUMENTS:
            run.config |= json.loads(tensor.reshape(-1)[0])
            return None
        return float(tensor.item())
    except (ValueError, TypeError, IndexError, RecursionError):  # no number, no JSON
        return None


def _take_settings(run: RunRecord, content: bytes) -> None:
    """What PyTorch's `add_hparams` and TensorBoard's own HParams write."""
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    try:
        data = HParamsPluginData.FromString(content)
    except DecodeError:
        run.problems.append("Its hyperparameters cannot be decoded and were skipped.")
        return
    for key, value in sorted(data.session_start_info.hparams.items()):
        kind = value.WhichOneof("kind")
        run.config[key] = getattr(value, kind) if kind and kind != "null_value" else None
    if data.HasField("session_end_info") and data.session_end_info.status == 2:
        run.state = RunState.FAILED


def _begin(points: Points) -> float:
    walls = (wall for found in points.values() for _, wall, _ in found if wall > 0)
    return min(walls, default=float("inf"))


def _fill(run: RunRecord, points: Points) -> None:
    """Make a row for each step, and for each further value of a tag at the same step (a writer may be given
    no step), in the order of time. A row's time is that of its first value: an evaluation's may come much
    later than the step.
    """
    import pandas as pd  # of other programs' runs alone

    beside, problems = settings_beside(run.paths[0].parent)
    run.config, run.problems = beside | run.config, run.problems + problems
    if (begin := _begin(points)) < LATEST:
        run.started_at = datetime.fromtimestamp(begin, UTC)
    if points.keys() <= {PLACEHOLDER}:
        if points:
            run.problems.append(
                f"It holds {PLACEHOLDER} alone, which Lightning writes before a metric is logged."
            )
        return
    columns = ["step", "wall", "value"]
    every = pd.concat(
        {tag: pd.DataFrame(found, columns=columns) for tag, found in points.items()}, names=["tag"]
    )
    every["again"] = every.groupby(["tag", "step"], sort=False).cumcount()
    rows = every.groupby(["step", "again"])
    every["first"] = rows["wall"].transform("min")
    rows = every.groupby(["first", "step", "again"])
    every["row"] = rows.ngroup()
    steps, stamps = rows["step"].first().to_numpy(float), rows["wall"].min().to_numpy(float)
    at = np.arange(len(steps))
    run.rows, run.logged = len(steps), {metrics.STEP: (at, steps), STAMP: (at, stamps)}
    for tag, own in every.sort_values("row").groupby("tag", sort=False):
        run.logged.setdefault(str(tag), (own["row"].to_numpy(), own["value"].to_numpy(float)))
