"""The page as a reader gets it: in Chromium, with every request refused."""

from __future__ import annotations

import pytest
from support.fakes import make
from support.reader import Reader, write_page

from ampcompare.records import load_runs
from ampcompare.report import analyse_runs
from ampcompare.report.palette import KNOWN

pytestmark = [pytest.mark.browser, pytest.mark.slow]

COLOURS = {style.label: style.colour for style in KNOWN}
CHARTS = """eval-accuracy eval-accuracy-time throughput-bars time-to-accuracy peak-memory
train-loss scale-factor throughput step-time""".split()
# Colours of what is drawn inside a chart, legends and axes aside.
MARKS = """(figure) => [
    ...figure.querySelectorAll('.mark-line path, .mark-rect path, .mark-symbol.role-mark path')]
  .filter(mark => mark.getBBox().width + mark.getBBox().height > 0)
  .flatMap(mark => [mark.getAttribute('stroke'), mark.getAttribute('fill')])"""


@pytest.fixture(scope="module")
def page_path(three_runs, tmp_path_factory):
    analysis = analyse_runs(load_runs([three_runs]), target=0.5)
    return write_page(analysis, tmp_path_factory.mktemp("page"))


@pytest.fixture
def reader(browser, page_path):
    reader = Reader(browser, page_path, viewport={"width": 1280, "height": 900})
    yield reader
    reader.context.close()


def test_page_draws_without_a_word_on_the_console_and_without_a_request(reader, page_path):
    assert reader.said == []
    assert reader.requests == [page_path.as_uri()]


def test_every_chart_has_marks_of_three_backends(reader):
    for name in CHARTS:
        colours = reader.figure(name).evaluate(MARKS)
        assert {COLOURS["none"], COLOURS["native"], COLOURS["apex_o1"]} <= set(colours), name


def test_hovering_over_a_mark_shows_its_values(reader):
    bar = reader.figure("throughput-bars").locator(".mark-rect path").nth(1)
    bar.scroll_into_view_if_needed()
    bar.hover()
    tip = reader.page.locator("#vg-tooltip-element.visible")
    tip.wait_for()
    assert "native" in tip.inner_text()
    assert "76" in tip.inner_text()


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_fits_its_width_in_both_colour_schemes(browser, page_path, width, scheme):
    reader = Reader(browser, page_path, viewport={"width": width, "height": 800}, color_scheme=scheme)
    assert reader.page.evaluate("document.documentElement.scrollWidth") <= width
    text = reader.figure("train-loss").locator(".role-title-text text").first.get_attribute("fill")
    assert text == ("#e6e8ec" if scheme == "dark" else "#1c2330")
    for name in CHARTS:
        inside = reader.figure(name).evaluate(
            "f => f.querySelector('svg.marks').getBoundingClientRect().width"
        )
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
    runs += [
        make("native", config={"backend": "'\"</script>{{signal}}"}),
        make("apex_o1", edit=empty, state="crashed"),
    ]
    reader = Reader(browser, write_page(analyse_runs(runs), tmp_path))
    assert reader.said == []
    reader.context.close()


def dimmed(reader, name: str) -> set[str]:
    """Colours of the marks of a chart that are next to invisible."""
    found = reader.figure(name).evaluate(
        """f => [...f.querySelectorAll('.mark-line path, .mark-rect path, .mark-symbol.role-mark path')]
          .filter(p => p.getBBox().width > 0 && Number(p.getAttribute('opacity') ?? 1) < 0.2)
          .flatMap(p => [p.getAttribute('stroke'), p.getAttribute('fill')])"""
    )
    return set(found) & set(COLOURS.values())


OTHERS = {COLOURS["none"], COLOURS["apex_o1"]}
FILTERED = ("eval-accuracy", "throughput-bars", "train-loss", "scale-factor")


