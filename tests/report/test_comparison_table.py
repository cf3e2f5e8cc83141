"""The comparison as a table: what its cells say, where marks lie, and that all outputs show the same."""

import csv
import io
import json
import math
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console
from support.fakes import full, make
from support.known_runs import BASE, FAST, FASTER, SAME, SLOW, SPEED, less, runs
from support.training import task_of

from ampcompare import analyse_runs, metrics
from ampcompare.analysis.statistics.estimate import Estimate
from ampcompare.precision.registry import REGISTRY
from ampcompare.report.charts import charts_of
from ampcompare.report.charts.forest import axis_ends
from ampcompare.report.comparison_table import comparison_table, runs_table
from ampcompare.report.exports import COMPARED, to_csv, to_json
from ampcompare.report.text_renderer import MAX_WORD, print_table, to_markdown

RECORDS = [
    *runs("none", BASE),
    *runs("native", SAME, FAST),
    *runs("apex_o1", less(1.2), (1.8, 1.82, 1.85, 1.8, 1.81)),
    *runs("fp16", SAME, FASTER, failed=(1, 2, 4)),
]
ENDS = st.tuples(*[st.floats(-50, 50)] * 3).map(sorted)


def printed(analysis, width: int = 80) -> list[str]:
    screen = io.StringIO()
    print_table(analysis, Console(file=screen, width=width))
    return screen.getvalue().splitlines()


def rows_of(analysis) -> dict:
    return {row.label: row for row in comparison_table(analysis).rows}


def flat(text: str) -> str:
    return " ".join(text.replace("\\", "").split())


@given(st.lists(ENDS, min_size=1, max_size=5), st.booleans())
@example([(0.0, 0.0, 2.2e-16)], True)
def test_an_axis_holds_no_change_and_every_interval_whole(ends, log):
    shown = math.exp if log else float
    marks = [Estimate(shown(middle), (shown(low), shown(high)), 1) for low, middle, high in ends]
    null = 1.0 if log else 0.0
    first, last = axis_ends(marks, null, log=log)
    assert first < null < last
    assert all(first < mark.value < last for mark in marks)
    if not log:
        assert all(first < end < last for mark in marks for end in mark.span)


def test_the_head_of_the_first_column_is_not_broken_above_short_labels():
    analysis = analyse_runs(
        [*runs("native", BASE, config={"backend": "bf16"}), *runs("fp16", SAME, FAST)], "bf16"
    )
    assert max(map(len, rows_of(analysis))) < len("Backend")
    assert any(line.startswith("Backend ") for line in printed(analysis))


TOO_FEW = "a confidence interval needs at least 3 runs (n = 2)"


def test_the_baseline_is_shown_as_it_is_and_others_beside_it():
    base, native, slow, failed = rows_of(analyse_runs(RECORDS)).values()
    cells = [base.cells[key] for key in ("speed", "memory", "quality")]
    shown = [(c.text, c.unit, c.span, c.mark) for c in cells]
    assert shown == [("40.8", "images/s", "", None), ("9,200", "MiB", "", None), ("93.20%", "", "", None)]
    speed = native.cells["speed"]
    assert (speed.text, speed.span, speed.also) == ("1.90×", "CI 1.90 to 1.91", "77.6 images/s")
    told = [speed, native.cells["quality"], slow.cells["quality"]]
    assert [cell.answer for cell in told] == ["faster", "equivalent", "worse"]
    assert failed.runs == "2 of 5 runs, 3 failed; failure rate: 95% CI 15% to 95%"
    tones = [[part.tone for part in row.badge] for row in (base, native, slow, failed)]
    assert tones == [["base"], ["good", "good"], ["bad", "bad"], ["bad"]]


