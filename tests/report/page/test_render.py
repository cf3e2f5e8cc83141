from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
from support.fakes import make

from ampcompare.report import analyse_runs
from ampcompare.report.page.render import render_page, script_json

HOSTILE = "</script><script>alert(1)</script>"
IMAGE = '"><img src=x onerror=alert(1)>'


class Page(HTMLParser):
    """The elements of a page and the text outside scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict]] = []
        self.text = ""
        self.scripts: list[tuple[dict, str]] = []
        self.inside: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.inside.append(tag)
            if tag == "script":
                self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag):
        if tag in ("script", "style"):
            self.inside.pop()

    def handle_data(self, data):
        if not self.inside:
            self.text += data
        elif self.inside[-1] == "script":
            attributes, before = self.scripts[-1]
            self.scripts[-1] = (attributes, before + data)


def page_of(*runs, **options) -> str:
    return render_page(analyse_runs(runs, **options)).decode("utf-8")


def hostile_runs():
    def edit(plan):
        plan["config"]["data"]["source"] = HOSTILE
        plan["config"]["classes"] = [HOSTILE, IMAGE]
        plan["config"]["seed"] = IMAGE
        plan["summary"]["environment"] |= {HOSTILE: IMAGE, "packages": {HOSTILE: IMAGE}, "device_name": IMAGE}

    config = {"backend": HOSTILE}
    return [
        make("none", name=HOSTILE, tags=[HOSTILE, IMAGE], edit=edit, problems=(HOSTILE, IMAGE)),
        make("native", name=IMAGE, state="crashed"),
        make("none", 5, name="lone \ud800 surrogate, \u202e, \x00 and 🚀", config=config),
        make("apex_o1", name="x" * 300),
    ]


@pytest.mark.slow
def test_hostile_names_stay_text():
    page = Page(page_of(*hostile_runs()))
    assert HOSTILE in page.text
    assert IMAGE in page.text
    assert "x" * 300 in page.text
    assert [tag for tag, _ in page.elements].count("img") == 0
    kinds = [attributes.get("type", "script") for attributes, _ in page.scripts]
    assert set(kinds[:-2]) == {"application/json"}
    assert kinds[-2:] == ["script"] * 2
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    for attributes, content in page.scripts:
        if attributes.get("type") == "application/json":
            json.loads(content)


@pytest.mark.slow
def test_page_asks_for_nothing():
    page = Page(page_of(make("none"), make("native")))
    addresses = [a.get("src") or a.get("href") for _, a in page.elements if "src" in a or "href" in a]
    assert addresses == ["#run-1", "#run-2"]
    assert "link" not in {tag for tag, _ in page.elements}


@pytest.mark.slow
def test_policy_forbids_every_request_and_names_exactly_the_scripts_of_the_page():
    import base64
    import hashlib

    page = Page(page_of(make("none")))
    policy = next(a["content"] for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert "connect-src" not in rules
    run = [content for attributes, content in page.scripts if not attributes]
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in run]
    assert rules["script-src"].split() == hashes
    assert not {"'unsafe-inline'", "'unsafe-eval'", "*", "https:", "http:"} & set(rules["script-src"].split())
    assert not re.search(r"https?:|\*", policy)


@pytest.mark.slow
def test_table_of_runs_holds_their_figures_and_states():
    torn = make("native", state="crashed", problems=("Torn at byte 3.",))
    text = " ".join(Page(page_of(make("none"), torn, make("apex_o1", device="Other"))).text.split())
    assert "crashed" in text
    assert "Torn at byte 3." in text
    assert "Test Device 9000 (CUDA)" in text
    assert "Other (CUDA)" in text
    assert "9,200" in text


def test_script_json_is_safe_and_refuses_nan():
    text = script_json({"a": HOSTILE, "b": "\u2028\ud800&"})
    assert not set("<>&") & set(text)
    assert text.isascii()
    assert json.loads(text)["a"] == HOSTILE
    with pytest.raises(ValueError, match="JSON"):
        script_json({"a": float("nan")})
