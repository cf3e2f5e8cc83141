"""The lines of the charts: mean and range over the runs of each group, thinned for drawing, extremes kept."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ampcompare import metrics
from ampcompare.analysis.grouping.groups import Group
from ampcompare.analysis.numerics import scaled_run
from ampcompare.runs import RunRecord

# A chart is some 300 pixels wide and has room for two points in three; a page of nine weighs 200 kB at most.
LINE_POINTS, CHART_POINTS, FEWEST = 200, 1_000, 24
DIGITS = 5
MAX_SKIP_MARKS = 60
Track = tuple[np.ndarray, np.ndarray]  # x and y, one value a row each


@dataclass(frozen=True)
class Line:
    """What stands for a group in a chart: x, the mean of its `n` runs there, the lowest and the highest."""

    label: str
    n: int
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray
    high: np.ndarray
    side: str = ""  # of two lines of one group, which this is

    def drawn(self, points: int, *, with_range: bool) -> dict[str, Any]:
        """The line as one datum for Vega-Lite's `flatten`, of at most about so many points."""
        kept = thin(self.y, points)
        runs = "one run" if self.n == 1 else f"mean of {self.n} runs"
        found: dict[str, Any] = {"backend": self.label, "of": runs}
        found |= {"x": _rounded(self.x[kept], 8), "y": _rounded(self.y[kept])}
        if with_range:  # of what is left out between two points, too
            found["low"] = _rounded(np.fmin.reduceat(self.low, kept))
            found["high"] = _rounded(np.fmax.reduceat(self.high, kept))
        return found | ({"side": self.side} if self.side else {})


def lines(groups: Iterable[Group], x: str, y: str, factor: float = 1.0) -> list[Line]:
    """`y` times `factor` against `x`, a line for each group in which both were logged."""
    found = []
    for group in groups:
        tracks = [track for run in group.records if len((track := track_of(run, x, y, factor))[0])]
        if tracks:
            found.append(_line(group.label, tracks))
    return found


def time_lines(groups: Iterable[Group], y: str, factor: float = 1.0) -> list[Line]:
    """A metric against wall-clock seconds: the mean time and value of each epoch.

    Runs whose clock goes backwards are left out.
    """
    found = []
    for group in groups:
        pairs = []
        for run in group.records:
            epochs, seconds = _once(track_of(run, metrics.EPOCH, metrics.ELAPSED))
            values = track_of(run, metrics.EPOCH, y, factor)
            if len(epochs) and len(values[0]) and (np.diff(seconds) >= 0).all():
                pairs.append((values, (epochs, seconds)))
        if pairs:
            line = _line(group.label, [values for values, _ in pairs])
            seconds = np.mean([np.interp(line.x, *times) for _, times in pairs], axis=0)
            found.append(Line(line.label, line.n, seconds, line.y, line.low, line.high))
    return found


def points_of(found: Sequence[Line]) -> int:
    """How many points each of the lines of one chart may have."""
    return max(FEWEST, min(LINE_POINTS, CHART_POINTS // max(1, len(found))))


def scale_lines(groups: Iterable[Group]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the loss scale of one run per group (`scaled_run`), and where that run skipped steps.

    One run, because a mean of loss scales is no loss scale. A skipped step lies on the scale that it led to.
    """
    scales, crosses = [], []
    for group in groups:
        run = scaled_run(group)
        if run is None:
            continue
        x, y = track_of(run, metrics.STEP, metrics.SCALE)
        usable = (y > 2.0**-150) & (y < 2.0**150)  # the axis is logarithmic, a record may hold any number
        x, y = x[usable], y[usable]
        corners = np.union1d(np.flatnonzero(np.diff(y)) + 1, [0, len(y) - 1])
        corners = _some(corners, LINE_POINTS)
        scales.append({"backend": group.label, "x": x[corners].tolist(), "y": y[corners].tolist()})
        at, totals = track_of(run, metrics.STEP, metrics.SKIPPED)
        rose = np.diff(totals, prepend=0.0)
        marked = _some(np.flatnonzero(rose > 0), MAX_SKIP_MARKS)
        if len(marked):
            ys = y[np.maximum(0, np.searchsorted(x, at[marked], side="right") - 1)]
            columns = {"x": at[marked], "y": ys, "new": rose[marked], "total": totals[marked]}
            crosses.append({"backend": group.label} | {name: one.tolist() for name, one in columns.items()})
    return scales, crosses


def track_of(run: RunRecord, x: str, y: str, factor: float = 1.0) -> Track:
    """x and y of the rows in which y was logged; y is NaN where no finite number was."""
    rows, ys = run.logged_numbers(y)
    xs = run.numbers(x)[rows]
    known = np.isfinite(xs)
    return xs[known], np.where(np.isfinite(ys), ys, np.nan)[known] * factor


def thin(y: np.ndarray, limit: int) -> np.ndarray:
    """Indices of about `limit` points: ends, lowest and highest of each stretch, and where gaps are."""
    if len(y) <= limit:
        return np.arange(len(y))
    kept = [0, len(y) - 1]
    for stretch in np.array_split(np.arange(len(y)), limit // 2):
        values = y[stretch]
        if (missing := np.isnan(values)).any():
            kept.append(stretch[missing.argmax()])
        if not missing.all():
            kept += [stretch[np.nanargmin(values)], stretch[np.nanargmax(values)]]
    return np.unique(kept)


def shortened(value: float, digits: int = DIGITS) -> float | int | None:
    """A number to as many digits as can be seen in a chart, whole where it is; None for NaN and infinity."""
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded == int(rounded) and abs(rounded) < 2**53 else rounded


def _line(label: str, tracks: Sequence[Track]) -> Line:
    """Mean, lowest and highest run at each x of the first, as far as all runs go; those that were logged at
    other steps are interpolated.
    """
    each = [_once(track) for track in tracks]
    x = each[0][0]
    x = x[(x >= max(xs[0] for xs, _ in each)) & (x <= min(xs[-1] for xs, _ in each))]
    ys = np.array([np.interp(x, *track) for track in each])  # exact where it was logged
    return Line(label, len(each), x, ys.mean(axis=0), ys.min(axis=0), ys.max(axis=0))


def _once(track: Track) -> Track:
    """Each x once, in rising order, with the mean of its ys."""
    unique, where, counts = np.unique(track[0], return_inverse=True, return_counts=True)
    return unique, np.bincount(where, weights=track[1], minlength=len(unique)) / counts


def _rounded(values: np.ndarray, digits: int = DIGITS) -> list[float | int | None]:
    return [shortened(value, digits) for value in values.tolist()]


def _some(numbers: np.ndarray, most: int) -> np.ndarray:
    return numbers[np.linspace(0, len(numbers) - 1, min(len(numbers), most)).astype(int)]
