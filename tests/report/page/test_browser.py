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
    return write_page(analyse_runs(runs), tmp_path_factory.mktemp("page"))


@pytest.fixture
def reader(browser, page_path):
    reader = Reader(browser, page_path, viewport={"width": 1280, "height": 900})
    yield reader
    reader.context.close()


def test_page_draws_every_chart_without_a_word_on_the_console_and_without_a_request(reader, page_path):
    assert reader.said == []
    assert reader.requests == [page_path.as_uri()]
    for name in CHARTS:
        assert reader.figure(name).locator(".mark-line path").count() >= 3, name


def test_page_of_four_backends_is_short(reader):
    words = reader.page.evaluate("document.querySelector('main').innerText").split()
    assert len(words) <= 1000
    assert reader.page.evaluate("document.documentElement.scrollHeight") <= 2700


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_the_window_in_both_colour_schemes(browser, page_path, width, scheme):
    reader = Reader(browser, page_path, viewport={"width": width, "height": 800}, color_scheme=scheme)
    assert reader.page.evaluate("document.documentElement.scrollWidth") <= width
    assert reader.page.evaluate(TOO_WIDE) == []
    label = reader.figure("train-loss").locator(".role-axis-label text").first
    assert label.evaluate("e => getComputedStyle(e).fill") == (
        "rgb(163, 171, 184)" if scheme == "dark" else "rgb(91, 100, 114)"
    )
    assert reader.said == []
    reader.context.close()


def test_hovering_over_a_line_shows_its_figures(reader):
    plot = reader.figure("throughput").locator("svg.marks")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    reader.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 30)
    tip = reader.page.locator("#vg-tooltip-element.visible")
    tip.wait_for()
    assert {"backend", "images/s", "lowest run", "mean of 3 runs"} <= {
        *tip.inner_text().replace("\t", "\n").split("\n")
    }


@pytest.mark.parametrize("way", ["click", "keyboard"])
def test_a_name_in_the_legend_singles_its_backend_out_in_all_charts(reader, way):
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
    assert reader.said == []


@pytest.mark.parametrize("width", [390, 1280])
def test_long_hostile_and_emoji_names_fit_the_page(browser, tmp_path, width):
    names = [
        "<script>alert(1)</script>{{7*7}}",
        "'\"</script><img src=x onerror=alert(1)>",
        "🚀" * 20,
        "x" * 300,
    ]
    runs = [make("none", i, name=name) for i, name in enumerate(names)]
    runs += [make("native", i, config={"backend": name}) for i, name in enumerate(names)]
    reader = Reader(
        browser, write_page(analyse_runs(runs), tmp_path), viewport={"width": width, "height": 800}
    )
    page = reader.page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(TOO_WIDE) == []
    assert page.locator("img").count() == 0
    text = page.locator("main").text_content()
    assert all(name in text for name in names)
    assert reader.said == []
    reader.context.close()


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


@pytest.mark.parametrize("width", [390, 905, 1280, 1600])
@pytest.mark.parametrize("spread", [0.001, 1.0, 40.0])
def test_intervals_of_a_row_lie_on_one_line_and_labels_of_axes_neither_touch_nor_are_cut(
    browser, tmp_path, width, spread
):
    runs = [make(b, seed, edit=wide_figures) for b in BACKENDS for seed in (1, 2, 3)]
    for number, run in enumerate(runs):
        run.summary["throughput/images_per_second_median"] *= 1 + spread * (number % 3) / 100
        run.summary["memory/peak_mib"] = 9000 * (1 + spread * (number % 5) / 100)
        run.summary["eval/accuracy"] = 0.9 + 0.002 * spread / 4 * (number % 4)
    path = write_page(analyse_runs(runs, target=0.3), tmp_path)
    reader = Reader(browser, path, viewport={"width": width, "height": 900})
    assert reader.page.locator(".own", has_text=re.compile(r"\d\d,\d{3} images/s")).count() == 3
    if width > 900:
        for row in reader.page.evaluate(ROWS):
            assert len(row) == 5
            assert max(row) - min(row) < 1
    assert reader.page.evaluate(LABELS) == []
    assert reader.page.evaluate(TOO_WIDE) == []
    reader.context.close()


@pytest.mark.parametrize("width", [390, 700, 1280])
def test_a_title_never_breaks_between_a_number_and_its_unit_and_no_text_has_backticks(
    browser, tmp_path, width
):
    runs = [make(b, seed, edit=wide_figures) for b in ("none", "native") for seed in (1, 2, 3)]
    for run, accuracy in zip(runs, (0.90, 0.91, 0.92, 0.91, 0.90, 0.93), strict=True):
        run.summary["eval/accuracy"] = accuracy
    reader = Reader(
        browser, write_page(analyse_runs(runs), tmp_path), viewport={"width": width, "height": 900}
    )
    # The lines of the title, as they are set.
    lines = reader.page.evaluate("""(() => {
      const lines = [], range = document.createRange();
      const walker = document.createTreeWalker(document.querySelector('h1'), NodeFilter.SHOW_TEXT);
      let top = null;
      while (walker.nextNode()) for (let n = 0; n < walker.currentNode.length; n++) {
        range.setStart(walker.currentNode, n); range.setEnd(walker.currentNode, n + 1);
        const box = range.getBoundingClientRect();
        if (!box.width) continue;
        if (top === null || box.top > top + 5) { lines.push(''); top = box.top; }
        lines[lines.length - 1] += walker.currentNode.data[n];
      }
      return lines;
    })()""")
    title = " ".join(" ".join(lines).split())
    assert "inconclusive for native (+0.33 points; at most" in title
    assert len(lines) > 1
    for line in lines[1:]:
        assert not line.startswith(("%", "=", "points", "CI"))
    assert not [line for line in lines if line.rstrip().endswith((" n", "="))]
    text = reader.page.evaluate("document.querySelector('main').innerText")
    assert "`" not in text
    assert "ampcompare sweep FILE --until-decided" in " ".join(text.split())
    reader.context.close()


def test_printed_page_is_light_whatever_the_screen(browser, page_path):
    reader = Reader(browser, page_path, color_scheme="dark")
    reader.page.emulate_media(media="print", color_scheme="dark")
    ground = reader.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(255, 255, 255)"
    reader.context.close()


def write_page(analysis, folder):
    return write_report(analysis, folder, ("html",))[0]


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
