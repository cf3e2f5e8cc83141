"""The lines of the charts: mean and range over the runs of a group, thinned with their extremes kept."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ampcompare import metrics
from ampcompare.analysis.grouping.groups import Group
from ampcompare.analysis.numerics import scaled_run
from ampcompare.runs import RunRecord

# A chart is about 300 pixels wide. With these limits a page with nine charts has at most 200 kB of data.
LINE_POINTS = 200
CHART_POINTS = 1_000
MIN_POINTS = 24
DIGITS = 8  # of a number: what names the step of a long run, or a loss scale, exactly
MAX_SKIP_MARKS = 60
ROW = "row"  # an x axis for values without epoch and step: their number, in the order of logging
Track = tuple[np.ndarray, np.ndarray]  # x and y of one run, a value per row


@dataclass(frozen=True)
class ChartLine:
    """The line of one group in a chart.

    Attributes:
        n: Number of runs.
        x: Where the runs were logged.
        y: The mean of the runs at each x.
        low: The lowest run at each x.
        high: The highest run at each x.
        side: Distinguishes the two lines of a group in a chart that has two.
    """

    label: str
    n: int
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray
    high: np.ndarray
    side: str = ""

    def to_datum(self, points: int, *, with_range: bool) -> dict[str, Any]:
        """Return the line as one datum for Vega-Lite's `flatten`.

        Args:
            points: About how many points it may have.
            with_range: Whether to include lowest and highest run, also of the points that are left out.
        """
        indices = thin(self.y, points)
        runs = "one run" if self.n == 1 else f"mean of {self.n} runs"
        datum: dict[str, Any] = {"backend": self.label, "of": runs}
        datum |= {"x": _rounded(self.x[indices]), "y": _rounded(self.y[indices])}
        if with_range:
            datum["low"] = _rounded(np.fmin.reduceat(self.low, indices))
            datum["high"] = _rounded(np.fmax.reduceat(self.high, indices))
        return datum | ({"side": self.side} if self.side else {})


def make_lines(groups: Iterable[Group], x: str, y: str, factor: float = 1.0) -> list[ChartLine]:
    """Return `y` times `factor` against `x`, a line for each group with a run that logged both."""
    lines = []
    for group in groups:
        every = [track_of(run, x, y, factor) for run in group.records]
        tracks = [track for track in every if len(track[0])]
        if tracks:
            lines.append(_line(group.display_name, tracks))
    return lines


def common_axis(groups: Iterable[Group], y: str) -> str:
    """Return what all runs with `y` can be drawn against: the epoch, else the step, else ROW."""
    runs = [run for group in groups for run in group.records if len(run.values(y))]
    for x in (metrics.EPOCH, metrics.STEP):
        if runs and all(len(track_of(run, x, y)[0]) for run in runs):
            return x
    return ROW if runs else metrics.EPOCH


def make_time_lines(groups: Iterable[Group], y: str, factor: float = 1.0) -> list[ChartLine]:
    """Return a metric against wall-clock seconds: the mean time and value of each epoch, or step.

    Runs with a clock that goes backwards are left out.
    """
    lines = []
    groups = list(groups)
    axis = common_axis(groups, y)
    for group in groups:
        pairs = []
        for run in group.records:
            epochs, seconds = _merge_equal_x(track_of(run, axis, metrics.ELAPSED))
            values = track_of(run, axis, y, factor)
            if len(epochs) and len(values[0]) and (np.diff(seconds) >= 0).all():
                pairs.append((values, (epochs, seconds)))
        if pairs:
            line = _line(group.display_name, [values for values, _ in pairs])
            seconds = np.mean([np.interp(line.x, *times) for _, times in pairs], axis=0)
            lines.append(ChartLine(line.label, line.n, seconds, line.y, line.low, line.high))
    return lines


def points_per_line(lines: Sequence[ChartLine]) -> int:
    """Return how many points each line of a chart may have."""
    return max(MIN_POINTS, min(LINE_POINTS, CHART_POINTS // max(1, len(lines))))


def scale_lines(groups: Iterable[Group]) -> tuple[list[ChartLine], list[dict[str, Any]]]:
    """Return the loss scale of one run per group (`scaled_run`), and where that run skipped steps.

    One run, because a mean of loss scales is no loss scale. A skipped step is drawn at the scale after it.
    """
    lines = []
    crosses = []
    for group in groups:
        run = scaled_run(group)
        if run is None:
            continue
        steps, scale = track_of(run, metrics.STEP, metrics.SCALE)
        # The axis is logarithmic, and a record may have any number.
        usable = (scale > 2.0**-150) & (scale < 2.0**150)
        steps = steps[usable]
        scale = scale[usable]
        if not len(steps):
            continue
        lines.append(ChartLine(group.display_name, 1, steps, scale, scale, scale))
        skip_steps, totals = track_of(run, metrics.STEP, metrics.SKIPPED)
        new = np.diff(totals, prepend=0.0)
        skips = np.flatnonzero(new > 0)
        marked = skips[np.linspace(0, len(skips) - 1, min(len(skips), MAX_SKIP_MARKS)).astype(int)]
        if len(marked):
            x = skip_steps[marked]
            index_before = np.searchsorted(steps, x, side="right") - 1
            y = scale[np.maximum(0, index_before)]
            columns = {"x": x, "y": y, "new": new[marked], "total": totals[marked]}
            rows = {name: values.tolist() for name, values in columns.items()}
            crosses.append({"backend": group.display_name, **rows})
    return lines, crosses


def track_of(run: RunRecord, x: str, y: str, factor: float = 1.0) -> Track:
    """Return x and y of the rows in which y was logged; y is NaN where it is not finite.

    With ROW as x, x is the number of the value, from 1.
    """
    rows, ys = run.logged_numbers(y)
    xs = np.arange(1.0, len(rows) + 1) if x == ROW else run.numbers(x)[rows]
    known = np.isfinite(xs)
    return xs[known], np.where(np.isfinite(ys), ys, np.nan)[known] * factor


def thin(y: np.ndarray, limit: int) -> np.ndarray:
    """Return the indices of about `limit` points: ends, gaps, lowest and highest point of each stretch."""
    if len(y) <= limit:
        return np.arange(len(y))
    indices = [0, len(y) - 1]
    for stretch in np.array_split(np.arange(len(y)), limit // 2):
        values = y[stretch]
        missing = np.isnan(values)
        if missing.any():
            indices.append(stretch[missing.argmax()])
        if not missing.all():
            indices += [stretch[np.nanargmin(values)], stretch[np.nanargmax(values)]]
    return np.unique(indices)


def round_for_chart(value: float) -> float | int | None:
    """Return a number with as many digits as a chart can show; None for NaN and infinity."""
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{DIGITS}g}")
    is_whole = rounded == int(rounded) and abs(rounded) < 2**53
    return int(rounded) if is_whole else rounded


def _line(label: str, tracks: Sequence[Track]) -> ChartLine:
    """Return mean, lowest and highest run at each x of the first run, as far as all runs go.

    Runs that were logged at other steps are interpolated.
    """
    unique = [_merge_equal_x(track) for track in tracks]
    x = unique[0][0]
    x = x[(x >= max(xs[0] for xs, _ in unique)) & (x <= min(xs[-1] for xs, _ in unique))]
    ys = np.array([np.interp(x, *track) for track in unique])  # exact where the run was logged
    return ChartLine(label, len(unique), x, ys.mean(axis=0), ys.min(axis=0), ys.max(axis=0))


def _merge_equal_x(track: Track) -> Track:
    """Return each x once, in ascending order, with the mean of its ys."""
    unique, where, counts = np.unique(track[0], return_inverse=True, return_counts=True)
    return unique, np.bincount(where, weights=track[1], minlength=len(unique)) / counts


def _rounded(values: np.ndarray) -> list[float | int | None]:
    return [round_for_chart(value) for value in values.tolist()]
