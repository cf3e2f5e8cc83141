"""Each chart as a reader gets it: valid, in the colours of its backends, axes that end where the lines do."""

import json
import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest
import vl_convert
from support import known_runs
from support.external import several
from support.fakes import full, make, put
from support.publication_files import peaks, throughput, write_publication

from ampcompare import analyse_runs
from ampcompare.analysis.grouping.backend_info import display_name
from ampcompare.analysis.grouping.groups import Kind
from ampcompare.precision.registry import REGISTRY
from ampcompare.report.charts import charts_of
from ampcompare.report.charts.vega import VEGA_LITE, picture
from ampcompare.report.comparison_table import comparison_table
from ampcompare.report.palette import choose_styles

BACKENDS = ("none", "native", "apex_o1")
FORESTS = {"forest-speed", "forest-memory", "forest-quality", "forest-energy"}
NAMES = {
    "quality",
    "quality-time",
    "train-loss",
    "throughput",
    "loss-scale",
    "underflow",
    "lost-updates",
}
NEAR = 40_000.0  # of fp16's end: worth a chart


def rich(plan):
    full(plan)
    for row in plan["rows"]:
        if "activation/max_abs/conv1" in row:
            row["activation/max_abs/conv1"] = row["activation/max_abs"] = NEAR


def charts(*runs, **options):
    return charts_of(
        analyse_runs(runs or [make(b, seed, edit=rich) for b in BACKENDS for seed in (1, 2)], **options)
    )


@pytest.fixture(scope="module")
def every(tmp_path_factory):
    paper = write_publication(tmp_path_factory.mktemp("paper"), {"speed": throughput(), "memory": peaks()})
    runs = [make(b, seed, edit=rich, skip_steps=(10, 20)) for b in ("none", "native") for seed in (1, 2, 3)]
    return charts_of(analyse_runs(runs, reproduce=str(paper)))


def drawn(*runs, name="train-loss", **options) -> dict:
    """Return the data of a chart of runs of one group."""
    (row,) = charts(*runs, **options)[name]["data"]["values"]
    return row


def edited(**values):
    """Rows that have these, where they have these keys."""
    keys = {key.replace("_", "/", 1): value for key, value in values.items()}
    return lambda plan: [row.update({k: v}) for row in plan["rows"] for k, v in keys.items() if k in row]


def texts(spec) -> list[str]:
    """Return the texts of the chart's picture."""
    tree = ElementTree.fromstring(picture(spec, "svg"))
    return [
        text for node in tree.iter("{http://www.w3.org/2000/svg}text") if (text := "".join(node.itertext()))
    ]


def test_every_chart_is_there_and_each_is_what_vega_lite_understands(every):
    assert every.keys() == NAMES | FORESTS | {"activations", "differences", "published"}
    for name, spec in every.items():
        compiled = vl_convert.vegalite_to_vega(spec, vl_version=VEGA_LITE)
        assert compiled["marks"], name
        json.dumps(spec, allow_nan=False)


def test_the_differences_have_a_dot_per_shared_seed_with_the_margin_on_the_axis():
    made = [*known_runs.runs("none", known_runs.BASE), *known_runs.runs("native", known_runs.SAME)]
    spec = charts_of(analyse_runs(made[:-1]))["differences"]  # the last seed has no partner
    dots = {row["seed"]: row["x"] for row in spec["data"]["values"]}
    expected = {str(n): 100 * (known_runs.SAME[n] - known_runs.BASE[n]) for n in range(4)}
    assert dots == pytest.approx(expected, abs=1e-6)
    low, high = spec["layer"][0]["encoding"]["x"]["scale"]["domain"]
    assert low < -0.5
    assert high > 0.5
    assert spec["layer"][0]["data"]["values"] == [{"low": -0.5, "high": 0.5}]


