"""Each chart as a reader gets it: valid, in the colours of its backends, axes that end where the lines do."""

import json
import math
from xml.etree import ElementTree

import numpy as np
import pytest
import vl_convert
from support import known_runs
from support.fakes import full, make, put
from support.publication_files import peaks, throughput, write_publication

from ampcompare import analyse_runs
from ampcompare.report.charts import charts_of
from ampcompare.report.charts.vega import VEGA_LITE, Spec, draw, for_paper
from ampcompare.report.comparison_table import comparison_table

BACKENDS = ("none", "native", "apex_o1")
FORESTS = {"forest-speed", "forest-memory", "forest-quality", "forest-energy"}
UNSCALED = {"quality", "quality-time", "train-loss", "throughput"}
SCALED = {"loss-scale", "underflow", "lost-updates"}
NEAR = 40_000.0  # of fp16's end: worth a chart


def rich(plan):
    full(plan)
    for row in plan["rows"]:
        if "activation/max_abs/conv1" in row:
            row["activation/max_abs/conv1"] = row["activation/max_abs"] = NEAR


def charts(*runs, **options):
    return charts_of(analyse_runs(runs, **options))


@pytest.fixture(scope="module")
def every(tmp_path_factory):
    paper = write_publication(tmp_path_factory.mktemp("paper"), {"speed": throughput(), "memory": peaks()})
    runs = [make(b, seed, edit=rich, skip_steps=(10, 20)) for b in ("none", "native") for seed in (1, 2, 3)]
    return charts(*runs, reproduce=str(paper))


def values_of(spec, *keys) -> dict:
    """Return the rows of a chart's data by their values under these keys."""
    return {
        tuple(row[key] for key in keys) if keys[1:] else row[keys[0]]: row for row in spec["data"]["values"]
    }


def drawn(*runs, name="train-loss", **options) -> dict:
    """Return the data of a chart of runs of one group."""
    (row,) = charts(*runs, **options)[name]["data"]["values"]
    return row


def domain(spec) -> list[float]:
    return spec["layer"][-1]["encoding"]["x"]["scale"]["domain"]


def edited(key: str, change):
    """Return an edit that changes the values under a key: a number is put in their place."""

    def edit(plan):
        for row in plan["rows"]:
            if key in row:
                row[key] = change(row[key]) if callable(change) else change

    return edit


def first(count: int | None):
    """Return an edit that keeps the first rows of a plan."""
    return lambda plan: plan.update(rows=plan["rows"][:count])


def picture(spec: Spec, kind: str) -> bytes:
    return draw(for_paper(spec), [kind])[kind]


def texts(spec) -> list[str]:
    """Return the texts of the chart's picture."""
    nodes = ElementTree.fromstring(picture(spec, "svg")).iter("{http://www.w3.org/2000/svg}text")
    return [text for node in nodes if (text := "".join(node.itertext()))]


def test_every_chart_is_valid_and_its_picture_has_title_legend_and_setting(every):
    assert every.keys() == UNSCALED | SCALED | FORESTS | {"activations", "differences", "published"}
    for name, spec in every.items():
        assert vl_convert.vegalite_to_vega(spec, vl_version=VEGA_LITE)["marks"], name
        json.dumps(spec, allow_nan=False)
        shown = texts(spec)
        assert spec["title"]["text"] in " ".join(shown), name
        assert "Test Device 9000" in " ".join(shown), name
        assert name == "published" or {"none", "native"} & {*shown}, name
    png = picture(every["quality"], "png")
    assert png.startswith(b"\x89PNG")
    assert 0.05 < len(png) / 1e6 < 2


def test_the_differences_have_a_dot_per_shared_seed_with_the_margin_on_the_axis():
    made = [*known_runs.runs("none", known_runs.BASE), *known_runs.runs("native", known_runs.SAME)]
    spec = charts(*made[:-1])["differences"]  # the last seed has no partner
    dots = {seed: row["x"] for seed, row in values_of(spec, "seed").items()}
    expected = {str(n): 100 * (known_runs.SAME[n] - known_runs.BASE[n]) for n in range(4)}
    assert dots == pytest.approx(expected, abs=1e-6)
    zone = spec["layer"][0]
    low, high = zone["encoding"]["x"]["scale"]["domain"]
    assert low < -0.5 < 0.5 < high
    assert zone["data"]["values"] == [{"low": -0.5, "high": 0.5}]


