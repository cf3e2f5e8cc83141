"""One's own runs written as a publication, which whoever has it can judge."""

from __future__ import annotations

import pytest
import yaml
from rich.console import Console
from support.fakes import make

from ampcompare.published.publication import load
from ampcompare.report import analyse_runs
from ampcompare.report.analysis.judged import REPRODUCED
from ampcompare.report.command import EXIT_NOT_SHOWN, make_report
from ampcompare.report.publish import publish
from ampcompare.report.request import Request

BACKENDS = ("none", "native", "apex_o1")


def varied(plan):
    """A little noise, as machines have it, that no two runs share; accuracies that are close."""
    seed = plan["config"]["seed"]
    for row in plan["rows"]:
        if "memory/peak_mib" in row:
            row["memory/peak_mib"] += seed
        if "eval/accuracy" in row:
            row["eval/accuracy"] = 0.93 + 0.0003 * seed
    plan["summary"]["best/eval_accuracy"] = 0.93 + 0.0003 * seed


def runs_of(backends=BACKENDS, seeds=(1, 2, 3), **options):
    return [make(b, s, edit=varied, **options) for b in backends for s in seeds]


def test_what_is_published_is_reproduced_by_the_same_runs(tmp_path):
    analysis = analyse_runs(runs_of())
    path = publish(analysis, str(tmp_path / "mine.yaml"))
    found = analyse_runs(runs_of(), reproduce=str(path)).published
    assert len(found.rows) == 2 * 7 + 2
    assert {row.verdict for row in found.rows} == {REPRODUCED}
    assert found.matched.same_card
    assert not found.differences


def test_the_file_says_setting_arms_hardware_and_figures_with_interval_and_n(tmp_path):
    mine = load(str(publish(analyse_runs(runs_of()), str(tmp_path / "mine.yaml"))))
    assert (mine.setting["model.name"], mine.setting["batch_size"]) == ("resnet50", 128)
    assert not {"seed", "output_dir"} & {*mine.setting}
    assert mine.arms == {b: {"backend": b} for b in BACKENDS}
    assert (mine.baseline, mine.hardware, mine.runs) == ("none", "Test Device 9000", 3)
    (speed,) = (f.values["native"] for f in mine.figures if f.name == "images_per_second")
    assert speed.low < speed.value < speed.high
    assert (speed.n, speed.confidence) == (3, 0.95)
    assert "native1" in mine.note


def test_options_in_which_arms_differ_are_theirs(tmp_path):
    config = {"batch_size": 64, "model": {"name": "resnet50", "kwargs": {"width": 8}}}
    runs = [*runs_of(("none",)), *runs_of(("native",), config=config)]
    mine = load(str(publish(analyse_runs(runs), str(tmp_path / "mine.yaml"))))
    assert "batch_size" not in mine.setting
    assert [arm["batch_size"] for arm in mine.arms.values()] == [128, 64]
    assert [arm.get("model.kwargs.width") for arm in mine.arms.values()] == [None, 8]


def test_a_hostile_name_makes_no_other_file(tmp_path):
    runs = [*runs_of(("none",)), *runs_of(("native",), config={"model": {"name": "a: b\n- c\x1b[0m"}})]
    path = publish(analyse_runs(runs), str(tmp_path / "mine.yaml"))
    assert "\x1b" not in path.read_text()
    assert yaml.safe_load(path.read_text())["baseline"] == "none"


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (1.3, EXIT_NOT_SHOWN)])
def test_the_command_ends_with_3_where_a_figure_is_not_reproduced(
    tmp_path, monkeypatch, capsys, factor, code
):
    monkeypatch.setattr("ampcompare.records.load_runs", lambda *_, **__: runs_of())
    mine, out = tmp_path / "new" / "mine.yaml", str(tmp_path / "report")
    assert make_report(Request(["x"], out, formats="md", publish=str(mine)), Console()) == 0
    content = yaml.safe_load(mine.read_text())
    speeds = content["figures"]["images_per_second"]["values"]["native"]
    speeds |= {key: speeds[key] * factor for key in ("value", "low", "high")}
    mine.write_text(yaml.safe_dump(content))
    assert make_report(Request(["x"], out, formats="md,json", reproduce=str(mine)), Console()) == code
    assert ("speed-up in throughput of native: not reproduced" in capsys.readouterr().err) is (code != 0)