def test_the_forest_has_each_estimate_of_the_table_with_its_interval_and_is_hollow_where_nothing_is_shown():
    runs = [make(b, seed) for b in BACKENDS for seed in (1, 2, 3, 4)]
    for n, run in enumerate(runs):
        put(run, "eval/accuracy", 0.9 + 0.01 * (n * 7 % 5))
    analysis = analyse_runs(runs)
    specs = charts_of(analysis)
    for column in (table := comparison_table(analysis)).columns:
        spec = specs[f"forest-{column.key}"]
        cells = {row.label: row.cells[column.key] for row in table.rows if row.cells[column.key].mark}
        rows = {row["backend"]: row for row in spec["data"]["values"]}
        assert rows.keys() == cells.keys() == {"native", "apex_o1"}
        for label, cell in cells.items():
            row = rows[label]
            assert (row["x"], row["low"], row["high"]) == (cell.mark.value, *cell.mark.span)
            assert row["open"] == cell.is_open
        ground = picture(spec, "svg").decode().count('fill="white" stroke="#')
        assert ground == sum(cell.is_open for cell in cells.values())
    zone = specs["forest-quality"]["layer"][0]["data"]["values"]
    assert zone == [{"low": -0.5, "high": 0.5}]


def test_a_control_is_a_diamond_on_a_dashed_line():
    first = known_runs.runs("none", known_runs.SAME, arms=["first"] * len(known_runs.SAME))
    made = [*known_runs.runs("none", known_runs.BASE), *known_runs.runs("native", known_runs.SAME), *first]
    rows = {row["backend"]: row for row in charts(*made)["forest-quality"]["data"]["values"]}
    looks = {label: (row["shape"], row["dash"]) for label, row in rows.items()}
    assert looks == {"native": ("circle", (1, 0)), "fp32 (none), A/A control": ("diamond", (3, 3))}


def test_an_interval_that_leaves_the_axis_ends_in_an_arrow_and_a_range_is_dotted():
    wild = [make(b, seed) for b in ("none", "native") for seed in (1, 2, 3)]
    for run, speed in zip(wild, [40, 40.1, 40, 0.01, 90, 90000], strict=True):
        run.summary["throughput/images_per_second_median"] = speed
    spec = charts(*wild)["forest-speed"]
    low, high = spec["layer"][-1]["encoding"]["x"]["scale"]["domain"]
    arrows = [
        (row["x"], row["shape"])
        for layer in spec["layer"]
        for row in layer.get("data", {}).get("values", [])
        if "shape" in row
    ]
    assert arrows == [(low, "triangle-left"), (high, "triangle-right")]
    (row,) = spec["data"]["values"]
    assert (row["low"], row["high"]) == (low, high)
    (row,) = charts(*(make(b, seed) for b in ("none", "native") for seed in (1, 2)))["forest-speed"]["data"][
        "values"
    ]
    assert row["dash"] == (2, 5)
    assert 'stroke-dasharray="2,5"' in picture(charts(*wild[:2], *wild[3:5])["forest-speed"], "svg").decode()


def test_pictures_have_title_legend_and_setting_inside(every):
    for name, spec in every.items():
        found = " ".join(texts(spec))
        assert spec["title"]["text"] in found, name
        assert "Test Device 9000" in found, name
        assert name == "published" or {"none", "native"} & set(texts(spec)), name
    png = picture(every["quality"], "png")
    assert png.startswith(b"\x89PNG")
    assert 0.05 < len(png) / 1e6 < 2


def test_charts_without_data_are_left_out():
    def empty(plan):
        plan["rows"], plan["summary"] = [], {}

    assert charts(make("none", edit=empty)) == {}


def test_numerics_are_drawn_only_where_something_happened():
    unscaled = charts(make("none"), make("none", 2))
    assert unscaled.keys() == NAMES - {"loss-scale", "underflow", "lost-updates"}


