"""The page as a reader gets it: in Chromium, with every request refused."""

from __future__ import annotations

import pytest

from ampcompare.records import load_runs
from ampcompare.report import analyse_runs, write_page
from ampcompare.report.palette import KNOWN
from report.fakes import make

pytestmark = pytest.mark.browser

COLOURS = {style.label: style.colour for style in KNOWN}
CHARTS = ("eval-accuracy", "throughput-bars", "train-loss", "train-accuracy", "scale-factor", "throughput")
# Colours of what is drawn inside a chart, legends and axes aside.
MARKS = """(figure) => [...figure.querySelectorAll('.mark-line path, .mark-rect path, .mark-symbol.role-mark path')]
  .filter(mark => mark.getBBox().width + mark.getBBox().height > 0)
  .flatMap(mark => [mark.getAttribute('stroke'), mark.getAttribute('fill')])"""


class Reader:
    """One open page, and all it said and asked for."""

    def __init__(self, browser, path, **options) -> None:
        self.context = browser.new_context(offline=True, **options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(10_000)
        self.said: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: (self.said.append("dialog"), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_function("document.documentElement.dataset.charts === 'drawn'", timeout=20_000)

    def figure(self, name: str):
        return self.page.locator(f"#chart-{name}")


@pytest.fixture(scope="module")
def page_path(three_runs, tmp_path_factory):
    return write_page(analyse_runs(load_runs([three_runs])), tmp_path_factory.mktemp("page"))


@pytest.fixture
def reader(browser, page_path):
    reader = Reader(browser, page_path, viewport={"width": 1280, "height": 900})
    yield reader
    reader.context.close()


def test_page_draws_without_a_word_on_the_console_and_without_a_request(reader, page_path):
    assert reader.said == []
    assert reader.requests == [page_path.as_uri()]


@pytest.mark.parametrize("name", CHARTS)
def test_chart_has_marks_of_three_backends(reader, name):
    colours = reader.figure(name).evaluate(MARKS)
    assert {COLOURS["none"], COLOURS["native"], COLOURS["apex_o1"]} <= set(colours)


def test_hostile_names_are_shown_as_text(reader):
    page = reader.page
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert "</script><script>alert(1)</script>" in page.locator("#runs").inner_text()
    assert "<img src=x onerror=alert(1)>" in page.locator("#runs").inner_text()


def test_hovering_over_a_mark_shows_its_values(reader):
    bar = reader.figure("throughput-bars").locator(".mark-rect path").nth(1)
    bar.scroll_into_view_if_needed()
    bar.hover()
    tip = reader.page.locator("#vg-tooltip-element.visible")
    tip.wait_for(timeout=5_000)
    assert "native" in tip.inner_text()
    assert "76" in tip.inner_text()


def test_clicking_a_legend_name_dims_the_other_backends(reader):
    figure = reader.figure("train-loss")
    figure.locator(".role-legend-label text", has_text="native").click()
    reader.page.wait_for_timeout(200)
    dimmed = figure.evaluate(
        "f => Object.fromEntries([...f.querySelectorAll('.mark-line path')].map("
        "p => [p.getAttribute('stroke'), p.getAttribute('opacity')]))"
    )
    assert dimmed[COLOURS["native"]] in (None, "1")
    assert float(dimmed[COLOURS["none"]]) < 0.2


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_fits_its_width_in_both_colour_schemes(browser, page_path, width, scheme):
    reader = Reader(browser, page_path, viewport={"width": width, "height": 800}, color_scheme=scheme)
    assert reader.page.evaluate("document.documentElement.scrollWidth") <= width
    text = reader.figure("train-loss").locator(".role-title-text text").first.get_attribute("fill")
    assert text == ("#e6e8ec" if scheme == "dark" else "#1c2330")
    for name in CHARTS:
        inside = reader.figure(name).evaluate("f => f.querySelector('svg.marks').getBoundingClientRect().width")
        assert 0.7 * min(width, 520) < inside < width
    assert reader.said == []
    reader.context.close()


def test_runs_with_gaps_and_odd_names_draw_without_a_word(browser, tmp_path):
    def spoil(plan):
        plan["rows"][3]["train/loss"] = "NaN"
        plan["rows"] = [{k: v for k, v in row.items() if k != "amp/scale_factor"} for row in plan["rows"]]

    def empty(plan):
        plan["rows"], plan["summary"] = [], {}

    runs = [make("none", seed, edit=spoil) for seed in (1, 2)]
    runs += [make("native", config={"backend": "'\"</script>{{signal}}"}), make("apex_o1", edit=empty, state="crashed")]
    reader = Reader(browser, write_page(analyse_runs(runs), tmp_path))
    assert reader.said == []
    reader.context.close()
