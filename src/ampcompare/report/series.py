"""Rows for the charts: curves by backend, thinned for drawing only, extremes kept.

Every row has `backend`, `run` (a name for readers), `id` (one per line) and `kind` beside the drawn values. `kind` is
"line" for what stands for a backend (its only run, or the mean over its runs), "run" for a single run behind it,
"skip" for a skipped step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ampcompare.report.figures import RunFigures
from ampcompare.report.statistics import Group

LINE_POINTS = 300  # two per pixel bucket of a chart some 560 px wide would be 1,120; 300 look the same and weigh less
ROW_BUDGET = 6_000  # rows per chart, so that a page of 30 runs stays under 5 MB
MIN_POINTS = 24
EXACT = 17  # digits; 131,072 must not become 131,070 on an axis of powers of two
COINCIDENT = 0.015  # some 4 pixels of a chart 250 px high
MAX_SKIP_MARKS = 60
MAX_NAME_CHARS = 80

Row = dict[str, Any]


def curves(groups: Sequence[Group], x: str, y: str, *, y_factor: float = 1.0) -> list[Row]:
    """Rows of `y` (times `y_factor`) against `x`: a line per backend and, behind it, its single runs."""
    lines = sum(len(g.runs) + 1 for g in groups)
    limit = max(MIN_POINTS, min(LINE_POINTS, ROW_BUDGET // max(1, lines)))
    rows: list[Row] = []
    for group in groups:
        tracks = [(f, track) for f in group.runs if len(track := _track(f, x, y, y_factor))]
        counted = [(f, track) for f, track in tracks if f in group.counted]
        if len(counted) == 1:
            rows += _rows(_head(group, "line", counted[0][0]), counted[0][1], limit)
        elif counted:
            mean = _mean([track for _, track in counted])
            head = {"backend": group.label, "run": f"mean of {len(counted)} runs", "id": "mean", "kind": "line"}
            rows += _rows(head, mean, limit)
        for figures, track in tracks:
            if len(counted) != 1 or figures is not counted[0][0]:
                rows += _rows(_head(group, "run", figures), track, limit)
    return rows


def scale_curves(groups: Sequence[Group]) -> list[Row]:
    """The scale factor against the step, and a row of kind "skip" wherever the count of skipped steps rose.

    Only finite scales above 0 are there: the axis is logarithmic.
    """
    rows: list[Row] = []
    lines = sum(len(g.runs) for g in groups)
    limit = max(MIN_POINTS, min(LINE_POINTS, ROW_BUDGET // max(1, lines)))
    for group in groups:
        for i, figures in enumerate(group.counted or group.runs):
            track = _track(figures, "global_step", "amp/scale_factor", 1.0)
            track = track[np.isfinite(track["y"]) & (track["y"] > 0)]
            if len(track):
                kind = "line" if i == 0 else "run"
                rows += _rows(_head(group, kind, figures), _corners(track), limit, EXACT)
                rows += _skips(_head(group, "skip", figures), figures, track)
    return rows


def lay_out(rows: Sequence[Row], labels: Sequence[str], *, log2: bool = False) -> dict[str, int]:
    """Give each row the `place` of its backend, and tell for each backend how many later lines lie on its own.

    A line lies on another where nine in ten of the points at the same x are nearer than COINCIDENT of the height.
    Loss curves and loss scales of several backends often coincide; they are then drawn inside each other.
    """
    lines: dict[str, dict[float, float]] = {label: {} for label in labels}
    for row in rows:
        row["place"] = labels.index(row["backend"])
        if row["kind"] == "line" and row["y"] is not None:
            lines[row["backend"]][row["x"]] = math.log2(row["y"]) if log2 else row["y"]
    drawn = [y for line in lines.values() for y in line.values()]
    near = COINCIDENT * (max(drawn) - min(drawn)) if drawn else 0.0

    def coincide(one: dict[float, float], other: dict[float, float]) -> bool:
        distances = [abs(one[x] - other[x]) for x in one.keys() & other.keys()]
        return bool(distances) and sum(d <= near for d in distances) >= 0.9 * len(distances)

    return {
        label: sum(coincide(lines[label], lines[later]) for later in labels[i + 1 :]) for i, label in enumerate(labels)
    }


def _skips(head: Row, figures: RunFigures, scale: pd.DataFrame) -> list[Row]:
    track = _track(figures, "global_step", "amp/skipped_steps", 1.0).dropna()
    rose = np.diff(track["y"].to_numpy(), prepend=0.0)
    marked = track.assign(rose=rose)[rose > 0]
    if len(marked) > MAX_SKIP_MARKS:
        marked = marked.iloc[np.linspace(0, len(marked) - 1, MAX_SKIP_MARKS).astype(int)]
    steps = scale["x"].to_numpy()
    rows = []
    for step, total, new in zip(marked["x"], marked["y"], marked["rose"], strict=True):
        at = max(0, int(np.searchsorted(steps, step, side="right")) - 1)
        rows.append(_row(head, step, scale["y"].iloc[at], EXACT) | {"skipped": int(total), "new": int(new)})
    return rows


def _track(figures: RunFigures, x: str, y: str, factor: float) -> pd.DataFrame:
    """Columns x and y of the rows in which y was logged; y is NaN where NaN was logged."""
    run = figures.run
    if y not in run.history or x not in run.history:
        return pd.DataFrame({"x": [], "y": []}, dtype=float)
    xs, ys = run.numbers(x), run.numbers(y)
    logged = ~np.isnan(ys)
    logged[run.nan_rows.get(y, [])] = True
    logged &= np.isfinite(xs)
    ys = np.where(np.isfinite(ys), ys, np.nan)
    return pd.DataFrame({"x": xs[logged], "y": ys[logged] * factor})


def _mean(tracks: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The mean over runs at each x that all of them have."""
    per_run = [track.groupby("x")["y"].mean() for track in tracks]
    together = pd.concat(per_run, axis=1, join="inner").sort_index()
    return pd.DataFrame({"x": together.index.to_numpy(), "y": together.mean(axis=1, skipna=False).to_numpy()})


