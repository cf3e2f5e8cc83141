"""Another kind of interval than Student's t is one change, and every output says so in its own words."""

from __future__ import annotations

import csv
import html
import io
import json
from dataclasses import replace

import pytest
from support.fakes import make

from ampcompare.report import analyse_runs
from ampcompare.report.charts.catalogue import all_charts
from ampcompare.report.exports import to_csv, to_json, to_markdown
from ampcompare.report.page.render import render_page
from ampcompare.report.statistics import samples as statistics

METHOD = "seeds drawn again and again, bootstrap interval"


@pytest.fixture
def analysis(monkeypatch):
    interval = statistics._interval

    def bootstrap(*arguments, **more):
        return replace(interval(*arguments, **more), method=METHOD, kind="bootstrap", error=None, df=None)

    monkeypatch.setattr(statistics, "_interval", bootstrap)
    return analyse_runs([make(b, seed) for b in ("none", "native") for seed in (1, 2, 3)])


def test_page_and_charts_name_the_kind_of_interval(analysis):
    page = html.unescape(render_page(analysis, charts={}).decode())
    assert "n = 3, paired bootstrap" in page
    assert "Intervals</b>: bootstrap over runs (quality: over seeds), at the level" in page
    assert not any(old in page for old in ("paired t", "Student's t", "Welch"))
    notes = [" ".join(spec["title"]["subtitle"]) for spec in all_charts(analysis).values()]
    assert any("95 % bootstrap interval" in note for note in notes)
    assert not any("% t interval" in note for note in notes)


def test_tables_name_the_method_of_the_interval(analysis):
    rows = list(csv.DictReader(io.StringIO(to_csv(analysis))))
    assert rows[1]["method"] == METHOD
    assert json.loads(to_json(analysis))["groups"][1]["compared"]["speedup"]["method"] == METHOD
    text = to_markdown(analysis)
    assert (
        f"In brackets: 95 % bootstrap intervals over runs (quality: over seeds); comparisons {METHOD}."
        in text
    )


def test_whether_it_is_paired_is_told_by_the_estimate_and_not_by_its_words(analysis):
    assert "paired by seed)" in dict(analysis.verdict.lines)["native"]
    assert "without pairing" not in " ".join(analysis.verdict.cautions)
