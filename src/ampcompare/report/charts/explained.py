"""A step by module under two backends, before and after: what its activations take, and its time."""

from __future__ import annotations

import altair as alt

from ampcompare.report.analysis.explained import Explained
from ampcompare.report.charts.parts import Parts, Spec, finish, quantity, tip
from ampcompare.report.charts.series import Datum
from ampcompare.report.palette import styles
from ampcompare.report.runs.settings import Setting

LEAST = 0.002  # of the longest bar: what is shorter is not drawn
ROW = 34  # pixels of a module's two bars


def explained_charts(explained: Explained | None) -> dict[str, Spec]:
    """The charts by name; nothing where nothing was explained."""
    if explained is None:
        return {}
    return {
        "explained-memory": _bars(
            explained, 0, "Activations by module, before and after", "activations, MiB"
        ),
        "explained-time": _bars(explained, 1, "Time by module, before and after", "forecast, ms a step"),
    }


def _bars(explained: Explained, which: int, title: str, axis: str) -> Spec:
    values = {name: pair[which] for name, pair in explained.groups.items()}
    longest = max((value for pair in values.values() for value in pair), default=0.0)
    drawn = {name: pair for name, pair in values.items() if max(pair) > LEAST * longest}
    rows: list[Datum] = [
        {"backend": backend, "kind": "bar", "run": name, "x": value}
        for name, pair in drawn.items()
        for backend, value in zip(explained.names, pair, strict=True)
    ]
    x = quantity(alt.X, axis, zero=True)
    y = alt.Y(field="run", type="nominal", sort=list(drawn), title=None)
    looks = styles((name, name) for name in explained.names)
    parts = Parts(rows, looks, x, y, legend="symbols")
    side = alt.YOffset(field="backend", type="nominal", sort=list(explained.names))
    bars = parts.of("bar").mark_bar()
    tips = [tip("run", "module"), tip("backend"), tip("x", axis, ",.4~r")]
    layer = bars.encode(
        x=x, y=y, yOffset=side, color=parts.colour(), opacity=parts.dimmed(1.0), tooltip=tips
    ).add_params(parts.pick)
    setting = Setting(
        explained.model, explained.data, False, explained.inputs, "", (explained.device,), is_cpu=False
    )
    return finish([layer], setting, title, rows, height=max(140, ROW * len(drawn)))
