"""TensorBoard event files: one run per folder, its tags as columns, one row per step.

They are written by torch.utils.tensorboard, TensorFlow, and the loggers of Lightning and Hugging Face.
TensorBoard's own reader, an optional extra, reads them.
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
from ampcompare.runs.run_record import TIMESTAMP, RunRecord
from ampcompare.runs.run_state import RunState
from ampcompare.runs.settings_files import read_settings_in

INSTALL = 'they need tensorboard: pip install "ampcompare[tensorboard]"'
ARGUMENTS = "args/text_summary"  # tag of Hugging Face's settings
PLACEHOLDER = "hp_metric"  # Lightning's logger writes it as -1 at the start
LATEST = datetime.max.replace(tzinfo=UTC).timestamp() - 1e6
TIMESTAMP_FOLDER = re.compile(r"\d+\.\d+")  # folder of `add_hparams`, named by the time
Points = dict[str, list[tuple[int, float, float]]]  # by tag: step, seconds since 1970, value


def read_event_files(paths: Iterable[Path]) -> list[RunRecord]:
    """Return a run for each folder.

    Subfolders that `add_hparams` and `add_scalars` of PyTorch's writer create belong to the run above them.
    What is wrong with a file becomes a sentence in `problems`.

    Raises:
        UserError: TensorBoard is not installed.
    """
    files: dict[Path, list[Path]] = {}
    for path in sorted(paths):
        files.setdefault(path.parent, []).append(path)
    by_folder = {folder: _read_folder(folder, files_of_folder) for folder, files_of_folder in files.items()}
    trial_counts = Counter(folder.parent for folder in files if TIMESTAMP_FOLDER.fullmatch(folder.name))
    for folder in [folder for folder in files if folder.parent in files]:
        run, points = by_folder[folder]
        parent_run, parent_points = by_folder[folder.parent]
        tag = next(iter(points), "")
        series = folder.name.removeprefix(f"{tag.replace('/', '_')}_")
        # Several folders with settings are trials, and runs of their own.
        is_only_trial = TIMESTAMP_FOLDER.fullmatch(folder.name) and trial_counts[folder.parent] == 1
        if run.config and is_only_trial:  # of `add_hparams`
            parent_run.config = run.config | parent_run.config
            parent_run.summary |= {tag: points_of_tag[-1][2] for tag, points_of_tag in points.items()}
        elif len(points) == 1 and series != folder.name:  # of `add_scalars`
            parent_points[f"{tag}/{series}"] = points[tag]
        else:
            continue
        parent_run.problems += run.problems
        del by_folder[folder]
    for run, points in by_folder.values():
        _build_rows(run, points)
    return [run for run, _ in by_folder.values()]


def _read_folder(folder: Path, files: list[Path]) -> tuple[RunRecord, Points]:
    """Read the event files of a folder, oldest first. They do not say whether a run ended.

    A later file that logs a tag several times continues from a checkpoint: its values replace earlier ones
    from its first step on. A file that logs a tag once (a test after the fit) replaces only the value at that
    step.
    """
    name = folder.as_posix()
    points = Points()
    run = RunRecord(id=name, name=name, state=RunState.FINISHED, paths=(files[0],))
    for later in sorted((_read_file(path, run) for path in files), key=_first_time):
        for tag, new in later.items():
            steps = {step for step, _, _ in new}
            end = float("inf") if len(steps) > 1 else max(steps)
            earlier = [point for point in points.get(tag, []) if not min(steps) <= point[0] <= end]
            points[tag] = earlier + new
    return run, points


def _read_file(path: Path, run: RunRecord) -> Points:
    """Return the points of one file; other content is stored in the run."""
    try:
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
    except ImportError:
        raise UserError(f"{path.parent}: TensorBoard event files: {INSTALL}") from None
    points = Points()
    plugins: dict[str, str] = {}  # by tag
    count = 0
    if not path.is_file():
        run.problems.append(f"{path.name} is not a plain file and was not read.")
        return points
    try:
        for event in LegacyEventFileLoader(str(path)).Load():
            count += 1
            for value in event.summary.value:
                plugin_data = value.metadata.plugin_data  # only set for the first value of a tag
                plugin = plugins.setdefault(value.tag, plugin_data.plugin_name)
                if plugin == "hparams":
                    _store_settings(run, plugin_data.content)
                    continue
                number = _read_scalar(run, value, plugin)
                if number is not None:
                    points.setdefault(value.tag, []).append((event.step, event.wall_time, number))
    except Exception as problem:  # errors of the reader and of protobuf, and those of hostile content
        run.problems.append(f"Reading {path.name} stopped: {reason(problem)}.")
    if not count:
        run.problems.append(f"{path.name} holds no event.")
    return points


def _read_scalar(run: RunRecord, value: Any, plugin: str) -> float | None:
    """Return the scalar of a value, as PyTorch's writer or TensorFlow 2 stores it; None if it is no scalar.

    Hugging Face's settings, a text, are added to the config.
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


def _store_settings(run: RunRecord, content: bytes) -> None:
    """Store the hyperparameters that PyTorch's `add_hparams` and TensorBoard's HParams write."""
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


def _first_time(points: Points) -> float:
    walls = (wall for values in points.values() for _, wall, _ in values if wall > 0)
    return min(walls, default=float("inf"))


def _build_rows(run: RunRecord, points: Points) -> None:
    """Make a row for each step, in the order of time.

    Several values of a tag at one step give several rows, because a writer may be called without a step. The
    time of a row is that of its first value; an evaluation may come much later than its step.
    """
    import pandas as pd  # only for event files

    settings, problems = read_settings_in(run.paths[0].parent)
    run.config = settings | run.config
    run.problems += problems
    begin = _first_time(points)
    if begin < LATEST:
        run.started_at = datetime.fromtimestamp(begin, UTC)
    if not points:
        return
    if points.keys() == {PLACEHOLDER}:
        run.problems.append(
            f"It holds {PLACEHOLDER} alone, which Lightning writes before a metric is logged."
        )
        return
    columns = ["step", "wall", "value"]
    frames = {tag: pd.DataFrame(values, columns=columns) for tag, values in points.items()}
    all_points = pd.concat(frames, names=["tag"])
    all_points["again"] = all_points.groupby(["tag", "step"], sort=False).cumcount()
    all_points["first"] = all_points.groupby(["step", "again"])["wall"].transform("min")
    rows = all_points.groupby(["first", "step", "again"])
    all_points["row"] = rows.ngroup()

    steps = rows["step"].first().to_numpy(float)
    timestamps = rows["wall"].min().to_numpy(float)
    row_numbers = np.arange(len(steps))
    run.rows = len(steps)
    run.logged = {metrics.STEP: (row_numbers, steps), TIMESTAMP: (row_numbers, timestamps)}
    for tag, tag_rows in all_points.sort_values("row").groupby("tag", sort=False):
        run.logged.setdefault(str(tag), (tag_rows["row"].to_numpy(), tag_rows["value"].to_numpy(float)))
