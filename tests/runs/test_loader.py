"""Which runs are found in what a user names: folders, files, projects."""

import os
import shutil
from pathlib import Path

import pytest
from support.wandb_files import frame
from wandb.proto.wandb_internal_pb2 import Record

from ampcompare import load_runs
from ampcompare.errors import UserError


def run_file(
    folder: Path, run_id: str, project: str = "p", seconds: int = 0, kind: str = "offline-run"
) -> Path:
    """Write the `.wandb` file of a run."""
    record = Record()
    record.run.run_id, record.run.project = run_id, project
    record.run.start_time.seconds = 1_700_000_000 + seconds
    record.run.display_name = f"{project} {run_id}"
    file = folder / f"{kind}-20260101_00000{seconds}-{run_id}" / f"run-{run_id}.wandb"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(frame([record.SerializeToString()]))
    return file


def ids(*sources) -> list[str]:
    """Return the ids of the runs in these sources."""
    return [run.id for run in load_runs(sources)]


def test_runs_are_found_at_any_depth_oldest_first(tmp_path):
    run_file(tmp_path / "here" / "b" / "wandb", "late", seconds=9)
    run_file(tmp_path / "here", "early", seconds=1, kind="run")
    (tmp_path / "here" / "offline-run-x").mkdir()
    (tmp_path / "here" / "offline-run-x" / "notes.txt").write_text("")
    assert ids(tmp_path) == ["early", "late"]
    shutil.move(tmp_path / "here", tmp_path / "there")
    assert ids(tmp_path / "there") == ["early", "late"]


def test_a_run_that_is_found_twice_is_read_once(tmp_path):
    file = run_file(tmp_path / "wandb", "one")
    assert ids(file) == ids(file.parent) == ids(str(file)) == ["one"]
    assert [run.id for run in load_runs(str(tmp_path))] == ["one"]
    (tmp_path / "wandb" / "latest-run").symlink_to(file.parent, target_is_directory=True)
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    runs = load_runs([tmp_path, tmp_path, file, tmp_path / "loop"])
    assert [(len(run.paths), run.problems) for run in runs] == [(1, [])]


def test_files_with_one_id_are_one_run_unless_their_projects_differ(tmp_path):
    run_file(tmp_path, "one", project="a", seconds=1)
    run_file(tmp_path, "one", project="a", seconds=4)
    run_file(tmp_path, "one", project="b", seconds=2)
    torn = run_file(tmp_path, "one", seconds=3)
    torn.write_bytes(torn.read_bytes()[:7])
    assert [(run.name, len(run.paths)) for run in load_runs([tmp_path])] == [("a one", 2), ("b one", 2)]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("wandb:entity/project", "No API key configured.*wandb.mode=offline"),
        *(
            (f"wandb:{path}", "expected wandb:ENTITY/PROJECT")
            for path in ("", "x", "x/", "/x", "a/b/c/d", "a/b/ c")
        ),
        ("absent", "no such folder"),
        ("empty", "no runs in this folder"),
        ("broken/run-x.wandb", "no run can be read from it"),
        ("nul\0name", "no such folder"),
        ("x" * 5000, "cannot be read"),
    ],
)
def test_a_bad_source_is_refused_in_one_line(tmp_path, monkeypatch, source, message):
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("broken").mkdir()
    Path("broken/run-x.wandb").write_bytes(b"")
    with pytest.raises(UserError, match=message) as caught:
        load_runs([source])
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_folder_is_refused_in_one_line(tmp_path):
    locked = tmp_path / "locked"
    locked.mkdir(mode=0)
    with pytest.raises(UserError, match="cannot be read: Permission denied"):
        load_runs([locked])
