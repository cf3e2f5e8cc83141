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
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console
from support.fakes import full, make

from ampcompare import analyse_runs
from ampcompare.report.charts import charts_of
from ampcompare.report.charts.vega import picture
from ampcompare.report.exports import to_csv, to_json
from ampcompare.report.pipeline import write_report
from ampcompare.report.text_renderer import print_table, to_markdown

ODD = (float("nan"), float("inf"), 10**400, "x", None, True, 0.0, -1.0, 1e-300, 1e308, 5e-324, 40.0, 41.0)
FIGURES = """throughput/images_per_second_median eval/accuracy memory/peak_mib time/train_seconds
amp/skipped_steps""".split()
RUN = st.tuples(
    st.sampled_from(("none", "native", "fp16")),
    st.dictionaries(st.sampled_from(FIGURES), st.sampled_from(ODD) | st.floats()),
)
HOSTILE = "=1+1|</script>\x1b*🚀"


@pytest.fixture(scope="module")
def analysis():
    return analyse_runs([make(b, seed, edit=full) for b in ("none", "native") for seed in (1, 2, 3)])


def test_json_holds_values_intervals_what_they_rest_on_and_runs(analysis):
    content = json.loads(to_json(analysis))
    base, native = content["groups"]
    speedup = native["compared"]["speedup"]
    assert speedup["value"] == pytest.approx(1.9)
    assert speedup["low"] <= speedup["value"] <= speedup["high"]
    assert (speedup["n"], speedup["method"], speedup["shown"]) == (3, "n = 3, paired by seed", ["faster"])
    assert speedup["confidence"] == content["confidence"] == native["figures"]["quality"]["confidence"]
    assert set(native["compared"]["quality_difference"]["next_run"]) == {"low", "high"}
    assert base["compared"] is None
    others = ("failed", "stopped", "preempted", "running", "queued", "refused")
    assert base["outcomes"] == {"finished": 3, **dict.fromkeys(others, 0)}
    assert [run["seed"] for run in content["runs"]] == [1, 2, 3, 1, 2, 3]
    assert content["verdict"] == analysis.headline


def test_csv_is_one_row_a_group_with_all_digits_and_no_prediction(analysis):
    rows = list(csv.DictReader(io.StringIO(to_csv(analysis))))
    assert [row["group"] for row in rows] == ["none", "native"]
    assert float(rows[1]["speedup"]) == analysis.comparison("native").speedup
    assert rows[1]["speedup_method"] == "n = 3, paired by seed"
    assert (rows[0]["speedup"], rows[0]["verdict"]) == ("", "baseline")
    assert not any("next" in name for name in rows[0])


def test_markdown_is_a_table_with_its_caption_below_the_finding(analysis):
    text = to_markdown(analysis)
    assert text.startswith(f"# {analysis.headline}")
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 4
    assert len({line.count("|") for line in table}) == 1
    assert text.count("CI: 95% confidence interval, paired by seed.") == 1


@pytest.mark.parametrize("name", [HOSTILE, "a\x1b[31mred", "\u202eRTL\u202c", "a\x00b\r\nc"])
def test_hostile_names_stay_text_without_control_characters_in_every_table_and_on_the_terminal(name):
    runs = [make(b, seed, steps=20, epochs=2) for b in ("none", "native") for seed in range(2)]
    failed = make("native", 7, state="failed", name=name, steps=20, epochs=2)
    failed.config["seed"] = failed.config["model"] = failed.config["backend"] = name
    analysis, screen = analyse_runs([*runs, failed], group_by=("backend", "model")), io.StringIO()
    print_table(analysis, Console(file=screen, width=80))
    text = to_markdown(analysis)
    for shown in (text, screen.getvalue()):
        assert any(
            part in shown for part in ("1+1", "31mred", "RTL", "b  c", "b c", "b\N{REPLACEMENT CHARACTER}")
        )
        assert all(c.isprintable() or c == "\n" for c in shown)
    assert "</script>" not in text.replace("\\<", "")
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") - line.count("\\|") for line in table}) == 1
    groups = [row["group"] for row in csv.DictReader(io.StringIO(to_csv(analysis)))]
    assert not [group for group in groups if group.startswith("=")]  # which a spreadsheet computes
    assert name in [run["name"] for run in json.loads(to_json(analysis))["runs"]]


@pytest.mark.slow
@example([("none", {"memory/peak_mib": 5e-324}), ("native", {"memory/peak_mib": 1.0})], None)
@settings(max_examples=200)
@given(st.lists(RUN, min_size=2, max_size=9), st.sampled_from((None, 0.5, 1e-300, 99.0)))
def test_any_figures_make_every_output_and_none_is_shown_that_is_no_number(made, margin):
    def record(number: int, backend: str, figures: dict):
        def edit(plan):
            plan["rows"] = [{k: v for k, v in row.items() if k not in FIGURES} for row in plan["rows"]]
            plan["summary"] |= figures

        return make(backend, number % 4, id=f"r{number}", edit=edit, steps=20, epochs=2)

    analysis = analyse_runs([record(n, *one) for n, one in enumerate(made)], margin=margin)
    json.loads(to_json(analysis), parse_constant=pytest.fail)
    screen = io.StringIO()
    print_table(analysis, Console(file=screen, width=80))
    for text in (to_markdown(analysis), to_csv(analysis), screen.getvalue()):
        assert not any(odd in text for odd in (" nan", "(nan", "inf×", " inf "))


@pytest.mark.slow
def test_run_of_which_nothing_is_known_makes_every_file(tmp_path):
    def empty(plan):
        plan["rows"], plan["summary"] = [], {}

    written = write_report(analyse_runs([make("none", edit=empty, state="failed", name=HOSTILE)]), tmp_path)
    tables = {f"comparison.{kind}" for kind in ("csv", "json", "md")}
    assert {path.name for path in written} == {"index.html", *tables}
    assert "No history." in (tmp_path / "index.html").read_text()


@pytest.mark.slow
def test_pictures_are_for_paper_whatever_the_names(tmp_path):
    runs = [make("none", seed, edit=full, name=HOSTILE, config={"backend": HOSTILE}) for seed in (1, 2)]
    written = write_report(analyse_runs(runs), tmp_path, ("png", "svg"))
    assert {path.suffix for path in written} == {".png", ".svg"}
    png = (tmp_path / "charts" / "train-loss.png").read_bytes()
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", png[16:24])
    assert width > 1400  # 12 cm at 300 dots an inch
    assert height > 600
    for path in written:
        if path.suffix == ".svg":
            ElementTree.fromstring(path.read_text())


@pytest.mark.slow
def test_pictures_from_the_cache_are_those_that_are_drawn(tmp_path, monkeypatch):
    monkeypatch.setenv("AMPCOMPARE_CACHE", str(tmp_path / "cache"))
    one, other = (
        analyse_runs([make("none", seed, edit=full) for seed in seeds]) for seeds in ((1, 2), (3, 4))
    )

    def pictures(analysis, name):
        written = write_report(analysis, tmp_path / name, ("png", "svg"))
        return {path.name: path.read_bytes() for path in written}

    first = pictures(one, "first")
    assert first == pictures(one, "second")
    assert first["train-loss.png"] == picture(charts_of(one)["train-loss"], "png")
    assert first["train-loss.svg"] != pictures(other, "other")["train-loss.svg"]
    for path in (tmp_path / "cache" / "pictures").rglob("*.pkl"):
        path.write_bytes(b"torn")
    assert first == pictures(one, "third")


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
