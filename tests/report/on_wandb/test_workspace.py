"""What would be saved on W&B, serialised without a server."""

from __future__ import annotations

import json
import re

import pytest
from support.fakes import full, make

from ampcompare.errors import UserError
from ampcompare.report.analysis.analysis import CHARTS_JOB, analyse_runs
from ampcompare.report.charts.catalogue import CHARTS
from ampcompare.report.on_wandb.charts import columns_of, custom_chart, table_of
from ampcompare.report.on_wandb.workspace import (
    VIEW_NAME,
    as_json,
    build_workspace,
    drawn_charts,
    split_target,
)

BACKENDS = ("none", "native", "apex_o1")


@pytest.fixture(scope="module")
def analysis():
    return analyse_runs([make(b, seed, edit=full) for b in BACKENDS for seed in (1, 2)])


@pytest.mark.slow
def test_charts_for_wandb_are_those_of_the_page_over_wandbs_table(analysis):
    for name, chart_of in CHARTS.items():
        spec = chart_of(analysis)
        chart = custom_chart(spec)
        text = json.dumps(chart)
        assert chart["data"] == {"name": "wandb"}, name
        assert "datasets" not in chart, name
        assert '{"name": "data"}' not in text, name
        used = set(re.findall(r"\$\{field:(\w+)\}", text))
        assert {"backend", "kind"} <= used <= set(columns_of(spec["datasets"]["data"])), name
        bare = re.findall(r'"field": "(?!\$)', text) + re.findall(r"datum\.(?!value)\w+", text)
        assert bare == [], name


def test_filled_in_chart_draws_the_page_chart_again(analysis):
    """What W&B does: names the columns, hands over the table. The result compiles and has the same marks."""
    import vl_convert

    spec = CHARTS["train-loss"](analysis)
    rows = spec["datasets"]["data"]
    columns, cells = table_of(rows)
    filled = json.loads(re.sub(r"\$\{field:(\w+)\}", r"\1", json.dumps(custom_chart(spec))))
    filled |= {"data": {"values": [dict(zip(columns, row, strict=True)) for row in cells]}, "width": 300}
    for param in filled["params"]:
        param.pop("bind", None) if param["name"] == "runs" else None
    svg = vl_convert.vegalite_to_svg(filled)
    again = vl_convert.vegalite_to_svg(spec | {"width": 300})
    assert svg.count("<path") == again.count("<path") > 10


@pytest.mark.slow
def test_view_groups_by_backend_and_has_every_chart_as_a_panel(analysis):
    view = build_workspace(analysis, "someone", "comparison-amp", drawn_charts(analysis))._to_model()
    content = json.loads(view.model_dump_json(by_alias=True))
    section = content["spec"]["section"]
    assert content["name"] == VIEW_NAME
    assert section["runSets"][0]["grouping"] == [
        {"section": "config", "name": "backend.value"}
    ] or "backend" in str(section["runSets"][0]["grouping"])
    panels = section["panelBankConfig"]["sections"][0]["panels"]
    assert len(panels) == len(CHARTS)
    assert {p["viewType"] for p in panels} == {"Vega2"}
    presets = [p["config"]["panelDefId"] for p in panels]
    assert all(p.startswith("someone/ampcompare-") for p in presets)
    live = section["panelBankConfig"]["sections"][1]["panels"]
    assert {"Run History Line Plot", "Bar Chart", "Scatter Plot", "Run Comparer"} == {
        p["viewType"] for p in live
    }


@pytest.mark.slow
def test_what_would_be_saved_holds_the_verdict(analysis):
    content = json.loads(as_json(analysis, "someone", "p"))
    assert "native trains 1.9" in content["verdict"]
    assert set(content["charts"]) == set(CHARTS)


def test_run_with_the_charts_tables_is_no_training_run():
    kept = make("none", job_type=CHARTS_JOB)
    kept.job_type = CHARTS_JOB
    analysis = analyse_runs([kept, make("native")])
    assert [f.label for f in analysis.figures] == ["native"]
    with pytest.raises(UserError, match="no training runs"):
        analyse_runs([kept])


@pytest.mark.parametrize("target", ["project", "a/b/c", "/p", "e/", ""])
def test_target_of_another_form_is_one_line(target):
    with pytest.raises(UserError, match="ENTITY/PROJECT"):
        split_target(target)
