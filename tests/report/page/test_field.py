"""The points of a sweep on the page: a row for each value compared, a mark for each seed."""

from __future__ import annotations

from support.fakes import make

from ampcompare.report import analyse_runs
from ampcompare.report.page.field import LEFT_OUT, SAME, field_of
from ampcompare.report.page.render import render_page
from ampcompare.report.runs.grid import Grid, GridPoint
from ampcompare.report.runs.holes import Attempt, State, holes_of

KEYS = ("backend", "dtype", "seed")


def point(backend, dtype, seed, *others):
    values = dict(zip(KEYS, (backend, dtype, seed), strict=True))
    return GridPoint(0, values, others=tuple({**values, "dtype": other} for other in others))


def grid(*points):
    return Grid("s", KEYS, points, len(points))


POINTS = grid(
    *(point("none", "fp16", seed, "bf16") for seed in (1, 2)),
    *(point("native", dtype, seed) for dtype in ("fp16", "bf16") for seed in (1, 2)),
    *(point("apex_o2", "fp16", seed) for seed in (1, 2)),
)


def done(state=State.FINISHED, **config):
    return Attempt("r", state, config=config)


def test_each_point_has_its_mark_at_its_row_and_column():
    tried = [
        done(backend="native", dtype="bf16", seed=2),
        done(State.FAILED, backend="none", dtype="bf16", seed=1),
    ]
    field = field_of(holes_of(POINTS, tried), ("backend",))
    assert field.columns == ("bf16", "fp16")
    rows = {
        name: [[mark.state for mark in cell.marks] or cell.says for cell in cells]
        for name, cells in field.rows
    }
    assert rows == {
        "none": [SAME, ["failed", "missing"]],
        "native": [["missing", "finished"], ["missing", "missing"]],
        "apex_o2": [LEFT_OUT, ["missing", "missing"]],
    }
    assert {mark.state: count for mark, count in field.counts} == {"finished": 1, "failed": 1, "missing": 6}


def test_the_page_shows_the_field_and_hostile_values_are_text():
    runs = [make("none", 1), make("native", 1)]
    hostile = "<img src=x onerror=alert(1)>"
    points = (
        GridPoint(0, {"backend": "none"}),
        GridPoint(1, {"backend": "native"}),
        GridPoint(2, {"backend": hostile}),
    )
    analysis = analyse_runs(runs, points=lambda _: Grid(hostile, ("backend",), points, 3))
    assert analysis.holes.counts == {State.FINISHED: 2, State.MISSING: 1}
    page = render_page(analysis).decode()
    assert 'id="holes"' in page
    assert hostile not in page
    assert "2 of the 3 points" in page
