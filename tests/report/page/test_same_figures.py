"""The page computes nothing: what it prints is on the analysis, and so in every other output too."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest
from rich.console import Console
from support.fakes import make
from support.papers import peaks, throughput, written

from ampcompare.report import analyse_runs, words
from ampcompare.report.exports import to_csv, to_json, to_markdown
from ampcompare.report.page import render
from ampcompare.report.terminal import print_table

NUMBER = re.compile(r"[+−±-]?\d+(?:,\d{3})*(?:\.\d+)?(?:e-\d+)?")


FORMS = [words.number, words.count, words.mib, words.percent, words.ratio, words.of_time]
FORMS += [words.change, words.signed, words.duration]


class Cells(HTMLParser):
    """The text inside the cards and the bodies of the tables of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.inside, self.text = 0, ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.inside += tag == "tbody" or (tag == "article" and "card" in dict(attrs).get("class", ""))
        self.text += " "

    def handle_endtag(self, tag):
        self.inside -= tag in ("tbody", "article") and self.inside > 0
        self.text += " "

    def handle_data(self, data):
        if self.inside:
            self.text += data


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from leaves(inner)
    elif value is not None and not isinstance(value, bool):
        yield value


def forms(value: Any) -> Iterator[str]:
    """Every way in which the page may print a value."""
    if isinstance(value, str):
        yield value
        return
    yield f"{value:g}"
    yield words.number(value, 2)
    if 0 < value < 1:
        yield words.level(value)
    yield from (form(value) for form in FORMS)


def numbers(texts) -> set[str]:
    return {number for text in texts for number in NUMBER.findall(text)}


def odd_runs():
    """Three seeds of two backends, one of them run twice, and a run that was cut off."""

    def uneven(plan):
        factor = 1 + len(plan["config"]["backend"]) / 100 + plan["config"]["seed"] ** 2 / 10
        plan["summary"]["throughput/step_time_ms_p50"] *= factor
        plan["summary"]["throughput/step_time_ms_p95"] *= factor
        plan["summary"]["time/train_seconds"] = 1000 * factor

    def slower(plan):
        uneven(plan)
        plan["summary"]["throughput/step_time_ms_p50"] *= 1.3
        plan["summary"]["throughput/step_time_ms_p95"] *= 1.3
        plan["summary"]["throughput/images_per_second_median"] = 31.234
        plan["rows"][3]["train/loss"] = "NaN"

    runs = [make(b, seed, edit=uneven) for b in ("none", "native") for seed in (1, 2, 3)]
    again = make("none", 1, edit=slower, id="again")
    return [*runs, again, make("apex_o1", state="crashed", problems=("Torn at byte 33.",))]


@pytest.mark.slow
def test_each_figure_on_the_page_is_in_the_json_export(tmp_path):
    paper = written(tmp_path, {"speed": throughput(1.2), "memory": peaks()})
    analysis = analyse_runs(odd_runs(), reproduce=paper)
    printed = numbers([Cells(render.render_page(analysis).decode()).text])
    content = json.loads(to_json(analysis))
    assert len(printed) > 60
    assert printed - numbers(form for leaf in leaves(content) for form in forms(leaf)) == set()


@pytest.mark.slow
def test_every_output_takes_each_process_for_a_measurement_of_speed():
    analysis = analyse_runs(odd_runs())
    figures = json.loads(to_json(analysis))["groups"][0]["figures"]
    mean = figures["images_per_second"]["value"]
    assert mean == pytest.approx((40 + 31.234 + 40.4 + 39.6) / 4)  # a seed that ran twice is two: not 38.5
    assert (figures["images_per_second"]["n"], figures["quality"]["n"]) == (4, 3)
    screen = io.StringIO()
    print_table(analysis, Console(file=screen, width=200))
    said = dict(analysis.verdict.lines)["none"]
    page = Cells(render.render_page(analysis).decode()).text
    for text in (screen.getvalue(), to_markdown(analysis), to_csv(analysis), page, said):
        assert "37.8" in text
        assert "38.5" not in text
