"""`ampcompare workspace` against the stand-in server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import wandb
from support.wandb_server import Server
from support.wandb_server.clients import asking


@pytest.fixture
def server(wandb_server: Server, tmp_path: Path) -> Iterator[Server]:
    with asking(wandb_server, tmp_path):
        yield wandb_server


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
    assert "Two seeds do not tell" in text  # the finding
    summary = server.runs["ampcompare-charts"].summary
    assert summary["page"]["_type"] == "html-file"
    assert "?nw=" in summary["workspace"]
    assert "?" not in summary["report"]
    said = capsys.readouterr().out
    assert said.count("workspace: ") == said.count("report: ") == 2