def _corners(track: pd.DataFrame) -> pd.DataFrame:
    """The rows at which a step function changes, with the first and the last."""
    y = track["y"].to_numpy()
    changed = np.ones(len(y), dtype=bool)
    changed[1:-1] = y[1:-1] != y[:-2]
    return track[changed]


def thin(x: np.ndarray, y: np.ndarray, limit: int) -> np.ndarray:
    """Indices of at most about `limit` points that keep first, last, and lowest and highest of each stretch."""
    if len(x) <= limit:
        return np.arange(len(x))
    keep = [0, len(x) - 1]
    for part in np.array_split(np.arange(len(x)), max(1, limit // 2)):
        values = y[part]
        if np.isnan(values).all():
            keep.append(part[0])
        else:
            keep += [part[np.nanargmin(values)], part[np.nanargmax(values)]]
            if np.isnan(values).any():  # a gap stays a gap
                keep.append(part[np.flatnonzero(np.isnan(values))[0]])
    return np.unique(keep)


def _head(group: Group, kind: str, figures: RunFigures) -> Row:
    return {"backend": group.label, "run": _name(figures), "id": figures.run.id, "kind": kind}


def _rows(head: Row, track: pd.DataFrame, limit: int, digits: int = 5) -> list[Row]:
    x, y = track["x"].to_numpy(), track["y"].to_numpy()
    return [_row(head, x[i], y[i], digits) for i in thin(x, y, limit)]


def _row(head: Row, x: float, y: float, digits: int) -> Row:
    return {**head, "x": _short(x, 8), "y": _short(y, digits)}


def _short(value: float, digits: int) -> float | int | None:
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded == int(rounded) and abs(rounded) < 2**53 else rounded


def _name(figures: RunFigures) -> str:
    name = str(figures.run.name)
    short = name if len(name) <= MAX_NAME_CHARS else name[: MAX_NAME_CHARS - 1] + "…"
    return short if figures.seed is None else f"{short} (seed {figures.seed})"
