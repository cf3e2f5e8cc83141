"""The files of a report: what they hold, that hostile names stay text, and that they come before the text."""

import csv
import io
import json
import os
import struct
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from report.outputs import flat, outputs, printed
from support.fakes import full, make
from support.known_runs import BASE, FAST, SAME, runs

from ampcompare import analyse_runs
from ampcompare.report.comparison_table import comparison_table
from ampcompare.report.exports import COMPARED
from ampcompare.report.pipeline import write_report

HOSTILE = "=1+1|</script>\x1b*🚀"


def table_lines(markdown: str) -> list[str]:
    return [line for line in markdown.splitlines() if line.startswith("|")]


def csv_rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_every_output_shows_the_same_values_and_the_files_for_programs_have_all_digits():
    control = runs("none", SAME, arms=["first"] * 5)
    analysis = analyse_runs([*runs("none", BASE), *runs("native", SAME, FAST, failed=(1,)), *control])
    texts = outputs(analysis) | {"terminal": printed(analysis, 200)}
    for row in comparison_table(analysis).rows:
        parts = [part for cell in row.cells.values() for part in (cell.text, cell.span, cell.also)]
        for part in [*parts, *(part.text for part in row.badge)]:
            assert all(part in flat(texts[name]) for name in ("terminal", "md")), part
    content = json.loads(texts["json"])
    for group, line in zip(content["groups"], csv_rows(texts["csv"]), strict=True):
        assert (group["label"], group["verdict"]) == (line["group"], line["verdict"])
        found = analysis.comparison(group["label"])
        for name, question in COMPARED.items() if found else ():
            if estimate := found.estimates.get(question):
                compared = group["compared"][name]
                ends = (compared["value"], compared["low"], compared["high"])
                assert ends == (estimate.value, *estimate.ends)
                assert (float(line[name]), line[f"{name}_method"]) == (estimate.value, compared["method"])
    *_, native = content["groups"]
    assert (native["outcomes"]["finished"], native["outcomes"]["failed"]) == (4, 1)
    speedup = native["compared"]["speedup"]
    assert (speedup["n"], speedup["shown"]) == (4, ["faster"])
    assert speedup["confidence"] == content["confidence"] == native["figures"]["quality"]["confidence"]
    assert content["verdict"] == analysis.headline
    assert len({line.count("|") for line in table_lines(texts["md"])}) == 1


@pytest.mark.parametrize("name", [HOSTILE, "a\x1b[31mred", "\u202eRTL\u202c", "a\x00b\r\nc"])
def test_hostile_names_stay_text_without_control_characters_in_every_table_and_on_the_terminal(name):
    made = [make(b, seed, steps=20, epochs=2) for b in ("none", "native") for seed in range(2)]
    failed = make("native", 7, state="failed", name=name, steps=20, epochs=2)
    failed.config |= dict.fromkeys(("seed", "model", "backend"), name)
    texts = outputs(analyse_runs([*made, failed], group_by=("backend", "model")))
    parts = ("1+1", "31mred", "RTL", "b  c", "b c", "b\N{REPLACEMENT CHARACTER}")
    for text in (texts["md"], texts["terminal"]):
        assert any(part in text for part in parts)
        assert all(c.isprintable() or c == "\n" for c in text)
    assert "</script>" not in texts["md"].replace("\\<", "")
    assert len({line.count("|") - line.count("\\|") for line in table_lines(texts["md"])}) == 1
    groups = [row["group"] for row in csv_rows(texts["csv"])]
    assert not [group for group in groups if group.startswith("=")]  # which a spreadsheet computes
    assert name in [run["name"] for run in json.loads(texts["json"])["runs"]]


@pytest.mark.slow
def test_run_of_which_nothing_is_known_makes_every_file(tmp_path):
    nothing = {"edit": lambda plan: plan.update(rows=[], summary={})}
    written = write_report(analyse_runs([make("none", **nothing, state="failed", name=HOSTILE)]), tmp_path)
    assert {path.name for path in written} == {
        "index.html",
        *(f"comparison.{k}" for k in ("csv", "json", "md")),
    }
    assert "No history." in (tmp_path / "index.html").read_text()


@pytest.mark.slow
def test_pictures_are_for_paper_whatever_the_names(tmp_path):
    config = {"backend": HOSTILE + 20 * "🚀"}  # so long that Vega shortens it
    analysis = analyse_runs([make("none", seed, edit=full, name=HOSTILE, config=config) for seed in (1, 2)])
    pictures = {path.name: path.read_bytes() for path in write_report(analysis, tmp_path, ("png", "svg"))}
    assert {name.rpartition(".")[2] for name in pictures} == {"png", "svg"}
    png = pictures["train-loss.png"]
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", png[16:24])
    assert (width > 1400, height > 600) == (True, True)  # 12 cm at 300 dots an inch
    for name, content in pictures.items():
        assert name.endswith("png") or ElementTree.fromstring(content.decode()) is not None


@pytest.mark.slow
def test_files_are_whole_where_the_reader_of_the_text_leaves(three_runs, tmp_path):
    """As of `report ... | head -1`: the folder was empty, since the text came first."""
    words = [sys.executable, "-m", "ampcompare", "report", str(three_runs), "--out", str(tmp_path)]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*words, "--format", "md,json"], stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert b"Traceback" not in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"comparison.md", "comparison.json"}
    json.loads((tmp_path / "comparison.json").read_text())