def test_below_three_runs_a_side_all_outputs_say_that_they_cannot_tell():
    analysis = analyse_runs([*runs("none", BASE[:2]), *runs("native", SAME[:2], FAST)])
    cell = rows_of(analysis)["native"].cells["speed"]
    assert (cell.text, cell.span, cell.answer) == ("1.90×", "range 1.85 to 1.95", "no verdict")
    assert (cell.why, cell.mark.has_interval) == (TOO_FEW, False)
    because = f"No verdict: throughput, peak memory and accuracy of native, because {TOO_FEW}"
    for text in (flat("\n".join(printed(analysis))), flat(to_markdown(analysis))):
        assert "Accuracy: no verdict for native (n = 2). Speed: no verdict for native." in text
        assert because in text
        assert "paired" not in text
    content = json.loads(to_json(analysis))["groups"][1]
    assert content["verdict"] == "inconclusive"
    speedup = content["compared"]["speedup"]
    assert (speedup["low"], speedup["why"], speedup["shown"]) == (None, TOO_FEW, [])
    assert speedup["method"] == "n = 2, no interval"


def test_what_is_not_compared_is_not_said_to_be_missing():
    other = [*runs("none", BASE, device="Another"), *runs("native", SAME, FAST)]
    cell = rows_of(analyse_runs(other))["native"].cells["speed"]
    assert (cell.text, cell.unit, cell.mark) == ("77.6", "images/s", None)
    assert cell.answer == "not compared"
    without = runs("native", SAME, FAST)
    for run in without:
        for key in (metrics.THROUGHPUT, metrics.THROUGHPUT_MEDIAN):
            run.logged.pop(key, None)
            run.summary.pop(key, None)
    cell = rows_of(analyse_runs([*runs("none", BASE), *without]))["native"].cells["speed"]
    assert (cell.text, cell.answer) == ("–", "")


def test_the_baseline_none_is_called_fp32_where_people_read_it_and_none_in_files():
    analysis = analyse_runs([*RECORDS, *runs("none", SAME, arms=["first"] * len(SAME))])
    table = comparison_table(analysis)
    assert [row.label for row in table.rows][:2] == ["fp32 (none)", "fp32 (none), A/A control"]
    assert table.columns[0].head == "Throughput relative to fp32"
    assert [group["label"] for group in json.loads(to_json(analysis))["groups"]][:2] == [
        "none",
        "none again (A/A)",
    ]


def test_a_column_without_a_value_is_left_out():
    made = [*runs("none", BASE), *runs("native", SAME, FAST)]
    for run in made:
        run.logged.pop(metrics.PEAK_MEMORY, None)
        run.summary.pop(metrics.PEAK_MEMORY, None)
    assert "memory" not in [column.key for column in comparison_table(analyse_runs(made)).columns]


def test_energy_and_time_to_target_have_columns_where_they_were_recorded():
    keys = [column.key for column in comparison_table(analyse_runs(RECORDS)).columns]
    assert keys == ["speed", "memory", "quality"]
    analysis = analyse_runs(RECORDS, target=0.93)
    assert [column.key for column in comparison_table(analysis).columns] == [*keys, "time"]
    assert rows_of(analysis)["apex_o1"].cells["time"].text == "not reached"
    runs_with_all = [make(b, seed, edit=full) for b in ("none", "native") for seed in (1, 2, 3)]
    everything = analyse_runs(runs_with_all, target=0.93)
    table = comparison_table(everything)
    assert [column.head for column in table.columns][3:] == ["Energy per image", "Time to 93.00%"]
    assert table.rows[1].cells["energy"].text.startswith("+25.0")


@pytest.mark.parametrize(("joules", "is_open"), [((0.31, 0.35, 0.32), True), ((0.21, 0.22, 0.2), False)])
def test_the_mark_of_a_figure_without_a_claim_is_hollow_where_its_interval_holds_no_change(joules, is_open):
    def energy(value: float):
        def edit(plan):
            for row in plan["rows"]:
                row["energy/joules_per_image"] = value
            plan["summary"]["energy/joules_per_image"] = value

        return edit

    base = [make("none", seed, edit=energy(value)) for seed, value in enumerate((0.32, 0.33, 0.34))]
    other = [make("native", seed, edit=energy(value)) for seed, value in enumerate(joules)]
    cell = rows_of(analyse_runs([*base, *other]))["native"].cells["energy"]
    assert cell.mark.has_interval
    assert cell.is_open == is_open


