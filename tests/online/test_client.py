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
    assert "2.00×" in text or "2×" in text, text  # the verdict
    assert {name.partition("/")[0] for name in server.charts} == {"tester"}
    assert "charts/throughput" in server.runs["ampcompare-charts"].summary
    said = capsys.readouterr().out
    assert said.count("workspace: ") == said.count("report: ") == 2
