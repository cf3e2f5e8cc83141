"""What `ampcompare workspace` saves on W&B, here on the stand-in."""

import json
import tarfile
from collections import Counter

import pytest
from support.fakes import make
from support.quick import ROOT
from support.wandb_server.clients import asking, environment
from support.wandb_server.clients import wandb as wandb_command

from ampcompare import analyse_runs, metrics
from ampcompare.analysis.analysis import CHARTS_JOB
from ampcompare.errors import UserError


def test_the_run_with_the_page_is_no_training_run():
    kept = make("none", job_type=CHARTS_JOB)
    kept.job_type = CHARTS_JOB
    assert [g.label for g in analyse_runs([kept, make("native")]).groups] == ["native"]
    with pytest.raises(UserError, match="no training runs"):
        analyse_runs([kept])


@pytest.mark.slow
def test_published_records_are_saved_once_as_arms_of_the_view_and_the_report(wandb_server, tmp_path, command):
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
        preview = command("workspace", "tester/h200", "--dry-run")[1]
        assert not project.views
        for _ in range(2):
            code, output, errors = command("workspace", "tester/h200", "--report")
            assert code == 0, errors
            assert output.count("workspace: ") == output.count("report: ") == 1
    assert sorted(view["type"] for view in project.views.values()) == ["project-view", "runs"]
    summary = wandb_server.runs["ampcompare-charts"].summary
    assert summary["page"]["_type"] == "html-file"
    assert "?nw=" in summary["workspace"]
    assert "?" not in summary["report"]
    saved = {view["type"]: json.loads(view["spec"]) for view in project.views.values()}
    # The view groups the runs, and each of its lines, by backend, and shows the page.
    section, report = saved["project-view"]["section"], saved["runs"]
    assert [key["name"] for key in section["runSets"][0]["grouping"]] == ["backend.value"]
    (panels,) = [one["panels"] for one in section["panelBankConfig"]["sections"] if one["panels"]]
    assert [panel["config"]["mediaKeys"] for panel in panels if "mediaKeys" in panel["config"]] == [["page"]]
    lines = [panel["config"] for panel in panels if panel["viewType"] == "Run History Line Plot"]
    assert {config["groupBy"] for config in lines} == {"backend.value"}
    drawn = {key for config in lines for key in config["metrics"]}
    assert drawn >= {metrics.EVAL_ACCURACY, metrics.LOSS, metrics.THROUGHPUT, metrics.SCALE}
    # The Report has the finding.
    finding = json.loads(preview)["verdict"].splitlines()[0].removeprefix("# ")
    assert finding.replace("\\", "") in str(report).replace("\\", "")
