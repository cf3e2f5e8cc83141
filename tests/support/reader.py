"""A reader with a browser: one open page, with every request refused."""

from __future__ import annotations

from collections.abc import Callable

from ampcompare.report.outputs import write_report


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
