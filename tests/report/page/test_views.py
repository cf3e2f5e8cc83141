"""What the reader may compare with on the page: every view made beforehand, each as an own report has it."""

from __future__ import annotations

import json
import re
from html import unescape

import pytest
from support.a_sweep import a_sweep

from ampcompare.report import analyse_runs
from ampcompare.report.page.render import render_page
from ampcompare.report.page.views import AS_PLANNED


class Parts:
    """The pieces of a page, the text of its parts, and the data of its views."""

    def __init__(self, html: str) -> None:
        data = re.search(r'<script type="application/json" id="views">(.*?)</script>', html, re.S)
        self.data = json.loads(data[1])
        self.pieces = re.findall(r'<template class="piece">(.*?)</template>', html, re.S)
        self.html = html

    def text(self, view, name: str) -> str:
        """The words of a part in a view; those of the planned view are in the page."""
        number = view["parts"][self.data["names"].index(name)]
        if number == AS_PLANNED:
            found = re.search(rf'<(\w+) [^>]*data-part="{name}">(.*?)</\1>', self.html, re.S)[2]
        else:
            found = self.pieces[number]
        return " ".join(unescape(re.sub(r"<[^>]+>", " ", found)).split())


def plain(text: str) -> str:
    return " ".join(text.replace("\N{NO-BREAK SPACE}", " ").split())


@pytest.fixture(scope="module")
def runs():
    return a_sweep(epochs=5, control=True)


@pytest.fixture(scope="module")
def page(runs):
    return Parts(render_page(analyse_runs(runs)).decode())


@pytest.mark.parametrize(("baseline", "margin"), [("native", 0.1), ("apex_o2", 2.0), ("none", 1.0)])
def test_a_view_says_what_a_report_with_that_baseline_and_margin_says(page, runs, baseline, margin):
    alone = analyse_runs(runs, baseline=baseline, margin=margin)
    view = next(v for v in page.data["views"] if (v["baseline"], v["margin"]) == (baseline, str(margin)))
    assert plain(page.text(view, "headline")) == plain(alone.verdict.headline)
    for number, (label, line) in enumerate(alone.verdict.lines):
        assert plain(page.text(view, f"line-{number}")) == plain(f"{label} {line}")
    text = plain(page.text(view, "cautions"))
    assert all(plain(caution) in text for caution in alone.verdict.cautions)
    own = Parts(render_page(alone).decode())
    planned = own.data["views"][0]["parts"]
    of_own = {"parts": [AS_PLANNED for _ in planned]}
    for number in range(len(alone.groups)):
        assert page.text(view, f"row-{number}") == own.text(of_own, f"row-{number}")


def test_the_planned_view_is_what_the_page_shows_without_a_script(page):
    planned = [v for v in page.data["views"] if all(n == AS_PLANNED for n in v["parts"])]
    assert [(v["baseline"], v["margin"]) for v in planned] == [("none", "0.5")]
    assert all(n == AS_PLANNED for n in planned[0]["charts"].values())
    assert "as planned" in page.text(planned[0], "told")
