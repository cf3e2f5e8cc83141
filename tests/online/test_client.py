"""What the client asks of a server beside training: to go on with a run, to keep workspaces and reports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import wandb
from support.wandb_server import Run, Server
from support.wandb_server.clients import asking


@pytest.fixture
def server(wandb_server: Server, tmp_path: Path) -> Iterator[Server]:
    with asking(wandb_server, tmp_path):
        yield wandb_server


def log_row(server: Server, resume: str | None) -> tuple[Run, bool]:
    with wandb.init(project="p", id="one", resume=resume, settings=wandb.Settings(silent=True)) as run:
        run.log({"a": run.starting_step})
        resumed = run.resumed
    return server.runs["one"], resumed


def test_a_resumed_run_goes_on_where_the_server_has_it(server: Server):
    assert log_row(server, "allow")[1] is False
    assert log_row(server, "allow")[1] is True
    run, resumed = log_row(server, "must")
    assert resumed is True
    assert [row["a"] for row in run.history] == [row["_step"] for row in run.history] == [0, 1, 2]


def test_a_run_that_must_be_resumed_and_is_not_there_is_refused(server: Server):
    with pytest.raises(wandb.errors.UsageError, match="does not exist"):
        log_row(server, "must")


def test_a_saved_workspace_and_report_come_back(server: Server):
    import wandb_workspaces.reports.v2 as reports
    import wandb_workspaces.workspaces as workspaces

    log_row(server, None)
    plot = reports.LinePlot(x="global_step", y=["train/loss"])
    workspace = workspaces.Workspace(
        "tester", "p", name="first", sections=[workspaces.Section("x", panels=[plot])]
    )
    workspace.save()
    workspace.name = "second"
    workspace.save()
    found = workspaces.Workspace.from_url(workspace.url)
    assert (found.name, [len(section.panels) for section in found.sections]) == ("second", [1])

    runsets = [reports.Runset(entity="tester", project="p")]
    report = reports.Report(
        "p", "tester", title="said", blocks=[reports.PanelGrid(runsets=runsets, panels=[plot])]
    )
    report.save()
    assert reports.Report.from_url(report.url).title == "said"
    assert sorted(view["type"] for view in server.project("tester", "p").views.values()) == [
        "project-view",
        "runs",
    ]


@pytest.mark.slow
def test_workspace_command_saves_view_and_report_once_however_often(
    server: Server, capsys: pytest.CaptureFixture[str]
):
    from ampcompare.cli import main

    for seed in (1, 2):
        for backend, speed in (("none", 100.0), ("native", 200.0)):
            config = {"backend": backend, "seed": seed}
            with wandb.init(project="p", config=config, settings=wandb.Settings(silent=True)) as run:
                for step in (1, 2):
                    row = {
                        "global_step": step,
                        "train/loss": 1.0 / step,
                        "throughput/images_per_second": speed + seed,
                    }
                    run.log(row | {"eval/accuracy": 0.5 + step / 100})
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            main(["workspace", "tester/p", "--report"])
        assert ended.value.code == 0, capsys.readouterr()
    project = server.project("tester", "p")
    assert sorted(view["type"] for view in project.views.values()) == ["project-view", "runs"]
    text = "".join(str(view) for view in project.views.values())
    assert "Loss scale factor" in text
    assert "2.00×" in text or "2×" in text, text  # the verdict
    assert {name.partition("/")[0] for name in server.charts} == {"tester"}
    assert "charts/throughput" in server.runs["ampcompare-charts"].summary
    said = capsys.readouterr().out
    assert said.count("workspace: ") == said.count("report: ") == 2
