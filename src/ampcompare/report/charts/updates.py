"""Updates of half weights that rounding swallows: by step, and by layer."""

from __future__ import annotations

import altair as alt

from ampcompare import metrics
from ampcompare.report.analysis.analysis import Analysis
from ampcompare.report.charts.curves import line_chart
from ampcompare.report.charts.parts import Spec, quantity, steps
from ampcompare.report.charts.series import Datum, curves

LOST = metrics.LOST_UPDATES
TITLE = "weights whose update is lost, %"
MEANING = "lost: weight plus update rounds back to the weight, which stays as it was"
# What the figure of a backend that does not round to nearest is.
STOCHASTIC = "bf16_sr"
INSTEAD = f"{STOCHASTIC}: of one step; stochastic rounding loses none in the mean of many"


def lost_updates(analysis: Analysis) -> Spec:
    """Share of half weights whose update is lost to rounding, by optimizer step."""
    rows = curves(analysis.groups, metrics.STEP, LOST, y_factor=100)
    y = quantity(alt.Y, TITLE, domainMin=0, domainMax=100)
    title = "Updates lost to rounding"
    note = _note(analysis, rows)
    return line_chart(analysis, title, rows, steps("optimizer step"), y, ".4~g", note=note)


def _note(analysis: Analysis, rows: list[Datum]) -> str:
    drawn = {row["backend"] for row in rows}
    runs = (f.run for g in analysis.groups if g.label in drawn for f in g.runs)
    return f"{MEANING}; {INSTEAD}" if any(r.option("backend") == STOCHASTIC for r in runs) else MEANING
