"""Single runs against the stand-in server: stopped from W&B's page, uploaded later, left alone by a dying
server.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from support.wandb_server import TROUBLES, Server
from support.wandb_server.clients import asking, environment, wandb

from ampcompare.records import RunRecord, load_runs

pytestmark = pytest.mark.slow


def read_back(server: Server, folder: Path, source: str) -> RunRecord:
    with asking(server, folder):
        (run,) = load_runs([source])
    return run


def assert_same(before: RunRecord, after: RunRecord) -> None:
    pd.testing.assert_frame_equal(before.history.sort_index(axis=1), after.history)
    for key in before.logged:
        assert before.nonfinite(key).tolist() == after.nonfinite(key).tolist()
    assert before.config == after.config
    assert before.summary == after.summary | {"_runtime": before.summary.get("_runtime")}
    for name in ("id", "name", "group", "state", "job_type", "project", "tags"):
        assert getattr(before, name) == getattr(after, name), name


def test_a_run_stopped_on_wandbs_page_ends_with_its_record(runs):
    scene = runs["page"]
    (run,) = scene.runs
    assert scene.exit_code == 143
    assert f"interrupted at step {run.summary['global_step']} (W&B asked for it)" in scene.output
    assert run.history[-1]["global_step"] == run.summary["global_step"]
    assert run.exit_code == 255


def test_sync_of_an_offline_run_changes_nothing_in_it(runs, tmp_path: Path, wandb_server: Server):
    folder = runs["offline"].folder
    assert runs["offline"].runs == []
    (before,) = load_runs([folder])
    done = wandb("sync", str(before.paths[0].parent), env=environment(wandb_server, tmp_path))
    assert done.returncode == 0, done.stderr
    after = read_back(wandb_server, tmp_path, "wandb:tester/offline")
    assert len(after.history) > 4
    assert_same(before, after)


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_server_that_goes_away_in_mid_run_costs_no_rows(runs, trouble: str):
    """It dies, hangs or answers 500; `wandb sync` completes the run when it is back."""
    scene = runs[trouble]
    assert scene.exit_code == 0, scene.output
    (before,) = load_runs([scene.folder])
    assert (before.state, before.problems) == ("finished", [])
    assert before.history["global_step"].max() == 160
    assert scene.sent < len(before.history)

    scene.server.come_back()
    sync = f"wandb sync --include-online {before.paths[0].parent.resolve()}"
    assert sync in scene.output
    done = wandb(*sync.split()[1:], env=environment(scene.server, scene.folder))
    assert done.returncode == 0, done.stderr
    assert_same(before, read_back(scene.server, scene.folder, "wandb:tester/p"))