def test_the_loss_scale_is_drawn_and_told_of_every_scaled_backend_with_its_growth_and_skipped_steps():
    skipping, steady = make("native", steps=400), make("native", skip_steps=())
    assert charts(make("none"), steady)["loss-scale"]["title"]["subtitle"].endswith("no step was skipped")
    assert "✕" in charts(make("none"), skipping)["loss-scale"]["title"]["subtitle"]
    # 65,536 halved in the first step and twice more to 8,192, doubled at steps 100, 200 and 300.
    sentence = analyse_runs([make("none"), skipping]).numerics["scale"]
    assert sentence.startswith(
        "Loss scale with native: from 32,768 to 65,536 with 3 logged increases, 3 of 400 steps skipped. "
    )
    sentence = analyse_runs([make("none"), steady]).numerics["scale"]
    assert "native: from 65,536 to 131,072 with 1 logged increase, no step skipped" in sentence
    assert "none" not in sentence
    # Scale, growth and skipped steps are of one run; what another run skipped is said apart.
    sentence = analyse_runs([make("none"), steady, make("native", 2, steps=400)]).numerics["scale"]
    assert "1 logged increase, no step skipped (3 in another run)." in sentence


@pytest.mark.parametrize("turned", [False, True])
def test_the_loss_scale_is_that_of_the_lowest_seed_in_whatever_order_the_runs_are_loaded(turned: bool):
    made = [make("native", 10, steps=400), make("native", 9, skip_steps=())][:: -1 if turned else 1]
    analysis = analyse_runs([make("none"), *made])
    assert (
        "native: from 65,536 to 131,072 with 1 logged increase, no step skipped" in analysis.numerics["scale"]
    )
    (line,) = charts(make("none"), *made)["loss-scale"]["data"]["values"]
    assert max(line["y"]) == 131_072


def test_a_loss_scale_with_one_row_is_a_point():
    def once(plan):
        plan["rows"] = plan["rows"][:1]

    line = charts(make("none"), make("native", skip_steps=(), edit=once))["loss-scale"]["layer"][0]
    assert line["mark"]["point"] is True
    several = charts(make("none"), make("native"))["loss-scale"]["layer"][0]
    assert "point" not in several["mark"]


def test_growth_before_the_first_row_counts():
    def late(plan):
        plan["config"]["precision"] = {"init_scale": 65536.0}
        plan["rows"] = [row for row in plan["rows"] if row["global_step"] > 100]

    sentence = analyse_runs([make("none"), make("native", skip_steps=(), edit=late)]).numerics["scale"]
    assert "native: from 65,536 to 131,072 with 1 logged increase, no step skipped" in sentence


def test_a_backend_has_one_colour_in_every_chart_whoever_is_beside_it():
    styles = choose_styles((display_name(backend), backend, Kind.ARM) for backend in REGISTRY)
    wanted, found = {label: style.colour for label, style in styles.items()}, set()
    for runs in ([make(b, edit=rich) for b in BACKENDS], [make("apex_o1")], [make("fp16"), make("apex_o1")]):
        for spec in charts(*runs).values():
            scale = spec["encoding"]["color"]["scale"]
            found |= {*zip(scale["domain"], scale["range"], strict=True)}
    assert {label for label, _ in found} == {*map(display_name, BACKENDS), "fp16"}
    assert not [label for label, colour in found if colour != wanted[label]]


def test_after_one_evaluation_there_is_a_point_with_its_range():
    def once(plan):
        for row in plan["rows"][:-1]:
            row.pop("eval/accuracy", None)

    spec = charts(*(make("none", seed, edit=once) for seed in (1, 2, 3)))["quality"]
    assert [len(row["x"]) for row in spec["data"]["values"]] == [1]
    assert {"point", "rule"} <= {layer["mark"]["type"] for layer in spec["layer"] if "params" not in layer}
    tree = ElementTree.fromstring(picture(spec, "svg"))
    marks = [node for node in tree.iter() if "mark-symbol role-mark" in node.get("class", "")]
    assert sum(len(list(node)) for node in marks) == 1


