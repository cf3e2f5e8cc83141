"""The comparison as a table: what its cells say, where marks lie, and how a terminal shows it."""

import json

import pytest
from report.outputs import flat, outputs, printed
from support.fakes import full, make, put
from support.known_runs import BASE, FAST, FASTER, SAME, SLOW, SPEED, less, runs

from ampcompare import analyse_runs, metrics
from ampcompare.precision.registry import REGISTRY
from ampcompare.report.charts import charts_of
from ampcompare.report.comparison_table import comparison_table, runs_table
from ampcompare.report.text_renderer import MAX_WORD, SHOWN_CAVEATS

RECORDS = [
    *runs("none", BASE),
    *runs("native", SAME, FAST),
    *runs("apex_o1", less(1.2), (1.8, 1.82, 1.85, 1.8, 1.81)),
    *runs("fp16", SAME, FASTER, failed=(1, 2, 4)),
]
MEMORY, ENERGY = "memory/peak_mib", "energy/joules_per_image"


def rows_of(made, **options) -> dict:
    """Return the cells of each row of the table, by the row's label."""
    return {row.label: row.cells for row in comparison_table(analyse_runs(made, **options)).rows}


def without(records, *keys: str):
    for run in records:
        for key in keys:
            run.logged.pop(key, None)
            run.summary.pop(key, None)
    return records


def test_the_baseline_is_shown_as_it_is_and_others_beside_it():
    analysis = analyse_runs([*RECORDS, *runs("none", SAME, arms=["first"] * len(SAME))])
    table = comparison_table(analysis)
    base, control, native, slow, failed = table.rows
    assert (base.label, control.label) == ("fp32 (none)", "fp32 (none), A/A control")
    assert table.columns[0].head == "Throughput relative to fp32"
    shown = [(c.text, c.unit, c.span, c.mark) for c in base.cells.values()]
    assert shown == [("40.8", "images/s", "", None), ("9,200", "MiB", "", None), ("93.20%", "", "", None)]
    speed = native.cells["speed"]
    assert (speed.text, speed.span, speed.also) == ("1.90×", "CI 1.90 to 1.91", "77.6 images/s")
    answers = [speed.answer, native.cells["quality"].answer, slow.cells["quality"].answer]
    assert answers == ["faster", "equivalent", "worse"]
    assert failed.runs == "2 of 5 runs, 3 failed; failure rate: 95% CI 15% to 95%"
    tones = [[part.tone for part in row.badge] for row in (base, native, slow, failed)]
    assert tones == [["base"], ["good", "good"], ["bad", "bad"], ["bad"]]


TOO_FEW = "a confidence interval needs at least 3 runs (n = 2)"


def test_below_three_runs_a_side_all_outputs_say_that_they_cannot_tell():
    made = [*runs("none", BASE[:2]), *runs("native", SAME[:2], FAST)]
    cell = rows_of(made)["native"]["speed"]
    assert (cell.text, cell.span, cell.answer) == ("1.90×", "range 1.85 to 1.95", "no verdict")
    assert (cell.why, cell.mark.has_interval) == (TOO_FEW, False)
    texts = outputs(analyse_runs(made))
    for text in (flat(texts["terminal"]), flat(texts["md"])):
        assert "no verdict for native (n = 2)" in text
        assert TOO_FEW in text
        assert "paired" not in text
    group = json.loads(texts["json"])["groups"][1]
    speedup = group["compared"]["speedup"]
    assert (group["verdict"], speedup["low"], speedup["shown"]) == ("inconclusive", None, [])


def test_a_column_is_there_where_a_value_was_recorded():
    assert [*rows_of(RECORDS, target=0.93)["native"]] == ["speed", "memory", "quality", "time"]
    (cells,) = rows_of(without(runs("none", BASE), metrics.PEAK_MEMORY)).values()
    assert [*cells] == ["speed", "quality"]
    everything = [make(b, seed, edit=full) for b in ("none", "native") for seed in (1, 2, 3)]
    table = comparison_table(analyse_runs(everything, target=0.93))
    assert [column.head for column in table.columns][3:] == ["Energy per image", "Time to 93.00%"]
    assert table.rows[1].cells["energy"].text.startswith("+25.0")