@pytest.mark.parametrize("way", ["legend", "chip", "bar", "keyboard"])
def test_picking_a_backend_anywhere_filters_all_charts(reader, way):
    page = reader.page
    if way == "legend":
        reader.figure("train-loss").locator(".role-legend-label text", has_text="native").click()
    elif way == "chip":
        page.get_by_role("button", name="native", exact=True).click()
    elif way == "bar":
        reader.figure("throughput-bars").locator(".mark-rect path").nth(1).click()
    else:
        page.get_by_role("button", name="all", exact=True).focus()
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
    for name in FILTERED:
        reader.wait_until(lambda name=name: dimmed(reader, name) == OTHERS)
    chip = page.get_by_role("button", name="native", exact=True)
    assert chip.get_attribute("aria-pressed") == "true"
    page.get_by_role("button", name="all", exact=True).click()
    reader.wait_until(lambda: not any(dimmed(reader, name) for name in FILTERED))
    assert reader.said == []


def test_table_of_runs_sorts_by_number_and_text(reader):
    page = reader.page

    def column(n: int) -> list[str]:
        return page.evaluate(
            "[...document.querySelectorAll('#runs-table tbody tr')].map(r => "
            f"r.cells[{n}].textContent.trim())"
        )

    head = page.locator("#runs-table thead button", has_text="images/s")
    head.click()
    assert [float(v) for v in column(7)] == sorted(float(v) for v in column(7))
    head.click()
    assert [float(v) for v in column(7)] == sorted((float(v) for v in column(7)), reverse=True)
    assert page.locator("#runs-table th[aria-sort='descending']").count() == 1
    page.locator("#runs-table thead button", has_text="group").click()
    assert column(1) == ["apex_o1", "native", "none"]


def test_table_of_runs_filters_by_words_and_by_keyboard(reader):
    page = reader.page
    page.locator("#runs-filter").focus()
    page.keyboard.type("apex finished")
    assert page.locator("#runs-table tbody tr:visible").count() == 1
    assert page.locator("#runs-count").inner_text() == "1 of 3"


def test_run_links_to_its_details(reader):
    page = reader.page
    page.locator("#runs-table tbody a").nth(1).focus()
    page.keyboard.press("Enter")
    page.locator("details#run-2[open]").wait_for()
    assert "most runs" in page.locator("details#run-2").inner_text()


def test_single_runs_are_shown_on_demand(browser, tmp_path):
    runs = [make(b, seed) for b in ("none", "native") for seed in (1, 2, 3)]
    reader = Reader(
        browser, write_page(analyse_runs(runs), tmp_path), viewport={"width": 1280, "height": 900}
    )
    shown = (
        "f => [...f.querySelectorAll('.mark-line path')].filter(p => Number(p.getAttribute('opacity')) "
        "> 0).length"
    )
    assert reader.figure("train-loss").evaluate(shown) == 2
    reader.page.locator("#show-runs").check()
    reader.wait_until(lambda: reader.figure("train-loss").evaluate(shown) == 8)
    assert reader.said == []
    reader.context.close()


@pytest.mark.parametrize("width", [390, 1280])
def test_long_hostile_and_emoji_names_fit_the_page(browser, tmp_path, width):
    names = ["<script>alert(1)</script>", "</script><img src=x onerror=alert(1)>", "🚀" * 20, "x" * 300]
    runs = [make("none", i, name=name) for i, name in enumerate(names)]
    runs += [make("native", i, config={"backend": name}) for i, name in enumerate(names)]
    reader = Reader(
        browser, write_page(analyse_runs(runs), tmp_path), viewport={"width": width, "height": 800}
    )
    page = reader.page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    text = page.locator("#runs").inner_text()
    assert all(name in text for name in names)
    assert reader.said == []
    reader.context.close()


def test_forty_groups_draw_without_a_word(browser, tmp_path):
    runs = [make("none", steps=50, config={"optimizer": {"lr": 0.001 * i}}, id=f"r{i}") for i in range(40)]
    path = write_page(analyse_runs(runs), tmp_path)
    reader = Reader(browser, path, viewport={"width": 1280, "height": 900})
    assert reader.said == []
    assert reader.page.locator(".chip[data-label]").count() == 40
    assert path.stat().st_size < 5_000_000
    reader.context.close()
