"""TensorBoard event files: one run a folder, its tags as columns, a row a step.

Written by torch.utils.tensorboard, TensorFlow, Lightning's and Hugging Face's loggers. They are read by
tensorboard's own reader, an optional extra.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ampcompare import metrics
from ampcompare.errors import UserError, reason
from ampcompare.records.machine import STAMP
from ampcompare.records.run import Column, RunRecord
from ampcompare.records.tables import settings_beside

INSTALL = 'they need tensorboard: pip install "ampcompare[tensorboard]"'
TEXT_CONFIG = {"args/text_summary": "", "model_config/text_summary": "model_config"}  # Hugging Face's
STAMPED = re.compile(r"\d+\.\d+")  # the folder of `add_hparams`, named by the time
Point = tuple[int, float, float]  # step, seconds since 1970, value


def is_event_file(name: str) -> bool:
    return "events.out.tfevents." in name or name.endswith(".tfevents")


def read_event_files(paths: Iterable[Path]) -> list[RunRecord]:
    """A run for each folder. Raises UserError where tensorboard is not installed; what is wrong with a file
    becomes a sentence in `problems`.
    """
    folders: dict[Path, _Folder] = {}
    for path in sorted(paths):
        folders.setdefault(path.parent, _Folder(path.parent)).files.append(path)
    for folder in folders.values():
        folder.read()
    for folder in list(folders.values()):
        parent = folders.get(folder.path.parent)
        if parent and parent.adopt(folder, list(folders)):
            del folders[folder.path]
    return [folder.as_run() for folder in folders.values()]


@dataclass
class _Folder:
    """What the event files of one folder say."""

    path: Path
    files: list[Path] = field(default_factory=list)
    points: dict[str, list[Point]] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    state: str = "finished"  # whether a run came to its end is not in the files
    first: float = math.inf

    def read(self) -> None:
        """All files, the oldest first: what a later one logs again from some step on counts."""
        again = 0
        for points in sorted(map(self._read_file, self.files), key=_begin):
            for tag, new in points.items():
                start = min(step for step, _, _ in new)
                old = self.points.get(tag, [])
                kept = [point for point in old if point[0] < start]
                again += len(old) - len(kept)
                self.points[tag] = kept + new
        if again:
            what = "1 value was" if again == 1 else f"{again:,} values were"
            self.problems.append(f"{what} logged again by a later file; what is later counts.")

    def _read_file(self, path: Path) -> dict[str, list[Point]]:
        """The points of one file by tag."""
        if not path.is_file():
            self.problems.append(f"{path.name} is not a plain file and was not read.")
            return {}
        try:
            from tensorboard.backend.event_processing import event_accumulator as reader
        except ImportError:
            raise UserError(f"{path.parent}: TensorBoard event files: {INSTALL}") from None
        events = reader.EventAccumulator(
            str(path),
            {
                kind: int(kind not in (reader.SCALARS, reader.TENSORS))
                for kind in reader.DEFAULT_SIZE_GUIDANCE
            },
        )
        try:
            events.Reload()
        except Exception as problem:  # the reader's own kinds, protobuf's, and those of hostile content
            self.problems.append(f"Reading {path.name} stopped: {reason(problem)}.")
        if events.file_version is None and not events.scalars.Keys() and not events.tensors.Keys():
            self.problems.append(f"{path.name} holds no event.")
        scalars = events.scalars
        points = {
            tag: [(e.step, e.wall_time, float(e.value)) for e in scalars.Items(tag)] for tag in scalars.Keys()
        }
        for tag in events.tensors.Keys():
            self._take_tensors(tag, events, points)
        if "hparams" in events._plugin_to_tag_to_content:
            self._take_settings(events.PluginTagToContent("hparams").values())
        self.first = min(self.first, _begin(points))
        return {tag: found for tag, found in points.items() if found}

    def _take_tensors(self, tag: str, events: Any, points: dict[str, list[Point]]) -> None:
        """What TensorFlow 2 writes scalars as, and texts."""
        from tensorboard.util.tensor_util import make_ndarray

        plugin = (
            events.summary_metadata[tag].plugin_data.plugin_name if tag in events.summary_metadata else ""
        )
        for event in events.Tensors(tag):
            try:
                value = make_ndarray(event.tensor_proto)
                if tag in TEXT_CONFIG and value.size:
                    self._take_text(TEXT_CONFIG[tag], value.reshape(-1)[0])
                elif value.size == 1 and plugin in ("", "scalars"):
                    points.setdefault(tag, []).append(
                        (event.step, event.wall_time, float(value.reshape(-1)[0]))
                    )
            except (ValueError, TypeError, RecursionError):  # no number, no JSON
                continue

    def _take_text(self, group: str, text: Any) -> None:
        said = json.loads(text)
        if isinstance(said, dict):
            self.config |= {group: said} if group else said

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

    def adopt(self, child: _Folder, folders: Sequence[Path]) -> bool:
        """Take in a folder that is a part of this run: what `add_hparams` and `add_scalars` of PyTorch's
        writer leave below it. Whether it was one.
        """
        stamped = [p for p in folders if p.parent == self.path and STAMPED.fullmatch(p.name)]
        if child.config and stamped == [child.path]:  # several are trials, each a run of its own
            self.config = {**child.config, **self.config}
            self.summary |= {tag: points[-1][2] for tag, points in child.points.items()}
        elif len(child.points) == 1:
            ((tag, points),) = child.points.items()
            start = tag.replace("/", "_") + "_"
            if not child.path.name.startswith(start):
                return False
            self.points[f"{tag}/{child.path.name.removeprefix(start)}"] = points
        else:
            return False
        self.problems += child.problems
        return True

    def as_run(self) -> RunRecord:
        """The folder as a run."""
        beside, problems = settings_beside(self.path)
        rows, logged = _table(self.points)
        return RunRecord(
            paths=(self.path / self.files[0].name,),
            id=self.path.as_posix(),
            name=self.path.as_posix(),
            state=self.state,
            started_at=_moment(self.first),
            config={**beside, **self.config},
            summary=self.summary,
            rows=rows,
            logged=logged,
            problems=self.problems + problems,
        )


def _begin(points: dict[str, list[Point]]) -> float:
    walls = (wall for found in points.values() for _, wall, _ in found if wall > 0)
    return min(walls, default=math.inf)


def _table(points: dict[str, list[Point]]) -> tuple[int, dict[str, Column]]:
    """A row for each step, and for each further value of a tag at the same step (a writer may be given no
    step). A row's time is that of its first value: an evaluation's may come much later than the step.
    """
    placed: dict[str, dict[tuple[int, int], tuple[float, float]]] = {}
    for tag, found in points.items():
        counts: Counter[int] = Counter()
        for step, wall, value in found:
            placed.setdefault(tag, {})[step, counts[step]] = wall, value
            counts[step] += 1
    places = sorted(set(chain.from_iterable(placed.values())))
    row_of = {place: row for row, place in enumerate(places)}
    stamps = np.full(len(places), np.nan)
    columns: dict[str, Column] = {}
    for tag, cells in placed.items():
        rows = np.array([row_of[place] for place in cells], np.int64)
        walls, values = np.array(list(cells.values())).T
        stamps[rows] = np.fmin(stamps[rows], walls)
        order = np.argsort(rows)
        columns[tag] = rows[order], values[order]
    every = np.arange(len(places))
    own = {metrics.STEP: (every, np.array([float(step) for step, _ in places])), STAMP: (every, stamps)}
    return len(places), own | {
        tag: column for tag, column in columns.items() if tag not in own
    } if places else {}


def _moment(seconds: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None