def test_time_to_target_is_the_mean_that_its_ratio_is_of():
    """A mean and a median stood side by side: 26 min 56 s of 16 min 11 s."""
    analysis = analyse_runs(RECORDS, target=0.93)
    base, native = (rows_of(analysis)[label] for label in ("fp32 (none)", "native"))
    assert (base.cells["time"].text, native.cells["time"].also) == ("10 min 24 s", "5 min 28 s")
    assert native.cells["time"].mark.value == pytest.approx((5 * 60 + 28.42) / (10 * 60 + 24), rel=1e-4)


@pytest.mark.slow
def test_every_output_shows_the_same_figures():
    from ampcompare.report.page.render import render_page

    analysis = analyse_runs(RECORDS)
    texts = {
        "terminal": flat("\n".join(printed(analysis, 200))),
        "markdown": flat(to_markdown(analysis)),
        "page": flat(re.sub(r"<[^>]*>", "", render_page(analysis).decode().partition("<table")[2])),
    }
    for row in comparison_table(analysis).rows:
        for cell in row.cells.values():
            for text in (cell.text, cell.span, cell.also, *(part.text for part in row.badge)):
                assert [name for name, output in texts.items() if text not in output] == []
    groups = json.loads(to_json(analysis))["groups"]
    table = list(csv.DictReader(io.StringIO(to_csv(analysis))))
    for group, line in zip(groups, table, strict=True):
        found = analysis.comparison(group["label"])
        for name, question in COMPARED.items() if found else ():
            if estimate := found.estimates.get(question):
                told = group["compared"][name]
                assert (told["value"], told["low"], told["high"]) == (estimate.value, *estimate.ends)
                assert float(line[name]) == estimate.value
                assert line[f"{name}_low"] == ("" if estimate.low is None else str(estimate.low))


def test_a_run_is_shown_as_it_was_recorded():
    run = make("none", 1.0)
    run.problems.append("Torn at byte 33.")
    heads, *rows = runs_table(analyse_runs([run, make("native", name="a\x1b[31mb", state="failed")]))
    first, second = (dict(zip(heads, row, strict=True)) for row in rows)
    assert (first["seed"], first["problems"]) == ("1", "Torn at byte 33.")
    assert first["peak MiB"] == "9,200"
    assert second["outcome"].startswith("failed: ")
    assert "\x1b" not in second["run"]


def test_the_terminals_table_fits_80_columns_and_cuts_no_figure_and_no_name():
    slow = [make("native", seed, config={"backend": "native_bf16"}) for seed in (1, 2)]
    for run in slow:
        run.summary[SPEED] = 1.0
    for records in (RECORDS, [*RECORDS, *slow]):
        lines = printed(analyse_runs(records))
        assert max(len(line) for line in lines) <= 80
        assert "…" not in "".join(lines)
    assert any(line.startswith("native_bf16 ") for line in lines)
    assert max(len(name) for name in REGISTRY) <= MAX_WORD


@pytest.mark.parametrize("recorded_name", ["", "bad.py:labels_high"])  # the latter by 0.4.0
def test_a_score_is_named_by_its_last_part_and_data_without_their_folder(recorded_name, tmp_path):
    score = f"{tmp_path}/bad.py:labels_high"
    (tmp_path / "bad.py").write_text("def labels_high(o, t):\n    return o\nlabels_high.better = 'lower'\n")
    recorded = task_of(f"task.metrics=[{score}]").record(targets=None)
    if recorded_name:
        recorded["task"]["metrics"]["eval/labels_high"]["words"] = recorded_name

    def edit(plan):
        plan["summary"]["environment"] |= recorded
        plan["rows"] = [row | {"eval/labels_high": 0.25} for row in plan["rows"]]

    task, data = {"metrics": [score]}, {"source": f"{tmp_path}/my_data.py:build"}
    runs = [
        make(backend, seed, edit=edit, config={"task": task, "data": data})
        for backend in ("none", "native")
        for seed in (1, 2, 3)
    ]
    analysis = analyse_runs(runs)
    text = "\n".join(printed(analysis, 120))
    assert comparison_table(analysis).columns[2].head == "labels_high"
    assert "my_data.py:build" in text
    assert "labels high" not in text
    assert str(tmp_path) not in text


