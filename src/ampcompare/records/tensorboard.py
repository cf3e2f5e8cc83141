"""TensorBoard event files: one run a folder, its tags as columns, a row a step.

Written by torch.utils.tensorboard, TensorFlow, Lightning's and Hugging Face's loggers. They are read by
tensorboard's own reader, an optional extra.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from ampcompare import metrics
from ampcompare.errors import UserError, reason
from ampcompare.records.run import STAMP, Column, RunRecord
from ampcompare.records.tables import settings_beside

INSTALL = 'they need tensorboard: pip install "ampcompare[tensorboard]"'
ARGUMENTS = "args/text_summary"  # the tag of Hugging Face's settings
LATEST = datetime.max.replace(tzinfo=UTC).timestamp() - 1e6
STAMPED = re.compile(r"\d+\.\d+")  # the folder of `add_hparams`, named by the time
Points = dict[str, list[tuple[int, float, float]]]  # of each tag: step, seconds since 1970, value


def is_event_file(name: str) -> bool:
    return "events.out.tfevents." in name or name.endswith(".tfevents")


def read_event_files(paths: Iterable[Path]) -> list[RunRecord]:
    """A run for each folder; what `add_hparams` and `add_scalars` of PyTorch's writer leave in folders below
    it is its own. Raises UserError where tensorboard is not installed; what is wrong with a file becomes a
    sentence in `problems`.
    """
    folders: dict[Path, _Folder] = {}
    for path in sorted(paths):
        folders.setdefault(path.parent, _Folder(path.parent)).files.append(path)
    for folder in folders.values():
        folder.read()
    stamped = Counter(path.parent for path in folders if STAMPED.fullmatch(path.name))
    for folder in [one for one in folders.values() if one.path.parent in folders]:
        tag, whole = next(iter(folder.points), ""), folders[folder.path.parent]
        series = folder.path.name.removeprefix(f"{tag.replace('/', '_')}_")
        if folder.config and STAMPED.fullmatch(folder.path.name) and stamped[whole.path] == 1:  # else trials
            whole.config = {**folder.config, **whole.config}
            whole.summary |= {tag: points[-1][2] for tag, points in folder.points.items()}
        elif len(folder.points) == 1 and series != folder.path.name:
            whole.points[f"{tag}/{series}"] = folder.points[tag]
        else:
            continue
        whole.problems += folders.pop(folder.path).problems
    return [folder.as_run() for folder in folders.values()]


@dataclass
class _Folder:
    """What the event files of one folder say."""

    path: Path
    files: list[Path] = field(default_factory=list)
    points: Points = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    state: str = "finished"  # whether a run came to its end is not in the files

    def read(self) -> None:
        """All files, the oldest first: what a later one logs again from some step on counts."""
        for points in sorted(map(self._read_file, self.files), key=_begin):
            for tag, new in points.items():
                start = min(new)[0]
                self.points[tag] = [point for point in self.points.get(tag, []) if point[0] < start] + new

    def _read_file(self, path: Path) -> Points:
        """The points of one file, of tags that have any."""
        if not path.is_file():
            self.problems.append(f"{path.name} is not a plain file and was not read.")
            return {}
        try:
            from tensorboard.backend.event_processing import event_accumulator as reader
        except ImportError:
            raise UserError(f"{path.parent}: TensorBoard event files: {INSTALL}") from None
        whole = (reader.SCALARS, reader.TENSORS)
        events = reader.EventAccumulator(
            str(path), {kind: int(kind not in whole) for kind in reader.DEFAULT_SIZE_GUIDANCE}
        )
        try:
            events.Reload()
        except Exception as problem:  # the reader's own kinds, protobuf's, and those of hostile content
            self.problems.append(f"Reading {path.name} stopped: {reason(problem)}.")
        points = {
            tag: [(e.step, e.wall_time, float(e.value)) for e in events.scalars.Items(tag)]
            for tag in events.scalars.Keys()
        }
        for tag in events.tensors.Keys():
            self._take_tensors(tag, events, points)
        if "hparams" in events._plugin_to_tag_to_content:
            self._take_settings(events.PluginTagToContent("hparams").values())
        if events.file_version is None and not points:
            self.problems.append(f"{path.name} holds no event.")
        return {tag: found for tag, found in points.items() if found}

    def _take_tensors(self, tag: str, events: Any, points: Points) -> None:
        """What TensorFlow 2 writes scalars as, and Hugging Face its settings."""
        from tensorboard.util.tensor_util import make_ndarray

        about = events.summary_metadata.get(tag)
        plugin = about.plugin_data.plugin_name if about else ""
        for event in events.Tensors(tag):
            try:
                value = make_ndarray(event.tensor_proto)
                if tag == ARGUMENTS and isinstance(said := json.loads(value.reshape(-1)[0]), dict):
                    self.config |= said
                elif value.size == 1 and plugin in ("", "scalars"):
                    point = event.step, event.wall_time, float(value.reshape(-1)[0])
                    points.setdefault(tag, []).append(point)
            except (ValueError, TypeError, IndexError, RecursionError):  # no number, no JSON
                continue

    def _take_settings(self, contents: Iterable[bytes]) -> None:
        """What PyTorch's `add_hparams` and TensorBoard's own HParams write."""
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

        for content in contents:
            try:
                data = HParamsPluginData.FromString(content)
            except Exception as problem:
                self.problems.append(f"Its hyperparameters cannot be read: {reason(problem)}.")
                continue
            for key, value in data.session_start_info.hparams.items():
                kind = value.WhichOneof("kind")
                self.config[key] = getattr(value, kind) if kind and kind != "null_value" else None
            if data.HasField("session_end_info") and data.session_end_info.status == 2:
                self.state = "failed"

    def as_run(self) -> RunRecord:
        """The folder as a run."""
        beside, problems = settings_beside(self.path)
        rows, logged = _columns(self.points)
        begin = _begin(self.points)
        return RunRecord(
            paths=(self.path / self.files[0].name,),
            id=self.path.as_posix(),
            name=self.path.as_posix(),
            state=self.state,
            started_at=datetime.fromtimestamp(begin, UTC) if begin < LATEST else None,
            config={**beside, **self.config},
            summary=self.summary,
            rows=rows,
            logged=logged,
            problems=self.problems + problems,
        )


def _begin(points: Points) -> float:
    walls = (wall for found in points.values() for _, wall, _ in found if wall > 0)
    return min(walls, default=float("inf"))


def _columns(points: Points) -> tuple[int, dict[str, Column]]:
    """A row for each step, and for each further value of a tag at the same step (a writer may be given no
    step). A row's time is that of its first value: an evaluation's may come much later than the step.
    """
    import pandas as pd

    if not points:
        return 0, {}
    columns = ["step", "wall", "value"]
    every = pd.concat(
        {tag: pd.DataFrame(found, columns=columns) for tag, found in points.items()}, names=["tag"]
    )
    every["again"] = every.groupby(["tag", "step"], sort=False).cumcount()
    rows = every.groupby(["step", "again"])
    every["row"] = rows.ngroup()
    steps, stamps = rows["step"].first().to_numpy(float), rows["wall"].min().to_numpy(float)
    at = np.arange(len(steps))
    logged = {metrics.STEP: (at, steps), STAMP: (at, stamps)}
    for tag, own in every.sort_values("row").groupby("tag", sort=False):
        logged.setdefault(str(tag), (own["row"].to_numpy(), own["value"].to_numpy(float)))
    return len(steps), logged
