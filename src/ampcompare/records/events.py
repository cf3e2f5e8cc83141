"""TensorBoard event files: one run a folder, its tags as columns, a row a step.

Written by torch.utils.tensorboard, TensorFlow, Lightning's and Hugging Face's loggers. They are read by
tensorboard's own reader, an optional extra.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from ampcompare import metrics
from ampcompare.errors import UserError, reason
from ampcompare.records.beside import settings_beside
from ampcompare.records.run import Fragment
from ampcompare.records.system import STAMP

INSTALL = 'they need tensorboard: pip install "ampcompare[tensorboard]"'
MOST_TAGS = 10_000
MOST_CELLS = 50_000_000  # 400 MB
NUMERIC = {1, 2, 3, 4, 5, 6, 9, 10, 14, 17, 19, 22, 23}  # TensorFlow's numbers of the real types
TEXT_CONFIG = {"args/text_summary": "", "model_config/text_summary": "model_config"}  # Hugging Face's
STAMPED = re.compile(r"\d+\.\d+")  # the folder of `add_hparams`, named by the time
Point = tuple[int, float, float]  # step, seconds since 1970, value


def is_event_file(name: str) -> bool:
    return "events.out.tfevents." in name or name.endswith(".tfevents")


def read_event_files(paths: Iterable[Path]) -> list[Fragment]:
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
    return [folder.as_fragment() for folder in folders.values()]


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
    left_out: set[str] = field(default_factory=set)

    def read(self) -> None:
        """All files, the oldest first: what a later one logs again from some step on counts."""
        found = [(path, points) for path in self.files if (points := self._read_file(path)) is not None]
        again = 0
        for _, points in sorted(found, key=lambda one: _begin(one[1])):
            for tag, new in points.items():
                old = self.points.get(tag, [])
                start = min(step for step, _, _ in new)
                kept = [point for point in old if point[0] < start]
                again += len(old) - len(kept)
                self.points[tag] = kept + new
        if again:
            what = "1 value was" if again == 1 else f"{again:,} values were"
            self.problems.append(f"{what} logged again by a later file; what is later counts.")
        if self.left_out:
            self.problems.append(
                f"Tags beyond the first {MOST_TAGS:,} were left out: {len(self.left_out):,}."
            )

    def _read_file(self, path: Path) -> dict[str, list[Point]] | None:
        """The points of one file by tag; None where there is nothing to be read."""
        points: dict[str, list[Point]] = {}
        count = 0
        try:
            if not path.is_file():
                self.problems.append(f"{path.name} is not a plain file and was not read.")
                return None
            for event in _load(path):
                count += 1
                if math.isfinite(event.wall_time) and event.wall_time > 0:
                    self.first = min(self.first, event.wall_time)
                for value in event.summary.value:
                    self._take(value, event, points)
        except (UserError, MemoryError):
            raise
        except Exception as problem:  # the reader's own kinds, protobuf's, and those of hostile content
            self.problems.append(f"Reading {path.name} stopped: {reason(problem)}.")
        if not count:
            self.problems.append(f"{path.name} holds no event.")
        return points

    def _take(self, value: Any, event: Any, points: dict[str, list[Point]]) -> None:
        plugin = value.metadata.plugin_data.plugin_name
        if plugin == "hparams":
            self._take_settings(value.metadata.plugin_data.content)
        elif value.tag in TEXT_CONFIG and value.HasField("tensor"):
            self._take_text(value)
        elif (number := _number(value, plugin)) is not None:
            tag = value.tag
            if tag not in points and len(points.keys() | self.points.keys()) >= MOST_TAGS:
                self.left_out.add(tag)
            else:
                points.setdefault(tag, []).append((event.step, event.wall_time, number))

    def _take_settings(self, content: bytes) -> None:
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

        data = HParamsPluginData.FromString(content)
        for key, value in data.session_start_info.hparams.items():
            kind = value.WhichOneof("kind")
            self.config[key] = getattr(value, kind) if kind and kind != "null_value" else None
        if data.HasField("session_end_info"):
            self.state = {2: "failed"}.get(data.session_end_info.status, self.state)

    def _take_text(self, value: Any) -> None:
        group = TEXT_CONFIG[value.tag]
        for text in value.tensor.string_val[:1]:
            try:
                said = json.loads(text)
            except (ValueError, RecursionError):
                continue
            if isinstance(said, dict):
                self.config |= {group: said} if group else said

    def adopt(self, child: _Folder, folders: Sequence[Path]) -> bool:
        """Take in a folder that is a part of this run: what `add_hparams` and `add_scalars` of PyTorch's
        writer leave below it. Whether it was one.
        """
        name = child.path.name
        stamped = [p for p in folders if p.parent == self.path and STAMPED.fullmatch(p.name)]
        if child.config and stamped == [child.path]:  # several are trials, each a run of its own
            self.config = {**child.config, **self.config}
            self.summary |= {tag: points[-1][2] for tag, points in child.points.items()}
        elif len(child.points) == 1:
            ((tag, points),) = child.points.items()
            start = tag.replace("/", "_") + "_"
            if not name.startswith(start):
                return False
            self.points[f"{tag}/{name.removeprefix(start)}"] = points
        else:
            return False
        self.problems += child.problems
        return True

    def _fit(self) -> int:
        """Keep the tags with the most values where a table of all would not fit; how many fall out."""
        tags = sorted(self.points, key=lambda tag: -len(self.points[tag]))
        count = len(tags)
        while (
            len(tags) * sum(len(self.points[tag]) for tag in tags) > MOST_CELLS
        ):  # as if no step were shared
            steps = {step for tag in tags for step, _, _ in self.points[tag]}
            if len(tags) * len(steps) <= MOST_CELLS or len(tags) == 1:
                break
            tags = tags[: len(tags) // 2]
        kept = set(tags)
        self.points = {tag: points for tag, points in self.points.items() if tag in kept}
        return count - len(tags)

    def as_fragment(self) -> Fragment:
        beside, problems = settings_beside(self.path)
        if left_out := self._fit():
            problems.append(
                f"Tags with the fewest values were left out, the table is too large: {left_out:,}."
            )
        columns, rows, nan_rows = _table(self.points)
        return Fragment(
            path=self.path / self.files[0].name,
            id=self.path.as_posix(),
            name=self.path.as_posix(),
            state=self.state,
            has_run_record=True,
            started_at=_moment(self.first),
            config={**beside, **self.config},
            summary=self.summary,
            columns=columns,
            rows=rows,
            nan_rows=nan_rows,
            problems=self.problems + problems,
        )


def _load(path: Path) -> Iterable[Any]:
    try:
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
    except ImportError:
        raise UserError(f"{path.parent}: TensorBoard event files: {INSTALL}") from None
    # Not the newer loader, which makes tensors of all that is a number.
    return LegacyEventFileLoader(str(path)).Load()


def _number(value: Any, plugin: str) -> float | None:
    """A value that is one number; None of images, texts, histograms."""
    if value.HasField("simple_value"):
        return float(value.simple_value)
    if not value.HasField("tensor") or plugin not in ("", "scalars"):
        return None
    tensor = value.tensor
    size = math.prod(dimension.size for dimension in tensor.tensor_shape.dim)
    if size != 1 or tensor.dtype not in NUMERIC:
        return None
    from tensorboard.util.tensor_util import make_ndarray

    return float(make_ndarray(tensor).reshape(-1)[0])


def _begin(points: dict[str, list[Point]]) -> float:
    return min((wall for found in points.values() for _, wall, _ in found), default=math.inf)


def _table(points: dict[str, list[Point]]) -> tuple[dict[str, np.ndarray], int, dict[str, np.ndarray]]:
    """Columns with a row for each step, and for each further value of a tag at the same step (a writer may be
    given no step); how many rows; and the rows with a NaN that was logged, by tag.
    """
    numbered = {tag: list(_numbered(found)) for tag, found in points.items()}
    places = sorted({place for found in numbered.values() for place, _, _ in found})
    row_of = {place: row for row, place in enumerate(places)}
    stamps = np.full(len(places), np.nan)
    columns = {metrics.STEP: np.array([step for step, _ in places], dtype=float), STAMP: stamps}
    nan_rows: dict[str, np.ndarray] = {}
    for tag, found in numbered.items():
        rows = np.array([row_of[place] for place, _, _ in found], dtype=np.int64)
        values = np.array([value for _, _, value in found])
        # The first of a row: a step's tags may come much later than the step (an evaluation's).
        stamps[rows] = np.fmin(stamps[rows], [wall for _, wall, _ in found])
        if tag in columns:  # the step, or the time, as somebody logged it himself
            continue
        columns[tag] = np.full(len(places), np.nan)
        columns[tag][rows] = values
        if len(lost := rows[np.isnan(values)]):
            nan_rows[tag] = lost
    return (columns, len(places), nan_rows) if places else ({}, 0, {})


def _numbered(points: list[Point]) -> Iterator[tuple[tuple[int, int], float, float]]:
    """The points of a tag; their place is the step and how often it was there before."""
    counts: Counter[int] = Counter()
    for step, wall, value in points:
        yield (step, counts[step]), wall, value
        counts[step] += 1


def _moment(seconds: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None