def test_the_forest_has_each_estimate_of_the_table_with_its_interval_and_is_hollow_where_nothing_is_shown():
    runs = [make(b, seed) for b in BACKENDS for seed in (1, 2, 3, 4)]
    for n, run in enumerate(runs):
        put(run, "eval/accuracy", 0.9 + 0.01 * (n * 7 % 5))
    analysis = analyse_runs(runs)
    table, specs = comparison_table(analysis), charts_of(analysis)
    for column in table.columns:
        spec = specs[f"forest-{column.key}"]
        cells = {row.label: row.cells[column.key] for row in table.rows[1:]}
        expected = {label: (c.mark.value, *c.mark.span, c.is_open) for label, c in cells.items()}
        rows = values_of(spec, "backend").items()
        assert {label: (r["x"], r["low"], r["high"], r["open"]) for label, r in rows} == expected
        hollow = picture(spec, "svg").decode().count('fill="white" stroke="#')
        assert hollow == sum(cell.is_open for cell in cells.values())
    assert specs["forest-quality"]["layer"][0]["data"]["values"] == [{"low": -0.5, "high": 0.5}]


def test_a_control_is_a_diamond_on_a_dashed_line():
    control = known_runs.runs("none", known_runs.SAME, arms=["first"] * len(known_runs.SAME))
    made = [*known_runs.runs("none", known_runs.BASE), *known_runs.runs("native", known_runs.SAME), *control]
    rows = values_of(charts(*made)["forest-quality"], "backend").items()
    looks = {label: (row["shape"], row["dash"]) for label, row in rows}
    assert looks == {"native": ("circle", (1, 0)), "fp32 (none), A/A control": ("diamond", (3, 3))}


def test_an_interval_that_leaves_the_axis_ends_in_an_arrow_and_a_range_is_dotted():
    wild = [make(b, seed) for b in ("none", "native") for seed in (1, 2, 3)]
    for run, speed in zip(wild, [40, 40.1, 40, 0.01, 90, 90000], strict=True):
        run.summary["throughput/images_per_second_median"] = speed
    spec = charts(*wild)["forest-speed"]
    low, high = domain(spec)
    rows = [row for layer in spec["layer"] for row in layer.get("data", {}).get("values", [])]
    arrows = [(row["x"], row["shape"]) for row in rows if "shape" in row]
    (row,) = spec["data"]["values"]
    assert arrows == [(row["low"], "triangle-left"), (row["high"], "triangle-right")]
    assert row["low"] <= low < 1 < high <= row["high"]
    of_two = charts(*wild[:2], *wild[3:5])["forest-speed"]
    assert of_two["data"]["values"][0]["dash"] == (2, 5)
    assert 'stroke-dasharray="2,5"' in picture(of_two, "svg").decode()


GROWN = "native: from 65,536 to 131,072 with 1 logged increase, no step skipped"
STEADY = {"skip_steps": ()}
SKIPPING = {"steps": 400}


def late(plan):
    plan["config"]["precision"] = {"init_scale": 65536.0}
    plan["rows"] = [row for row in plan["rows"] if row["global_step"] > 100]


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        # 65,536 halved in the first step and twice more to 8,192, doubled at steps 100, 200 and 300.
        ([SKIPPING], "native: from 32,768 to 65,536 with 3 logged increases, 3 of 400 steps skipped. "),
        ([STEADY | {"edit": late}], GROWN),  # growth before the first row counts
        # Scale, growth and skipped steps are of one run, that of the lowest seed.
        ([SKIPPING | {"seed": 10}, STEADY | {"seed": 9}], GROWN + " (3 in another run)."),
    ],
)
def test_the_loss_scale_is_told_of_one_run_of_each_scaled_backend(made, expected: str):
    made = [make("none"), *(make("native", **options) for options in made)]
    sentence = analyse_runs(made).numerics["scale"]
    assert sentence.startswith("Loss scale with native: ")
    assert expected in sentence
    (line,) = charts(*made)["loss-scale"]["data"]["values"]
    assert max(line["y"]) == (131_072 if GROWN in sentence else 65_536)


def test_skipped_steps_are_marked_on_the_scale_they_led_to_on_a_log2_axis():
    spec = charts(*(make(b, edit=rich, skip_steps=(10, 15)) for b in ("none", "native")))["loss-scale"]
    y = spec["layer"][0]["encoding"]["y"]["scale"]
    assert (y["type"], y["base"]) == ("log", 2)
    assert "16,384" in texts(spec)
    (row,) = next(layer["data"]["values"] for layer in spec["layer"] if "data" in layer)
    assert [row["x"], row["y"], row["new"], row["total"]] == [[10, 15], [32768, 16384], [1, 1], [1, 2]]
    assert "✕" in spec["title"]["subtitle"]