NOISE = (0.004, -0.003, 0.001, 0.002, -0.0042)  # of an accuracy of 0..1; the mean is -0.004 points


@pytest.mark.parametrize("points", [0.0, 0.0037, -0.3, 2.0, -30.0])
@pytest.mark.parametrize("spread", [0.001, 0.02, 1.0, 3.0])
def test_a_difference_has_as_many_decimals_as_its_interval(points, spread):
    """In the cell, the badge's long form and the gate: `+0.31 (CI −0.20 to +0.83)`."""
    changed = [base + spread * noise + points / 100 for base, noise in zip(BASE, NOISE, strict=True)]
    records = [*runs("none", BASE), *runs("native", changed)]
    cell = rows_of(analyse_runs(records))["native"].cells["quality"]
    assert cell.mark is not None
    numbers = re.findall(r"\d+(?:\.\d+)?", f"{cell.text} {cell.span}")
    assert len(numbers) == 3
    assert len({len(number.partition(".")[2]) for number in numbers}) == 1
    decimals = len(numbers[0].partition(".")[2])
    low, high = cell.mark.ends
    # One digit of the width of the interval, and at least two decimals; more only to tell an end from a mark.
    marks = (0.0, 0.5, -0.5)
    by_width = max(2, -math.floor(math.log10(high - low)))
    is_clear = all(round(end, by_width) != mark for end in (low, high) for mark in marks)
    assert decimals == by_width if is_clear else decimals > by_width
    rounded = [float(number) for number in numbers]
    assert rounded == [round(abs(value), decimals) for value in (cell.mark.value, low, high)]
    gate = analyse_runs(records, require=["native: equivalent within 0.4"]).gate_results[0].why
    shown = re.search(r"([+−±][\d.]+) points \(.* CI ([+−±][\d.]+) to ([+−±][\d.]+)\)", gate)
    assert shown is not None
    assert len({len(text.partition(".")[2]) for text in shown.groups()}) == 1


@pytest.mark.parametrize("noise", [0.0005, 0.001, 0.002])
def test_noise_does_not_fill_an_axis(noise: float):
    """The interval of a noise of up to 0.2% takes less than a quarter of the axis."""
    measured = [SLOW[seed] * (1 + noise * (-1) ** seed) for seed in range(5)]
    made = [*runs("none", BASE), *runs("native", SAME, measured)]
    for number, run in enumerate(made):
        run.summary["memory/peak_mib"] = 9000.0 * (1 + noise * (number % 3 - 1) / 2)
        run.summary["eval/loss"] = 2.0 * (1 + noise * (number % 3 - 1) / 2)
    for options in ({}, {"metric": "eval/loss"}):  # a loss has no margin
        drawn = charts_of(analyse_runs(made, **options))
        for name in ("forest-speed", "forest-memory", "forest-quality"):
            (row,) = drawn[name]["data"]["values"]
            first, last = drawn[name]["layer"][-1]["encoding"]["x"]["scale"]["domain"]
            assert row["high"] - row["low"] < 0.25 * (last - first), name


def test_a_marker_is_hollow_in_every_column_if_its_interval_contains_no_change():
    noisy = (36, 44, 43, 41, 40)
    made = [*runs("none", BASE), *runs("native", SAME, noisy), *runs("fp16", less(1.2), FAST)]
    for number, run in enumerate(made):
        run.summary["memory/peak_mib"] = 9000.0 + (number * 7 % 5) - 4000.0 * (number >= 10)
    analysis = analyse_runs(made)
    table = comparison_table(analysis)
    kinds = set()
    for row in table.rows[1:]:
        for column in table.columns:
            mark = row.cells[column.key].mark
            if mark is None or not mark.has_interval:
                continue
            null = column.run_metric.null
            contains = mark.low <= null <= mark.high
            assert row.cells[column.key].is_open == contains, (row.label, column.key)
            kinds.add((column.key, contains))
    assert {("quality", True), ("quality", False), ("speed", True), ("speed", False)} <= kinds
    assert {("memory", True), ("memory", False)} <= kinds
