"""The page: one file that asks for nothing, in which what comes from runs is text."""

import base64
import hashlib
import html
import json
import re
from datetime import UTC, datetime

import vl_convert
from support.fakes import full, make
from support.outside import Outside
from support.publication_files import peaks, throughput, write_publication

from ampcompare import analyse_runs
from ampcompare.report.comparison_table import comparison_table
from ampcompare.report.page.render import render_page

HOSTILE = "</script><script>alert(1)</script>{{7*7}}"
MOMENT = datetime(2026, 11, 5, tzinfo=UTC)
IMAGE = '"><img src=x onerror=alert(1)>'


def page_of(*runs, **options) -> str:
    return render_page(analyse_runs(runs, **options)).decode()


def markup(page: str) -> str:
    """Return a page without the content of its scripts and styles."""
    return re.sub(r"(<(script|style)[^>]*>).*?</\2>", r"\1", page, flags=re.S)


def visible_text(page: str) -> str:
    """Return the text that a reader of a page sees."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", markup(page))).split())


def scripts(page: str) -> list[tuple[str, str]]:
    """Return attributes and content of each script."""
    return re.findall(r"<script([^>]*)>(.*?)</script>", page, re.S)


def hostile_runs():
    def edit(plan):
        plan["config"]["data"]["source"] = HOSTILE
        plan["config"]["classes"] = [HOSTILE, IMAGE]
        plan["config"]["seed"] = IMAGE
        plan["summary"]["environment"] |= {HOSTILE: IMAGE, "packages": {HOSTILE: IMAGE}, "device_name": IMAGE}

    config = {"backend": HOSTILE}
    return [
        make("none", name=HOSTILE, tags=[HOSTILE, IMAGE], edit=edit, problems=(HOSTILE, IMAGE)),
        make("native", name=IMAGE, state="failed"),
        make("none", 5, name="lone \ud800 surrogate, \u202e, \x00 and 🚀", config=config),
        make("apex_o1", name="x" * 300),
    ]


def test_hostile_names_stay_text_whatever_page_and_template_are_made_of():
    page = page_of(*hostile_runs())
    for name in (HOSTILE, IMAGE, "x" * 300):
        assert name in visible_text(page)
    assert not re.findall(r"<img|<\w+[^<>]*\son\w+=", markup(page))
    data, *others = scripts(page)
    assert [attributes for attributes, _ in (data, *others)] == [
        ' type="application/json" id="specifications"',
        "",
        "",
    ]
    assert "alert" in json.dumps(json.loads(data[1]))


def test_page_asks_for_nothing_and_its_policy_names_exactly_its_scripts():
    page = page_of(make("none"), make("native"))
    assert not re.findall(r"<[^<>]*\s(?:src|href)=\"?[^#]", markup(page))
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    rules = dict(rule.strip().split(" ", 1) for rule in html.unescape(policy).split(";"))
    assert rules["default-src"] == "'none'"
    assert "connect-src" not in rules
    run = [content for attributes, content in scripts(page) if not attributes]
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in run]
    assert rules["script-src"].split() == hashes
    assert not re.search(r"https?:|\*|unsafe-eval", policy)


def test_page_says_what_the_analysis_says_in_five_sections(tmp_path):
    runs = [make(b, seed, edit=full) for b in ("none", "native") for seed in (1, 2, 3)]
    paper = write_publication(tmp_path, {"speed": throughput(), "memory": peaks()})
    analysis = analyse_runs(runs, reproduce=paper, require=["native: speedup >= 1.5"])
    page = render_page(analysis, MOMENT).decode()
    expected = ["5 November 2026", analysis.headline, analysis.basis, analysis.caption, *analysis.methods]
    expected += [
        *analysis.caveats,
        *analysis.notes,
        *analysis.numerics.values(),
        analysis.advice.replace("`", ""),
    ]
    expected += [answer.sentence for answer in analysis.gate_results]
    expected += [analysis.reproduction.headline, *(row.why for row in analysis.reproduction.rows)]
    for row in comparison_table(analysis).rows:
        expected += [row.label, row.meaning, row.runs, *(part.text for part in row.badge)]
        expected += [text for c in row.cells.values() for text in (c.text, c.unit, c.span, c.also)]
    assert not [text for text in expected if " ".join(text.split()) not in visible_text(page)]
    order = re.findall(r'<section id="(\w+)"', page)
    assert order == ["comparison", "training", "numerics", "published", "evidence"]


def test_chart_library_is_made_once_and_kept_where_it_can_be(tmp_path, outside: Outside, monkeypatch):
    made = []

    def bundle(snippet: str, **options: object) -> str:
        made.append(snippet)
        return "all of Vega"

    outside.replace(vl_convert, "javascript_bundle", bundle)
    analysis = analyse_runs([make("none")])
    (tmp_path / "file").touch()
    for folder, expected in (("file", 1), ("cache", 2), ("cache", 2)):  # a file is no folder
        monkeypatch.setenv("AMPCOMPARE_CACHE", str(tmp_path / folder))
        assert b"all of Vega" in render_page(analysis)
        assert len(made) == expected
