"""The page as a reader gets it: in Chromium, with every request refused."""

import re
from collections.abc import Callable

import pytest
from support.fakes import full, make

from ampcompare import analyse_runs
from ampcompare.report.pipeline import write_report

pytestmark = [pytest.mark.browser, pytest.mark.slow]

BACKENDS = ("none", "native", "apex_o1", "fp16")
CHARTS = "quality quality-time train-loss throughput loss-scale underflow lost-updates".split()
FAINT = """f => [...f.querySelectorAll('.mark-line path')]
    .filter(p => Number(p.getAttribute('opacity') ?? 1) < 0.5).length"""
# What reaches beyond the window, tables in a box that scrolls aside.
TOO_WIDE = """[...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll') &&
    e.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
    .map(e => e.outerHTML.slice(0, 80))"""


@pytest.fixture(scope="module")
def page_path(tmp_path_factory):
    runs = [make(b, seed, edit=full) for b in BACKENDS for seed in (1, 2, 3)]
    return write_page(runs, tmp_path_factory.mktemp("page"))


@pytest.fixture
def read(browser):
    """Open a page in a window of a width; none may be wider than it, or say a word on the console."""
    readers = []

    def open_page(path, width: int = 1280, **options) -> Reader:
        readers.append(Reader(browser, path, viewport={"width": width, "height": 900}, **options))
        assert readers[-1].page.evaluate("document.documentElement.scrollWidth") <= width
        assert readers[-1].page.evaluate(TOO_WIDE) == []
        return readers[-1]

    yield open_page
    for reader in readers:
        assert reader.said == []
        reader.context.close()


def test_a_short_page_draws_every_chart_without_a_request(read, page_path):
    reader = read(page_path)
    assert reader.requests == [page_path.as_uri()]
    for name in CHARTS:
        assert reader.figure(name).locator(".mark-line path").count() >= 3, name
    assert len(reader.page.evaluate("document.querySelector('main').innerText").split()) <= 1000
    assert reader.page.evaluate("document.documentElement.scrollHeight") <= 2700


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize(
    ("scheme", "colour"), [("light", "rgb(91, 100, 114)"), ("dark", "rgb(163, 171, 184)")]
)
def test_a_page_has_both_colour_schemes_and_is_light_in_print(read, page_path, width, scheme, colour):
    reader = read(page_path, width, color_scheme=scheme)
    label = reader.figure("train-loss").locator(".role-axis-label text").first
    assert label.evaluate("e => getComputedStyle(e).fill") == colour
    reader.page.emulate_media(media="print", color_scheme=scheme)
    ground = reader.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(255, 255, 255)"


def test_hovering_over_a_line_shows_its_figures(read, page_path):
    reader = read(page_path)
    plot = reader.figure("throughput").locator("svg.marks")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    reader.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 30)
    tip = reader.page.locator("#vg-tooltip-element.visible")
    tip.wait_for()
    words = tip.inner_text().replace("\t", "\n").split("\n")
    assert {"backend", "images/s", "lowest run", "mean of 3 runs"} <= {*words}


@pytest.mark.parametrize("way", ["click", "keyboard"])
def test_a_name_in_the_legend_singles_its_backend_out_in_all_charts(read, page_path, way):
    reader = read(page_path)
    name = reader.page.get_by_role("button", name="native", exact=True)
    if way == "click":
        name.click()
    else:
        name.focus()
        reader.page.keyboard.press("Enter")
    for chart in ("quality", "train-loss"):
        reader.wait_until(lambda chart=chart: reader.figure(chart).evaluate(FAINT) == 3)
    assert name.get_attribute("aria-pressed") == "true"
    name.click()
    reader.wait_until(lambda: reader.figure("train-loss").evaluate(FAINT) == 0)


@pytest.mark.parametrize("width", [390, 1280])
def test_long_hostile_and_emoji_names_fit_the_page(read, tmp_path, width):
    names = [
        "<script>alert(1)</script>{{7*7}}",
        "'\"</script><img src=x onerror=alert(1)>",
        "🚀" * 20,
        "x" * 300,
    ]
    runs = [make("none", i, name=name) for i, name in enumerate(names)]
    runs += [make("native", i, config={"backend": name}) for i, name in enumerate(names)]
    page = read(write_page(runs, tmp_path), width).page
    assert page.locator("img").count() == 0
    text = page.locator("main").text_content()
    assert all(name in text for name in names)


# The top of each interval in a row of the table.
ROWS = """[...document.querySelectorAll('.comparison tbody tr')].map(row =>
    [...row.querySelectorAll('.span')].map(e => e.getBoundingClientRect().top))"""
# Labels of an axis of the table or of a chart that touch each other, or that the window cuts.
LABELS = """(() => {
  const found = [];
  const axes = [...document.querySelectorAll('.role-axis-label')].map(
    axis => [...axis.querySelectorAll('text')].filter(e => getComputedStyle(e).opacity !== '0')
      .map(e => [e.textContent, e.getBoundingClientRect()]).filter(([text, box]) => text && box.width));
  for (const labels of axes) labels.forEach(([text, a], n) => {
    if (a.left < 0 || a.right > document.documentElement.clientWidth) found.push(`cut: ${text}`);
    for (const [other, b] of labels.slice(n + 1))
      if (a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom)
        found.push(`collide: ${text} ${other}`);
  });
  return found;
})()"""


def wide_figures(plan):
    """Speeds of five digits, energy, a time to the target: the most columns and the longest figures."""
    full(plan)
    times = 300 if plan["config"]["backend"] == "none" else 390
    plan["summary"]["throughput/images_per_second_median"] *= times


@pytest.mark.parametrize("width", [390, 905, 1280])
@pytest.mark.parametrize("spread", [0.001, 40.0])
def test_intervals_of_a_row_lie_on_one_line_and_labels_of_axes_neither_touch_nor_are_cut(
    read, tmp_path, width, spread
):
    runs = [make(b, seed, edit=wide_figures) for b in BACKENDS for seed in (1, 2, 3)]
    for number, run in enumerate(runs):
        run.summary["throughput/images_per_second_median"] *= 1 + spread * (number % 3) / 100
        run.summary["memory/peak_mib"] = 9000 * (1 + spread * (number % 5) / 100)
        run.summary["eval/accuracy"] = 0.9 + 0.002 * spread / 4 * (number % 4)
    reader = read(write_page(runs, tmp_path, target=0.3), width)
    assert reader.page.locator(".own", has_text=re.compile(r"\d\d,\d{3} images/s")).count() == 3
    if width > 900:
        for row in reader.page.evaluate(ROWS):
            assert len(row) == 5
            assert max(row) - min(row) < 1
    assert reader.page.evaluate(LABELS) == []


def write_page(runs, folder, **options):
    return write_report(analyse_runs(runs, **options), folder, ("html",))[0]


class Reader:
    """One open page, and all it said and asked for."""

    def __init__(self, browser, path, **options) -> None:
        self.context = browser.new_context(offline=True, **options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(0)
        self.said: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: (self.said.append("dialog"), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_function("document.documentElement.dataset.charts === 'drawn'")

    def figure(self, name: str):
        return self.page.locator(f"#chart-{name}")

    def wait_until(self, true: Callable[[], bool]) -> None:
        """Wait until the page has come to it, while its own events go on."""
        while not true():
            self.page.wait_for_timeout(50)
