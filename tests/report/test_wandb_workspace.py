"""What is saved on W&B: serialised without a server, and by `ampcompare workspace` on the stand-in."""

import itertools
import json
import re
import tarfile
from collections import Counter

import pytest
import wandb
from support.fakes import full, make
from support.quick import ROOT
from support.wandb_server.clients import asking, environment
from support.wandb_server.clients import wandb as wandb_command

from ampcompare import analyse_runs, metrics
from ampcompare.analysis.analysis import CHARTS_JOB
from ampcompare.cli import main
from ampcompare.errors import UserError
from ampcompare.report.wandb_workspace import preview_json, split_target


@pytest.mark.slow
def test_the_view_has_live_panels_grouped_by_backend_and_the_finding_as_text():
    runs = [make(b, seed, edit=full) for b in ("none", "native") for seed in (1, 2, 3)]
    analysis = analyse_runs(runs)
    content = json.loads(preview_json(analysis, "someone", "p"))
    assert analysis.headline in content["verdict"]
    view = content["view"]
    assert [key["name"] for key in view["runset_settings"]["groupby"]] == ["backend"]
    (section,) = view["sections"]
    lines = [panel for panel in section["panels"] if "x" in panel and isinstance(panel.get("y"), list)]
    by = {panel["y"][0]: panel["groupby"]["name"] for panel in lines}
    shown = (metrics.EVAL_ACCURACY, metrics.LOSS, metrics.THROUGHPUT, metrics.SCALE)
    assert {key: by[key] for key in shown} == dict.fromkeys(shown, "backend")
    assert [panel["media_keys"] for panel in section["panels"] if "media_keys" in panel] == [["page"]]


def test_the_run_with_the_page_is_no_training_run():
    kept = make("none", job_type=CHARTS_JOB)
    kept.job_type = CHARTS_JOB
    assert [g.label for g in analyse_runs([kept, make("native")]).groups] == ["native"]
    with pytest.raises(UserError, match="no training runs"):
        analyse_runs([kept])


@pytest.mark.parametrize("target", ["project", "a/b/c", "/p", "e/", ""])
def test_target_of_another_form_is_one_line(target):
    with pytest.raises(UserError, match="ENTITY/PROJECT"):
        split_target(target)


@pytest.mark.slow
def test_workspace_command_saves_view_and_report_once_however_often(wandb_server, tmp_path, capsys):
    with asking(wandb_server, tmp_path):
        for seed, backend in itertools.product((1, 2), ("none", "native")):
            speed, config = 100.0 + 100.0 * (backend == "native") + seed, {"backend": backend, "seed": seed}
            with wandb.init(project="p", config=config, settings=wandb.Settings(silent=True)) as run:
                for step in (1, 2):
                    row = {"global_step": step, "train/loss": 1.0 / step, "eval/accuracy": 0.5 + step / 100}
                    run.log(row | {"throughput/images_per_second": speed})
        for _ in range(2):
            with pytest.raises(SystemExit) as ended:
                main(["workspace", "tester/p", "--report"])
            assert ended.value.code == 0, capsys.readouterr()
    project = wandb_server.project("tester", "p")
    assert sorted(view["type"] for view in project.views.values()) == ["project-view", "runs"]
    text = "".join(str(view) for view in project.views.values())
    assert "Loss scale factor" in text
    assert "no verdict for" in text  # the finding
    summary = wandb_server.runs["ampcompare-charts"].summary
    assert summary["page"]["_type"] == "html-file"
    assert "?nw=" in summary["workspace"]
    assert "?" not in summary["report"]
    output = capsys.readouterr().out
    assert output.count("workspace: ") == output.count("report: ") == 2


@pytest.mark.slow
def test_synced_published_records_are_arms_of_the_view_and_the_report(wandb_server, tmp_path, capsys):
    folder = ROOT / "docs" / "results" / "2026-11-26-h200"
    with tarfile.open(folder / "records.tar.xz") as packed:
        packed.extractall(tmp_path, filter="data")
    offline = sorted(map(str, (tmp_path / "comparison").glob("offline-run-*")))
    own = ("--entity", "tester", "--project", "h200")
    done = wandb_command("sync", *own, *offline, env=environment(wandb_server, tmp_path))
    assert done.returncode == 0, done.stderr
    project = wandb_server.project("tester", "h200")
    backends = Counter(run.config["backend"] for run in project.runs.values())
    assert backends == {"none": 3, "native": 3, "apex_o1": 3}
    with asking(wandb_server, tmp_path):
        with pytest.raises(SystemExit) as ended:
            main(["workspace", "tester/h200", "--report"])
        assert ended.value.code == 0, capsys.readouterr()
    saved = {view["type"]: json.loads(view["spec"]) for view in project.views.values()}
    # The view groups the runs, and each of its lines, by backend.
    section, report = saved["project-view"]["section"], saved["runs"]
    assert [key["name"] for key in section["runSets"][0]["grouping"]] == ["backend.value"]
    (panels,) = [one["panels"] for one in section["panelBankConfig"]["sections"] if one["panels"]]
    grid = report["blocks"][2]["metadata"]["panelBankSectionConfig"]["panels"]
    for shown in (panels, grid):
        lines = [panel["config"] for panel in shown if panel["viewType"] == "Run History Line Plot"]
        assert {config["groupBy"] for config in lines} == {"backend.value"}
        assert metrics.EVAL_ACCURACY in {key for config in lines for key in config["metrics"]}
    # The Report has the table of the arms that the published page has.
    published = (folder / "comparison" / "comparison.md").read_text()
    rows = [line for line in published.splitlines() if line.startswith("|")]
    assert [re.findall(r"\w+", row)[0] for row in rows[2:]] == ["fp32", "native", "apex"]
    head = rows[0].split("|")
    (time,) = [index for index, title in enumerate(head) if "Time to" in title]  # of the published --target
    cells = [row.split("|") for row in rows]
    without_time = ["|".join([*row[:time], *row[time + 1 :]]) for row in cells]
    assert "\n".join(without_time) in report["blocks"][1]["content"]
