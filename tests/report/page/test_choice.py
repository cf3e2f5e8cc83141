"""The reader's choice of baseline, margin and columns, in Chromium."""

from __future__ import annotations

import pytest
from support.a_sweep import a_sweep
from support.fakes import make
from support.reader import Reader, write_page

from ampcompare.report import analyse_runs

pytestmark = pytest.mark.browser

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


@pytest.mark.slow
def test_every_view_can_be_chosen_without_a_word_on_the_console(reader, analysis):
    for baseline in analysis.baselines:
        choose(reader, "baseline", baseline)
        assert words(reader, ".headline") == plain(analysis.view(baseline).verdict.headline)
    for margin in analysis.margins:
        choose(reader, "margin", repr(margin))
        view = analysis.view(analysis.baselines[-1], margin)
        assert words(reader, ".headline") == plain(view.verdict.headline)
    assert reader.said == []


def test_zone_of_the_margin_follows_the_choice(reader):
    height = """figure => Math.max(...[...figure.querySelectorAll('.mark-rect path')]
      .map(path => path.getBBox().height))"""
    before = reader.figure("eval-difference").evaluate(height)
    choose(reader, "margin", "0.1")
    assert reader.figure("eval-difference").evaluate(height) == pytest.approx(before / 5, rel=0.02)


def test_choice_is_told_to_a_screen_reader_and_marked_as_not_planned(reader):
    told = reader.page.locator("[role=status][data-part=told]")
    assert told.inner_text().endswith("as planned.")
    choose(reader, "margin", "0.1")
    assert told.inner_text() == "Compared with none, margin 0.1 points. Not as planned."


def test_choice_is_made_and_taken_back_by_keyboard(reader, analysis):
    page = reader.page
    page.locator("#choose-baseline").focus()
    page.keyboard.press("ArrowDown")
    reader.wait_until(lambda: "native" in words(reader, ".told"))
    back = page.get_by_role("button", name="back to what was planned")
    back.focus()
    page.keyboard.press("Enter")
    reader.wait_until(lambda: words(reader, ".told").endswith("as planned."))
    assert words(reader, ".headline") == plain(analysis.verdict.headline)
    assert not back.is_visible()
    assert page.evaluate("document.activeElement.id") == "choose-baseline"


def test_controls_have_names_for_a_screen_reader(reader):
    page = reader.page
    assert page.get_by_role("combobox", name="Baseline").count() == 1
    assert page.get_by_role("combobox", name="Margin").count() == 1
    page.locator("#columns summary").click()
    assert page.get_by_role("checkbox", name="speed-up", exact=True).count() == 1
    assert page.get_by_role("group", name="Show in the table, on paper too").count() == 1


def test_filter_of_the_charts_outlasts_a_change_of_view(reader):
    page = reader.page
    page.get_by_role("button", name="apex_o1", exact=True).click()
    choose(reader, "baseline", "native")
    assert page.get_by_role("button", name="apex_o1", exact=True).get_attribute("aria-pressed") == "true"
    faint = """figure => [...figure.querySelectorAll('.mark-symbol.role-mark path')]
      .filter(path => Number(path.getAttribute('opacity')) < 0.2).length"""
    assert reader.figure("speed-ups").evaluate(faint) == 4


def test_without_javascript_the_planned_view_is_there_and_nothing_to_choose(browser, path, analysis):
    context = browser.new_context(offline=True, java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    assert plain(page.locator(".headline").inner_text()) == plain(analysis.verdict.headline)
    assert not page.locator("#choice").is_visible()
    assert not page.locator("#columns").is_visible()
    assert page.locator("#backends-table tbody tr").count() == len(ORDER)
    context.close()


def test_columns_are_chosen_by_keyboard_and_stay_chosen_in_another_view(reader):
    page = reader.page
    page.locator("#columns summary").focus()
    page.keyboard.press("Enter")
    page.get_by_role("checkbox", name="memory change").focus()
    page.keyboard.press("Space")
    assert not page.locator("#backends-table th.c-memory").is_visible()
    choose(reader, "baseline", "fp16")
    assert page.locator("#backends-table td.c-memory >> visible=true").count() == 0
    assert page.locator("#backends-table td.c-speed >> visible=true").count() == len(ORDER)


def test_table_by_backend_fits_1280_pixels_and_keeps_its_first_column_on_a_phone(browser, path):
    wide = Reader(browser, path, viewport={"width": 1280, "height": 900})
    size = "box => [box.scrollWidth, box.clientWidth]"
    inner, outer = wide.page.locator("#backends .scroll").evaluate(size)
    assert inner <= outer
    wide.context.close()
    phone = Reader(browser, path, viewport={"width": 390, "height": 800})
    box = phone.page.locator("#backends .scroll")
    box.evaluate("box => { box.scrollLeft = 400; }")
    first = phone.page.locator("#backends-table tbody th").first
    assert first.bounding_box()["x"] == pytest.approx(box.bounding_box()["x"], abs=2)
    assert phone.page.evaluate("document.documentElement.scrollWidth") <= 390
    phone.context.close()


def test_print_shows_the_chosen_view_and_the_whole_table(reader, analysis):
    choose(reader, "baseline", "apex_o2")
    page = reader.page
    page.emulate_media(media="print")
    page.evaluate("document.querySelector('main').style.width = '704px'")  # A4 less its margins
    assert words(reader, ".headline") == plain(analysis.view("apex_o2").verdict.headline)
    assert "apex_o2" in words(reader, ".told")
    assert not page.locator("#choice").is_visible()
    assert page.locator("#backends .scroll").evaluate("box => box.scrollWidth <= box.clientWidth")


def test_page_drops_the_setting_of_charts_and_a_saved_picture_has_it(reader):
    figure = reader.figure("eval-difference")
    assert "Test Device 9000" not in figure.locator(".plot").inner_text()
    keep = """() => { URL.createObjectURL = blob => {
      blob.text().then(text => { window.saved = text; });
      return 'blob:none';
    }; }"""
    reader.page.evaluate(keep)
    figure.locator("summary").click()
    figure.get_by_role("link", name="Save as SVG").dispatch_event("mousedown")
    reader.wait_until(lambda: reader.page.evaluate("'saved' in window"))
    svg = reader.page.evaluate("window.saved")
    assert "Test" in svg
    assert "Device 9000" in svg
    assert 'fill="white"' in svg
    assert reader.said == []


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_chips_have_their_colours_and_nothing_is_wider_than_the_page(browser, path, width, scheme):
    reader = Reader(browser, path, viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = reader.page
    grounds = page.evaluate(
        "[...document.querySelectorAll('.card .mark')].map(m => [m.innerText.trim().slice(2), "
        "getComputedStyle(m).backgroundColor])"
    )
    looks = dict(grounds)
    assert looks.keys() >= {"equivalent", "failed"}
    assert looks["failed"] == ("rgb(28, 35, 48)" if scheme == "light" else "rgb(244, 245, 247)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    cards = page.locator(".card").evaluate_all("cards => cards.map(c => c.getBoundingClientRect().width)")
    assert min(cards) >= 280
    reader.context.close()


def test_records_of_one_seed_can_be_seen_from_every_baseline(browser, tmp_path):
    analysis = analyse_runs([make(b) for b in ("none", "native", "apex_o1")])
    reader = Reader(browser, write_page(analysis, tmp_path))
    for baseline in analysis.baselines:
        choose(reader, "baseline", baseline)
        assert words(reader, ".headline") == plain(analysis.view(baseline).verdict.headline)
    assert reader.said == []
    reader.context.close()