def test_time_axis_is_in_the_unit_that_its_words_name():
    longer = edited(
        "time/elapsed_seconds", lambda value: value * 4 * 3600 / 624
    )  # of 200 steps at 40 images/s
    spec = charts(make("none", edit=longer))["quality-time"]
    assert "by hours of" in spec["title"]["subtitle"]
    assert spec["data"]["values"][0]["x"][-1] == pytest.approx(4, rel=0.01)


def test_each_layer_has_its_largest_activation_in_the_order_of_the_network():
    def spoil(plan):
        rich(plan)
        seen = [row for row in plan["rows"] if "activation/max_abs/layer10" in row]
        for row, value in zip(seen, (65000.0, math.inf), strict=False):
            row["activation/max_abs/layer10"] = value

    spec = charts(make("native", 1, edit=rich), make("native", 2, edit=spoil))["activations"]
    assert {layer: row["x"] for layer, row in values_of(spec, "layer").items()} == {
        "conv1": NEAR,
        "layer10": 65000,
    }
    assert "infinite values left out" in spec["title"]["subtitle"]
    assert spec["layer"][-1]["encoding"]["y"]["sort"] == ["conv1", "layer10"]


def test_a_line_is_the_mean_of_the_runs_between_the_lowest_and_the_highest():
    row = drawn(*(make("none", seed, edit=edited("train/loss", float(seed))) for seed in (1, 2, 6)))
    assert ({*row["low"]}, {*row["y"]}, {*row["high"]}, row["of"]) == ({1}, {3}, {6}, "mean of 3 runs")
    row = drawn(run := make("native"))
    assert row["y"] == pytest.approx(run.values("train/loss"), rel=1e-4)
    assert row["of"] == "one run"


def test_runs_logged_at_other_steps_are_interpolated_as_far_as_all_of_them_go():
    def later(plan):
        edited("train/loss", 4.0)(plan)
        edited("global_step", lambda step: step + 2)(plan)

    early = make("none", 1, edit=edited("train/loss", 2.0))
    assert {*drawn(early, make("none", 2, edit=later))["y"]} == {3}
    lengths = [make("none", seed, edit=first(end)) for seed, end in ((1, 20), (2, 10), (3, None))]
    assert max(drawn(*lengths)["x"]) == 40


def test_a_logged_nan_is_a_gap_and_rows_without_a_value_are_none():
    def edit(plan):
        plan["rows"][3]["train/loss"] = "NaN"

    row = drawn(make("none", edit=edit), metric="eval/accuracy")
    assert [x for x, y in zip(row["x"], row["y"], strict=True) if y is None] == [15]


def test_a_failed_run_stretches_no_axis_and_a_clock_that_jumps_back_is_left_out():
    def clock(change):
        return edited("time/elapsed_seconds", change)

    def jumps(plan):
        plan["rows"][-1]["time/elapsed_seconds"] = 0.0

    def times(*others):
        return drawn(make("none", 1), *others, name="quality-time")["x"]

    slower = make("none", 2, edit=clock(lambda value: value + 120))
    assert times(slower) == pytest.approx([minutes + 1 for minutes in times()], abs=0.02)
    assert times(make("none", 3, state="failed", edit=clock(lambda value: value * 100))) == times()
    assert "quality-time" not in charts(make("none", edit=jumps))


def test_long_runs_are_thinned_and_the_extremes_of_what_is_left_out_stay():
    runs = [make(b, seed, steps=4000) for b in BACKENDS for seed in (1, 2, 3)]
    # The mean of the first three, 1, does not show them; that of the next three is about 11 there.
    for run, extreme in zip(runs, (50.0, -50.0, 3.0, 31.0), strict=False):
        put(run, "train/loss", np.where(np.arange(run.rows) == 401, extreme, 1.0))
    rows = charts(*runs)["train-loss"]["data"]["values"]
    assert sum(len(row["x"]) for row in rows) <= 1500
    assert (max(rows[0]["high"]), min(rows[0]["low"])) == (50, -50)
    assert max(rows[1]["y"]) > 10
    assert (rows[0]["x"][0], rows[0]["x"][-1]) == (0, 4000)