def test_time_to_target_is_the_mean_that_its_ratio_is_of():
    """A mean and a median stood side by side: 26 min 56 s of 16 min 11 s."""
    found = rows_of(RECORDS, target=0.93)
    base, native, slow = (found[label]["time"] for label in ("fp32 (none)", "native", "apex_o1"))
    assert (base.text, native.also, slow.text) == ("10 min 24 s", "5 min 28 s", "not reached")
    assert native.mark.value == pytest.approx((5 * 60 + 28.42) / (10 * 60 + 24), rel=1e-4)


def test_a_marker_is_hollow_in_every_column_if_its_interval_contains_no_change():
    made = [*runs("none", BASE), *runs("native", SAME, (36, 44, 43, 41, 40)), *runs("fp16", less(1.2), FAST)]
    for number, run in enumerate(made):
        noise, is_lower = number * 7 % 5, number >= 10
        run.summary[MEMORY] = 9000.0 + noise - 4000 * is_lower
        put(run, ENERGY, 0.32 + noise / 100 - 0.2 * is_lower)  # of which nothing is claimed
    table = comparison_table(analyse_runs(made))
    assert [column.key for column in table.columns] == ["speed", "memory", "quality", "energy"]
    for column in table.columns:
        cells = [row.cells[column.key] for row in table.rows[1:]]
        contains = [cell.mark.low <= column.run_metric.null <= cell.mark.high for cell in cells]
        assert [cell.is_open for cell in cells] == contains == [True, False], column.key


def test_a_run_is_shown_as_it_was_recorded():
    recorded = make("none", 1.0, problems=("Torn at byte 33.",))
    heads, *rows = runs_table(analyse_runs([recorded, make("native", name="a\x1b[31mb", state="failed")]))
    first, second = (dict(zip(heads, row, strict=True)) for row in rows)
    assert (first["seed"], first["problems"], first["peak MiB"]) == ("1", "Torn at byte 33.", "9,200")
    assert second["outcome"].startswith("failed: ")
    assert "\x1b" not in second["run"]


def test_the_terminal_shows_the_table_in_80_columns_and_the_gravest_caveats():
    slow = [make("native", seed, config={"backend": "native_bf16"}) for seed in (1, 2)]
    for run in slow:
        run.summary[SPEED] = 1.0
    for records in (RECORDS, [*RECORDS, *slow]):
        lines = printed(analyse_runs(records)).splitlines()
        assert max(map(len, lines)) <= 80
        assert "…" not in "".join(lines)
    assert any(line.startswith("native_bf16 ") for line in lines)
    assert max(map(len, REGISTRY)) <= MAX_WORD
    short = analyse_runs([*runs("native", BASE, config={"backend": "bf16"}), *runs("fp16", SAME)], "bf16")
    assert any(line.startswith("Backend ") for line in printed(short).splitlines())


def test_the_terminal_shows_the_gravest_caveats():
    broken = runs("none", BASE, failed=(1,), problems=("Torn.",))
    analysis = analyse_runs([*broken, *runs("native", SAME, state="running"), *runs("fp16", [0.1] * 5)])
    text = flat(printed(analysis))
    shown = [flat(caveat) in text for caveat in analysis.caveats]
    assert shown == [True] * SHOWN_CAVEATS + [False] * (len(shown) - SHOWN_CAVEATS)
    assert not all(shown)


def test_noise_does_not_fill_an_axis():
    """The interval of a noise of 0.2% takes less than a quarter of the axis."""
    noise = 0.002
    made = [*runs("none", BASE), *runs("native", SAME, [SLOW[n] * (1 + noise * (-1) ** n) for n in range(5)])]
    for number, run in enumerate(made):
        factor = 1 + noise * (number % 3 - 1) / 2
        run.summary |= {MEMORY: 9000.0 * factor, "eval/loss": 2.0 * factor}
    for options in ({}, {"metric": "eval/loss"}):  # a loss has no margin
        drawn = charts_of(analyse_runs(made, **options))
        for name in ("forest-speed", "forest-memory", "forest-quality"):
            (row,) = drawn[name]["data"]["values"]
            first, last = drawn[name]["layer"][-1]["encoding"]["x"]["scale"]["domain"]
            assert row["high"] - row["low"] < 0.25 * (last - first), name
