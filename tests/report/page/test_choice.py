"""The reader's choice of baseline and margin, in Chromium: on screen, without a script, in print."""

from __future__ import annotations

import pytest
from support.a_sweep import a_sweep
from support.reader import Reader, write_page

from ampcompare.report import analyse_runs

pytestmark = [pytest.mark.browser, pytest.mark.slow]

ORDER = ("none", "none again (A/A)", "native", "apex_o1", "apex_o2", "fp16")
BACKENDS_OF_CHART = """figure => [...figure.querySelectorAll('.mark-text.role-mark text')]
  .map(text => text.textContent)"""


@pytest.fixture(scope="module")
def analysis():
    return analyse_runs(a_sweep(epochs=5, control=True))


@pytest.fixture(scope="module")
def path(analysis, tmp_path_factory):
    return write_page(analysis, tmp_path_factory.mktemp("choice"))


@pytest.fixture
def reader(browser, path):
    reader = Reader(browser, path, viewport={"width": 1280, "height": 900})
    yield reader
    reader.context.close()


def choose(reader, which: str, value: str) -> None:
    reader.page.locator(f"#choose-{which}").select_option(value)
    reader.page.wait_for_function("document.documentElement.dataset.charts === 'drawn'")


def words(reader, selector: str) -> str:
    return " ".join(reader.page.locator(selector).inner_text().replace("\N{NO-BREAK SPACE}", " ").split())


def plain(text: str) -> str:
    return " ".join(text.replace("\N{NO-BREAK SPACE}", " ").split())


def test_choosing_baseline_and_margin_exchanges_words_cards_table_and_charts(reader, analysis):
    choose(reader, "baseline", "native")
    choose(reader, "margin", "2.0")
    view = analysis.view("native", 2.0)
    assert words(reader, ".headline") == plain(view.verdict.headline)
    assert plain(view.verdict.lines[0][1]) in words(reader, ".lines")
    assert "as fast as native" in words(reader, ".card >> nth=0")
    shown = reader.figure("quality-differences").evaluate(BACKENDS_OF_CHART)
    assert len(shown) == 2 * 5  # each over its ground
    assert reader.figure("throughput-bars").inner_text().count("×") >= 4
    assert reader.said == []
    assert reader.requests == [reader.page.url]


def test_without_javascript_the_planned_view_is_there_and_nothing_to_choose(browser, path, analysis):
    context = browser.new_context(offline=True, java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    assert plain(page.locator(".headline").inner_text()) == plain(analysis.verdict.headline)
    assert not page.locator("#choice").is_visible()
    assert not page.locator("#columns").is_visible()
    assert page.locator("#backends-table tbody tr").count() == len(ORDER)
    context.close()


def test_print_shows_the_chosen_view_and_the_whole_table(reader, analysis):
    choose(reader, "baseline", "apex_o2")
    reader.page.emulate_media(media="print")
    reader.page.evaluate("document.querySelector('main').style.width = '704px'")  # A4 less its margins
    assert words(reader, ".headline") == plain(analysis.view("apex_o2").verdict.headline)
    assert not reader.page.locator("#choice").is_visible()
    assert reader.page.locator("#backends .scroll").evaluate("box => box.scrollWidth <= box.clientWidth")
