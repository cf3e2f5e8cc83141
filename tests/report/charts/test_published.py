"""One's own runs beside the published figures."""

from __future__ import annotations

import pytest
from support.fakes import make

from ampcompare.errors import UserError
from ampcompare.report import analyse_runs
from ampcompare.report.charts.published import references, reproduce
from ampcompare.report.outputs import write_report


@pytest.fixture(scope="module")
def analysis():
    return analyse_runs([make(b, seed) for b in ("none", "native", "apex_o1") for seed in (1, 2, 3)])


def test_every_reference_names_its_source():
    entries = references()
    assert len(entries) == 7
    assert all(entry["source"] for entry in entries)


@pytest.mark.parametrize(
    ("name", "figure", "label", "published"),
    [
        ("recipe", "speed-up", "native", 8.063 / 3.298),
        ("recipe", "peak memory", "native", 1803759616 / 1367458816),
        ("ignite", "speed-up", "native", 17.84 / 10.99),
        ("ignite", "speed-up", "apex_o1", 17.84 / 11.19),
        ("ignite", "speed-up", "apex_o2", 17.84 / 10.30),
        ("ignite", "accuracy", "apex_o2", 1.0),
    ],
)
def test_published_figures_are_ratios_to_their_own_baseline(analysis, name, figure, label, published):
    row = next(r for r in reproduce(analysis, name).rows if (r.figure, r.label) == (figure, label))
    assert row.published == pytest.approx(published)


def test_own_ratio_stands_beside_with_its_interval_and_is_absent_where_not_run(analysis):
    rows = {r.label: r.ours for r in reproduce(analysis, "ignite").rows if r.figure == "speed-up"}
    assert rows["native"].value == pytest.approx(1.9)
    assert rows["native"].has_interval
    assert rows["apex_o2"] is None


def test_comparison_that_was_published_as_curves_gives_curves_and_says_so(analysis):
    found = reproduce(analysis, "tootouch")
    assert found.rows == ()
    assert "not published as numbers" in found.note
    assert list(found.charts) == ["published-eval-loss"]


def test_differences_from_the_published_setting_are_named(analysis):
    assert "batch_size (128, published 256)" in reproduce(analysis, "ignite").deviations
    text = " ".join(reproduce(analysis, "tootouch").deviations)
    assert "epochs (5, published 100)" in text
    assert "batch_size" not in text


def test_unknown_name_is_one_line(analysis):
    with pytest.raises(UserError, match="expected one of tootouch, recipe, ignite"):
        reproduce(analysis, "nobody")


@pytest.mark.rest
@pytest.mark.parametrize("name", ["tootouch", "recipe", "ignite"])
def test_page_holds_the_published_charts(analysis, tmp_path, name):
    write_report(analysis, tmp_path, ("html",), reproduce=name)
    html = (tmp_path / "index.html").read_text()
    assert "Beside the published figures" in html
    assert 'id="chart-published-' in html


def test_pictures_of_the_published_charts_are_written(analysis, tmp_path):
    write_report(analysis, tmp_path, ("svg",), reproduce="recipe")
    found = {path.stem for path in (tmp_path / "charts").glob("published-*.svg")}
    assert found == {"published-speed", "published-memory"}
