"""The files beside the page."""

from __future__ import annotations

import csv
import io
import json
import struct
import xml.etree.ElementTree as ElementTree

import pytest
from support.fakes import full, make

from ampcompare.report import analyse_runs
from ampcompare.report.charts.catalogue import CHARTS
from ampcompare.report.exports import to_csv, to_json, to_markdown
from ampcompare.report.outputs import write_report

HOSTILE = "=1+1|</script>\x1b*🚀"


@pytest.fixture(scope="module")
def analysis():
    return analyse_runs([make(b, seed, edit=full) for b in ("none", "native") for seed in (1, 2, 3)])


def test_json_holds_values_intervals_methods_and_runs(analysis):
    content = json.loads(to_json(analysis))
    native = content["groups"][1]
    assert native["label"] == "native"
    speedup = native["compared"]["speedup"]
    assert speedup["value"] == pytest.approx(1.9)
    assert speedup["low"] <= speedup["value"] <= speedup["high"]
    assert (speedup["n"], speedup["method"]) == (3, "paired by seed, t interval")
    assert set(native["compared"]["equivalence"]) == {"margin", "p", "low_90", "high_90", "holds", "tested"}
    assert content["groups"][0]["compared"] is None
    assert [run["seed"] for run in content["runs"]] == [1, 2, 3, 1, 2, 3]


def test_every_figure_of_the_bar_charts_is_in_the_json(analysis):
    groups = {group["label"]: group for group in json.loads(to_json(analysis))["groups"]}
    figures = {
        "throughput-bars": "images_per_second",
        "peak-memory": "peak_mib",
        "energy": "joules_per_image",
        "time-to-accuracy": "seconds_to_target",
    }
    for chart, figure in figures.items():
        bars = [r for r in CHARTS[chart](analysis)["datasets"]["data"] if r["kind"] == "bar"]
        assert [bar["x"] for bar in bars] == [groups[b["backend"]]["figures"][figure]["value"] for b in bars]
        assert len(bars) == 2
    for box in CHARTS["step-time"](analysis)["datasets"]["data"]:
        spread = groups[box["backend"]]["step_times_ms"]
        assert [box[q] for q in ("p5", "p50", "p95")] == pytest.approx(
            [spread[q] for q in ("p5", "p50", "p95")], rel=1e-4
        )


def test_csv_is_one_row_a_group_with_the_same_figures(analysis):
    rows = list(csv.DictReader(io.StringIO(to_csv(analysis))))
    assert [row["group"] for row in rows] == ["none", "native"]
    assert float(rows[1]["speedup"]) == pytest.approx(1.9)
    assert float(rows[1]["speedup_low"]) <= 1.9000001
    assert rows[0]["speedup"] == ""
    assert rows[1]["method"] == "paired by seed, t interval"


def test_markdown_has_the_verdict_the_table_and_the_method(analysis):
    text = to_markdown(analysis)
    assert text.startswith("# native trains 1.90× as fast as none")
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1
    assert "95 % t intervals over runs (quality: over seeds); comparisons paired by seed, t interval" in text


def test_hostile_names_stay_text_in_every_table():
    analysis = analyse_runs([make("none"), make("native", config={"backend": HOSTILE}, name=HOSTILE)])
    rows = list(csv.DictReader(io.StringIO(to_csv(analysis))))
    assert rows[1]["group"].startswith("'=1+1")  # a spreadsheet takes it for text
    text = to_markdown(analysis)
    assert "</script>" not in text.replace("\\<", "")
    assert (
        len({line.count("|") - line.count("\\|") for line in text.splitlines() if line.startswith("|")}) == 1
    )
    assert json.loads(to_json(analysis))["runs"][1]["name"] == HOSTILE


@pytest.mark.parametrize("name", ["a\x1b[31mred", "\u202eRTL\u202c", "a\x00b\r\nc"])
def test_markdown_has_no_control_character_of_any_name(name):
    runs = [make(b, seed, steps=20, epochs=2) for b in ("none", "native") for seed in range(2)]
    failed = make("native", 7, state="failed", name=name, steps=20, epochs=2)
    failed.config["seed"] = name
    text = to_markdown(analyse_runs([*runs, failed]))
    assert "31mred" in text or "RTL" in text or "b  c" in text or "b c" in text
    assert all(c.isprintable() or c in "\n\N{NO-BREAK SPACE}" for c in text)


@pytest.mark.slow
def test_run_of_which_nothing_is_known_makes_every_file(tmp_path):
    def empty(plan):
        plan["rows"], plan["summary"], plan["config"] = [], {}, {}

    written = write_report(analyse_runs([make("none", edit=empty, state="crashed", name=HOSTILE)]), tmp_path)
    tables = {f"comparison.{kind}" for kind in ("csv", "json", "md")}
    assert {path.name for path in written} == {"index.html", *tables}
    page = (tmp_path / "index.html").read_text()
    assert "No history." in page
    assert "device not recorded" in page


@pytest.mark.slow
def test_pictures_are_for_paper_whatever_the_names(tmp_path):
    runs = [make("none", seed, edit=full, name=HOSTILE, config={"backend": HOSTILE}) for seed in (1, 2)]
    written = write_report(analyse_runs(runs), tmp_path, ("png", "svg"))
    assert len(written) == 24
    png = (tmp_path / "charts" / "train-loss.png").read_bytes()
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", png[16:24])
    assert width > 1400  # 12 cm at 300 dots an inch
    assert height > 900
    for path in written:
        if path.suffix == ".svg":
            ElementTree.fromstring(path.read_text())


def test_only_the_chosen_formats_are_written(analysis, tmp_path):
    write_report(analysis, tmp_path, ("md",))
    assert [path.name for path in tmp_path.iterdir()] == ["comparison.md"]