@pytest.mark.parametrize(
    ("seconds", "unit", "end"), [(500, "seconds", 500), (1740, "minutes", 29), (7200 * 2, "hours", 4)]
)
def test_time_axis_is_in_the_unit_that_its_words_name(seconds, unit, end):
    def edit(plan):
        n = len(plan["rows"])
        for i, row in enumerate(plan["rows"], 1):
            row["time/elapsed_seconds"] = seconds * i / n

    spec = charts(make("none", edit=edit))["quality-time"]
    assert f"by {unit} of" in spec["title"]["subtitle"]
    assert spec["data"]["values"][0]["x"][-1] == pytest.approx(end, rel=0.01)
    tips = spec["layer"][-1]["encoding"]["tooltip"]
    assert next(tip["title"] for tip in tips if tip["field"] == "x") == unit


def test_scale_axis_is_log2_and_skipped_steps_are_marked_on_the_scale_they_led_to():
    spec = charts(*(make(b, edit=rich, skip_steps=(10, 15)) for b in ("none", "native")))["loss-scale"]
    y = spec["layer"][0]["encoding"]["y"]
    assert (y["scale"]["type"], y["scale"]["base"]) == ("log", 2)
    assert "2¹⁴" in texts(spec)
    assert [row["backend"] for row in spec["data"]["values"]] == ["native"]  # fp32 has no scale
    (row,) = next(layer["data"]["values"] for layer in spec["layer"] if "data" in layer)
    assert [*zip(row["x"], row["y"], row["new"], row["total"], strict=True)] == [
        (10, 32768, 1, 1),
        (15, 16384, 1, 2),
    ]


def test_shares_are_in_percent_with_and_without_loss_scaling():
    found = charts()
    rows = {(row["backend"], row["side"]): row["y"][0] for row in found["underflow"]["data"]["values"]}
    assert (rows["native", "with loss scaling"], rows["native", "without loss scaling"]) == (0.5, 5)
    lost = {row["backend"]: {*row["y"]} for row in found["lost-updates"]["data"]["values"]}
    assert lost["native"] == {55}


def test_each_layer_has_its_largest_activation_in_the_order_of_the_network():
    def spoil(plan):
        rich(plan)
        seen = [row for row in plan["rows"] if "activation/max_abs/layer10" in row]
        seen[0]["activation/max_abs/layer10"], seen[1]["activation/max_abs/layer10"] = 65000.0, math.inf

    spec = charts(make("native", 1, edit=rich), make("native", 2, edit=spoil))["activations"]
    dots = {row["layer"]: row["x"] for row in spec["data"]["values"]}
    assert dots == {"conv1": NEAR, "layer10": 65000}
    assert "infinite values left out" in spec["title"]["subtitle"]
    assert spec["layer"][-1]["encoding"]["y"]["sort"] == ["conv1", "layer10"]


def test_a_published_ratio_is_drawn_whole_beside_ours(every):
    spec = every["published"]
    rows = {(row["row"], row["from"]): row for row in spec["data"]["values"]}
    assert {source for _, source in rows} == {"published", "these runs"}
    assert all(row["low"] <= row["x"] <= row["high"] for row in rows.values())
    assert "clip" not in json.dumps(spec)  # an interval is as long as it is, whatever its neighbours' are
    assert not [layer for layer in spec["layer"] if "domain" in layer["encoding"]["x"]["scale"]]


def test_a_line_is_the_mean_of_the_runs_between_the_lowest_and_the_highest():
    row = drawn(*(make("none", seed, edit=edited(train_loss=float(seed))) for seed in (1, 2, 6)))
    assert ({*row["low"]}, {*row["y"]}, {*row["high"]}, row["of"]) == ({1}, {3}, {6}, "mean of 3 runs")
    run = make("native")
    row = drawn(run)
    assert row["y"] == pytest.approx(run.values("train/loss"), rel=1e-4)
    assert row["of"] == "one run"


