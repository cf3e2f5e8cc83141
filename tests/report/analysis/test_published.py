"""One's own runs beside the published figures."""

from __future__ import annotations

import pytest
from support.fakes import make

from ampcompare.errors import UserError
from ampcompare.report import analyse_runs
from ampcompare.report.analysis.published import references
from ampcompare.report.charts.published import published_charts
from ampcompare.report.outputs import write_report


def beside(name):
    runs = [make(b, seed) for b in ("none", "native", "apex_o1") for seed in (1, 2, 3)]
    return analyse_runs(runs, reproduce=name)


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
def test_published_figures_are_ratios_to_their_own_baseline(name, figure, label, published):
    row = next(r for r in beside(name).published.rows if (r.relation.figure, r.label) == (figure, label))
    assert row.published == pytest.approx(published)


def test_own_ratio_stands_beside_with_its_interval_and_is_absent_where_not_run():
    rows = {r.label: r.ours for r in beside("ignite").published.rows if r.relation.figure == "speed-up"}
    assert rows["native"].value == pytest.approx(1.9)
    assert rows["native"].has_interval
    assert rows["apex_o2"] is None


def test_comparison_that_was_published_as_curves_gives_curves_and_says_so():
    analysis = beside("tootouch")
    assert analysis.published.rows == ()
    assert "not published as numbers" in analysis.published.note
    assert list(published_charts(analysis)) == ["published-eval-loss"]


def test_differences_from_the_published_setting_are_named():
    assert "batch_size (128, published 256)" in beside("ignite").published.deviations
    text = " ".join(beside("tootouch").published.deviations)
    assert "epochs (5, published 100)" in text
    assert "batch_size" not in text


def test_unknown_name_is_one_line():
    with pytest.raises(UserError, match="expected one of tootouch, recipe, ignite"):
        beside("nobody")


@pytest.mark.rest
@pytest.mark.parametrize("name", ["tootouch", "recipe", "ignite"])
def test_page_holds_the_published_charts(tmp_path, name):
    write_report(beside(name), tmp_path, ("html",))
    html = (tmp_path / "index.html").read_text()
    assert "Beside the published figures" in html
    assert 'id="chart-published-' in html


def test_pictures_of_the_published_charts_are_written(tmp_path):
    write_report(beside("recipe"), tmp_path, ("svg",))
    found = {path.stem for path in (tmp_path / "charts").glob("published-*.svg")}
    assert found == {"published-speed", "published-memory"}
