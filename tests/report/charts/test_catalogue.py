from __future__ import annotations

import json

import altair as alt
import pytest
from support.fakes import full, make

from ampcompare.report import analyse_runs
from ampcompare.report.charts.catalogue import CHARTS, all_charts, has_data, missing_labels
from ampcompare.report.palette import KNOWN

BACKENDS = ("none", "native", "apex_o1")
FORESTS = ("speed-ups", "quality-differences", "memory-ratios")  # of what is compared: not of the baseline


def analysis_of(*runs):
    return analyse_runs(runs or [make(b, edit=full) for b in BACKENDS])


def channels(spec: dict, name: str) -> list[dict]:
    return [layer["encoding"][name] for layer in spec["layer"] if name in layer.get("encoding", {})]


@pytest.mark.slow
def test_each_chart_is_a_valid_specification_with_all_backends():
    for name, spec in all_charts(analysis_of()).items():
        alt.Chart.from_dict(spec)
        text = json.dumps(spec, allow_nan=False)
        assert "object at 0x" not in text, name
        drawn = {row["backend"] for row in spec["datasets"]["data"]}
        if name == "time-to-accuracy":  # what the baseline reaches, the others may not
            assert "none" in drawn
        else:
            assert drawn == set(BACKENDS) - ({"none"} if name in FORESTS else set()), name


@pytest.mark.slow
def test_every_chart_names_data_and_machine():
    runs = [make(b, edit=full, source="synthetic", device="Some CPU", device_type="cpu") for b in BACKENDS]
    charts = all_charts(analyse_runs(runs))
    said = {name: " ".join(spec["title"]["subtitle"]) for name, spec in charts.items()}
    assert said
    assert not [name for name, text in said.items() if "synthetic data" not in text]
    assert not [name for name, text in said.items() if "Some CPU (CPU)" not in text]
    assert not [name for name, spec in charts.items() if "synthetic data" not in spec["description"]]


@pytest.mark.slow
def test_a_backend_has_one_colour_in_every_chart_whoever_is_beside_it():
    wanted, found = {style.label: style.colour for style in KNOWN}, set()
    for runs in ([make(b) for b in BACKENDS], [make("apex_o1")], [make("fp16"), make("apex_o1")]):
        for name, spec in all_charts(analyse_runs(runs)).items():
            for scale in (colour["scale"] for colour in channels(spec, "color")):
                found |= {(name, *pair) for pair in zip(scale["domain"], scale["range"], strict=True)}
    assert found
    assert not [(name, label) for name, label, colour in found if colour != wanted[label]]


def test_known_backends_differ_in_colour_and_in_dash_or_marker():
    assert len({s.colour for s in KNOWN}) == len(KNOWN)
    assert len({(s.dash, s.marker) for s in KNOWN}) == len(KNOWN)


def test_chart_without_data_says_so_by_an_empty_dataset():
    def empty(plan):
        plan["rows"], plan["summary"] = [], {}

    charts = all_charts(analysis_of(make("none", edit=empty)))
    assert not any(has_data(spec) for spec in charts.values())


def test_backend_that_is_missing_in_a_chart_is_known():
    def no_eval(plan):
        plan["rows"] = [row for row in plan["rows"] if "eval/accuracy" not in row]

    analysis = analysis_of(make("none"), make("native", edit=no_eval))
    assert missing_labels(all_charts(analysis)["eval-accuracy"], analysis.groups) == ["native"]


def test_scale_axis_is_log2_with_powers_as_labels():
    spec = CHARTS["scale-factor"](analysis_of())
    y = channels(spec, "y")[0]
    assert (y["scale"]["type"], y["scale"]["base"]) == ("log", 2)
    assert "2¹⁴" in y["axis"]["labelExpr"]
    assert min(y["scale"]["domain"]) < 1 < 65536 <= max(y["scale"]["domain"]) * 2
    assert "marks skipped steps" in " ".join(spec["title"]["subtitle"])


def test_bars_hold_throughputs_and_speedups():
    rows = CHARTS["throughput-bars"](analysis_of())["datasets"]["data"]
    assert [(row["backend"], row["x"], row["text"], row["beside"]) for row in rows] == [
        ("none", 40.0, "40.0", ""),
        ("native", 76.0, "76.0", "1.90×"),
        ("apex_o1", 71.0, "71.0", "1.77×"),
    ]


@pytest.mark.slow
def test_hostile_names_are_data_and_never_part_of_an_expression():
    hostile = "'+alert(1)+'</script>"
    runs = [make("none", name=hostile, config={"backend": hostile}, tags=[hostile], edit=full)]
    for spec in all_charts(analyse_runs(runs)).values():
        shell = json.dumps({k: v for k, v in spec.items() if k not in ("datasets", "title", "description")})
        expressions = [e for layer in spec["layer"] for e in layer.get("transform", [])]
        assert "alert" not in json.dumps(expressions)
        assert "alert" not in json.dumps(spec.get("params", []))
        assert shell.count("alert") == shell.count('"domain": ["\'+alert') + shell.count('"sort": ["\'+alert')


def test_groups_of_one_backend_share_its_colour_and_differ_in_dashes():
    analysis = analysis_of(make("native", 1), make("native", 2, config={"batch_size": 64}), make("none"))
    native = [style for style in analysis.styles.values() if style.label.startswith("native")]
    assert len(native) == 2
    assert len({style.colour for style in native}) == 1
    assert len({style.dash for style in native}) == 2


def test_time_to_a_value_is_that_of_the_first_evaluation_there():
    def fix(plan):
        evals = [row for row in plan["rows"] if "eval/accuracy" in row]
        for row, accuracy, seconds in zip(
            evals, (0.5, 0.9, 0.8, 0.95, 0.91), (10, 20, 30, 40, 50), strict=True
        ):
            row |= {"eval/accuracy": accuracy, "time/train_seconds": seconds * plan["config"]["seed"]}

    runs = [make("none", 1, edit=fix), make("native", 2, edit=fix)]
    spec = CHARTS["time-to-accuracy"](analysis_of(*runs))
    assert spec["title"]["text"] == "Training time to 95 % eval accuracy"
    assert {row["backend"]: row["x"] for row in spec["datasets"]["data"]} == {"none": 40.0, "native": 80.0}
