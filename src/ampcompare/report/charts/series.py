"""Rows for the charts: curves by backend, thinned for drawing only, extremes kept.

Every row has `backend` (the label of its group), `run` (a name for readers), `id` (one per line) and `kind`
beside the drawn values. `kind` is "line" for what stands for a group (its only run, or the mean over its
runs), "run" for a single run behind it, "skip" for a skipped step.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ampcompare import metrics
from ampcompare.report.runs.figures import RunFigures
from ampcompare.report.runs.groups import Group
from ampcompare.report.words import short

# Two per pixel bucket of a chart some 560 px wide would be 1,120; 300 look the same and weigh less.
LINE_POINTS = 300
ROW_BUDGET = 6_000  # rows per chart, so that a page of 30 runs stays under 5 MB
MIN_POINTS = 24
DIGITS = 5
EXACT = 17  # digits; 131,072 must not become 131,070 on an axis of powers of two
COINCIDENT = 0.015  # some 4 pixels of a chart 250 px high
MANY_LINES = 24  # beyond it each pair is not looked at: nobody could tell them apart
MAX_SKIP_MARKS = 60
MAX_NAME_CHARS = 80


Datum = dict[str, Any]
Track = tuple[np.ndarray, np.ndarray]  # x and y, one value a row each


def curves(groups: Sequence[Group], x: str, y: str, *, y_factor: float = 1.0) -> list[Datum]:
    """Rows of `y` (times `y_factor`) against `x`: a line per group, with the lowest and highest seed at each
    x in `low` and `high` where there are several, and behind it its single runs."""
    limit = _limit(groups)
    rows: list[Datum] = []
    for group in groups:
        tracks = [(f, track) for f in group.runs if len((track := _track(f, x, y, y_factor))[0])]
        counted = [track for f, track in tracks if f in group.counted]
        if len(counted) > 1:
            rows += _band_rows(_mean_head(group, len(counted)), *_mean(counted), limit)
        for f, track in tracks:
            kind = "line" if len(counted) == 1 and f in group.counted else "run"
            rows += _rows(_head(group, kind, f), track, limit)
    return rows


def time_curves(groups: Sequence[Group], y: str, *, y_factor: float = 1.0) -> list[Datum]:
    """Rows of a metric against wall-clock seconds; over seeds, the mean time and value of each epoch.

    Runs whose clock goes backwards are left out.
    """
    limit = _limit(groups)
    rows: list[Datum] = []
    for group in groups:
        sound = [f for f in group.runs if not f.clock_jumps]
        values = [(f, _track(f, metrics.EPOCH, y, y_factor)) for f in sound]
        times = {id(f): _track(f, metrics.EPOCH, metrics.ELAPSED, 1.0) for f in sound}
        values = [(f, track) for f, track in values if len(track[0]) and len(times[id(f)][0])]
        at = {id(f): np.interp(track[0], *_rising(*times[id(f)])) for f, track in values}
        counted = [(f, track) for f, track in values if f in group.counted]
        if len(counted) > 1:
            epochs, mean, low, high = _mean([track for _, track in counted])
            seconds = np.mean([np.interp(epochs, track[0], at[id(f)]) for f, track in counted], axis=0)
            rows += _band_rows(_mean_head(group, len(counted)), seconds, mean, low, high, limit)
        for f, track in values:
            kind = "line" if len(counted) == 1 and f in group.counted else "run"
            rows += _rows(_head(group, kind, f), (at[id(f)], track[1]), limit)
    return rows


def _limit(groups: Sequence[Group]) -> int:
    lines = sum(len(g.runs) + 1 for g in groups)
    return max(MIN_POINTS, min(LINE_POINTS, ROW_BUDGET // max(1, lines)))


def scale_curves(groups: Sequence[Group]) -> list[Datum]:
    """The scale factor against the step, and a row of kind "skip" wherever the count of skipped steps rose.

    Only finite scales above 0 are there: the axis is logarithmic. One run stands for its group; the rows of
    the others have kind "run", their skipped steps "run-skip".
    """
    rows: list[Datum] = []
    limit = _limit(groups)
    for group in groups:
        for i, figures in enumerate(group.counted or group.runs):
            x, y = _track(figures, metrics.STEP, metrics.SCALE, 1.0)
            usable = np.isfinite(y) & (y > 0)
            track = (x[usable], y[usable])
            if len(track[0]):
                kind, skip = ("line", "skip") if i == 0 else ("run", "run-skip")
                rows += _rows(_head(group, kind, figures), _corners(track), limit, EXACT)
                rows += _skips(_head(group, skip, figures), figures, track)
    return rows


def lay_out(rows: Sequence[Datum], labels: Sequence[str], *, log2: bool = False) -> dict[str, int]:
    """Give each row its backend's `place`, and tell for each backend how many later lines lie on its own.

    A line lies on another where nine in ten of the points at the same x are nearer than COINCIDENT of the
    height. Loss curves and scales of several backends often coincide; they are then drawn inside each other.
    """
    lines: dict[str, dict[float, float]] = {label: {} for label in labels}
    for row in rows:
        row["place"] = labels.index(row["backend"])
        if row["kind"] == "line" and row["y"] is not None:
            lines[row["backend"]][row["x"]] = math.log2(row["y"]) if log2 else row["y"]
    if len(labels) > MANY_LINES:
        return dict.fromkeys(labels, 0)
    drawn = [y for line in lines.values() for y in line.values()]
    near = COINCIDENT * (max(drawn) - min(drawn)) if drawn else 0.0

    def coincide(one: dict[float, float], other: dict[float, float]) -> bool:
        distances = [abs(one[x] - other[x]) for x in one.keys() & other.keys()]
        return bool(distances) and sum(d <= near for d in distances) >= 0.9 * len(distances)

    pairs = list(lines.items())
    return {
        label: sum(coincide(line, later) for _, later in pairs[i:])
        for i, (label, line) in enumerate(pairs, 1)
    }


def _skips(head: Datum, figures: RunFigures, scale: Track) -> list[Datum]:
    steps, totals = _track(figures, metrics.STEP, metrics.SKIPPED, 1.0)
    known = ~np.isnan(totals)
    steps, totals = steps[known], totals[known]
    rose = np.diff(totals, prepend=0.0)
    marked = np.flatnonzero(rose > 0)
    if len(marked) > MAX_SKIP_MARKS:
        marked = marked[np.linspace(0, len(marked) - 1, MAX_SKIP_MARKS).astype(int)]
    rows = []
    for i in marked:
        at = max(0, int(np.searchsorted(scale[0], steps[i], side="right")) - 1)
        row = _row(head, steps[i], scale[1][at], EXACT)
        rows.append(row | {"skipped": int(totals[i]), "new": int(rose[i])})
    return rows


def _track(figures: RunFigures, x: str, y: str, factor: float) -> Track:
    """x and y of the rows in which y was logged; y is NaN where NaN was logged."""
    run = figures.run
    rows, ys = run.logged_numbers(y)
    xs = run.numbers(x)[rows]
    known = np.isfinite(xs)
    ys = np.where(np.isfinite(ys), ys, np.nan)
    return xs[known], ys[known] * factor


def _rising(x: np.ndarray, y: np.ndarray) -> Track:
    order = np.argsort(x, kind="stable")
    return x[order], y[order]


def _once(track: Track) -> Track:
    """Each x once, in rising order, with the mean of its ys."""
    x, y = track
    if len(x) < 2 or (np.diff(x) > 0).all():
        return track
    unique, where, counts = np.unique(x, return_inverse=True, return_counts=True)
    return unique, np.bincount(where, weights=y) / counts


def _mean(tracks: Sequence[Track]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """x, and mean, lowest and highest run there, at each x that all runs have.

    Where the runs were logged at other steps they are interpolated at the first's, as far as all of them go.
    """
    each = [_once(track) for track in tracks]
    x = each[0][0]
    if not all(np.array_equal(x, other) for other, _ in each):
        common = functools.reduce(np.intersect1d, (other for other, _ in each))
        if 2 * len(common) >= min(len(other) for other, _ in each):
            x = common
        else:
            x = x[(x >= max(t[0][0] for t in each)) & (x <= min(t[0][-1] for t in each))]
    ys = np.array([np.interp(x, *track) for track in each])  # exact where it was logged
    return x, ys.mean(axis=0), ys.min(axis=0), ys.max(axis=0)


def _corners(track: Track) -> Track:
    """The rows at which a step function changes, with the first and the last."""
    x, y = track
    changed = np.ones(len(y), dtype=bool)
    changed[1:-1] = y[1:-1] != y[:-2]
    return x[changed], y[changed]


def thin(x: np.ndarray, y: np.ndarray, limit: int) -> np.ndarray:
    """Indices of at most about `limit` points: first, last, lowest and highest of each stretch."""
    if len(x) <= limit:
        return np.arange(len(x))
    stretches = max(1, limit // 2)
    width = -(-len(y) // stretches)
    padded = np.full(stretches * width, np.nan)
    padded[: len(y)] = y
    rows = padded.reshape(stretches, width)
    begins = np.arange(stretches) * width
    missing = np.isnan(rows)
    lowest = np.where(missing, np.inf, rows).argmin(axis=1)
    highest = np.where(missing, -np.inf, rows).argmax(axis=1)
    gaps = begins[missing.any(axis=1)] + missing.argmax(axis=1)[missing.any(axis=1)]  # a gap stays a gap
    kept = np.concatenate([[0, len(x) - 1], begins + lowest, begins + highest, gaps])
    return np.unique(kept[kept < len(y)])


def _head(group: Group, kind: str, figures: RunFigures) -> Datum:
    return {"backend": group.label, "run": _name(figures), "id": figures.run.id, "kind": kind}


def _mean_head(group: Group, n: int) -> Datum:
    return {"backend": group.label, "run": f"mean of {n} runs", "id": "mean", "kind": "line"}


def _rows(head: Datum, track: Track, limit: int, digits: int = DIGITS) -> list[Datum]:
    x, y = track
    return [_row(head, x[i], y[i], digits) for i in thin(x, y, limit)]


def _band_rows(
    head: Datum, x: np.ndarray, y: np.ndarray, low: np.ndarray, high: np.ndarray, limit: int
) -> list[Datum]:
    limit = max(MIN_POINTS, limit // 2)
    kept = functools.reduce(np.union1d, (thin(x, part, limit) for part in (y, low, high)))
    return [_row(head, x[i], y[i]) | {"low": shortened(low[i]), "high": shortened(high[i])} for i in kept]


def _row(head: Datum, x: float, y: float, digits: int = DIGITS) -> Datum:
    return {**head, "x": shortened(x, 8), "y": shortened(y, digits)}


def shortened(value: float, digits: int = DIGITS) -> float | int | None:
    """A number to as many digits as can be seen in a chart, whole where it is; None for NaN and infinity."""
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded == int(rounded) and abs(rounded) < 2**53 else rounded


def _name(figures: RunFigures) -> str:
    name = short(str(figures.run.name), MAX_NAME_CHARS)
    return name if figures.seed is None else f"{name} (seed {figures.seed})"