def test_runs_logged_at_other_steps_are_interpolated_as_far_as_all_of_them_go():
    def later(plan):
        edited(train_loss=4.0)(plan)
        for row in plan["rows"]:
            row["global_step"] += 2

    first = make("none", 1, edit=edited(train_loss=2.0))
    assert {*drawn(first, make("none", 2, edit=later))["y"]} == {3}
    short = make("none", 1, edit=lambda plan: plan.update(rows=plan["rows"][:10]))
    assert max(drawn(short, make("none", 2))["x"]) == 40


def test_a_logged_nan_is_a_gap_and_rows_without_a_value_are_none():
    def edit(plan):
        plan["rows"][3]["train/loss"] = "NaN"

    row = drawn(make("none", edit=edit), metric="eval/accuracy")
    assert [x for x, y in zip(row["x"], row["y"], strict=True) if y is None] == [15]


def test_a_failed_run_stretches_no_axis_and_a_clock_that_jumps_back_is_left_out():
    def shifted(times=1.0, plus=0.0):
        def edit(plan):
            for row in plan["rows"]:
                row["time/elapsed_seconds"] = row["time/elapsed_seconds"] * times + plus

        return edit

    def jumps(plan):
        plan["rows"][-1]["time/elapsed_seconds"] = 0.0

    alone = drawn(make("none", 1), name="quality-time")["x"]
    both = drawn(make("none", 1), make("none", 2, edit=shifted(plus=120)), name="quality-time")["x"]
    assert both == pytest.approx([minutes + 1 for minutes in alone], abs=0.02)
    crashed = make("none", 3, state="failed", edit=shifted(times=100))
    assert drawn(make("none", 1), crashed, name="quality-time")["x"] == alone
    assert "quality-time" not in charts(make("none", edit=jumps))


def test_long_runs_are_thinned_and_the_extremes_of_what_is_left_out_stay():
    runs = [make(b, seed, steps=4000) for b in ("none", "native", "apex_o1") for seed in (1, 2, 3)]
    for run, extreme in zip(runs, (50.0, -50.0, 3.0), strict=False):  # which their mean, 1, does not show
        values = np.full(run.rows, 1.0)
        values[401] = extreme
        put(run, "train/loss", values)
    rows = charts(*runs)["train-loss"]["data"]["values"]
    assert sum(len(row["x"]) for row in rows) <= 1500
    assert (max(rows[0]["high"]), min(rows[0]["low"])) == (50, -50)
    assert (rows[0]["x"][0], rows[0]["x"][-1]) == (0, 4000)


def test_hostile_names_are_data_and_never_part_of_an_expression():
    hostile = "'+alert(1)+'</script>{{7*7}}\x07"
    for name, spec in charts(make("none", name=hostile, config={"backend": hostile}, edit=rich)).items():
        text = json.dumps(spec)
        expressions = re.findall(r'"(?:test|expr|labelExpr|calculate|filter|update)": "(.*?)(?<!\\)"', text)
        assert not [one for one in expressions if "alert" in one], name
        assert any("alert" in one for one in texts(spec)), name


@pytest.mark.parametrize(
    ("without", "axis"), [((), "by step"), (("step", "_step"), "by evaluation")], ids=["step", "neither"]
)
def test_the_compared_metric_is_drawn_without_an_epoch(without: tuple[str, ...], axis: str):
    made = several(without=without)
    options = {"metric": "val_acc:max", "baseline": "32-true", "group_by": ["trainer.precision"]}
    spec = charts(*made, **options)["quality"]
    assert axis in spec["title"]["subtitle"]
    assert all(len(row["x"]) > 1 for row in spec["data"]["values"])


def test_a_recorded_loop_that_names_no_epoch_has_its_curve_by_step():
    def without_epoch(plan):
        for row in plan["rows"]:
            row.pop("epoch")

    spec = charts(*[make(b, 1, edit=without_epoch) for b in ("none", "native")])
    assert "by step" in spec["quality"]["title"]["subtitle"]
    assert spec["quality"]["data"]["values"][0]["x"] == [40, 80, 120, 160, 200]
    assert "quality-time" in spec
