"""Which run a new process goes on with, and what it says when it does not."""

import json
import random
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from support import training
from support.refusals import line_of

from ampcompare import load_runs
from ampcompare.training.checkpoint.store import CheckpointStore


@pytest.fixture
def play(tmp_path: Path):
    """Run quickly, without a record; `until` a step at which it dies. Gives what was printed."""
    return partial(training.play, "wandb.mode=disabled", f"output_dir={tmp_path}")


@pytest.fixture
def begun(play, tmp_path: Path) -> Path:
    """Return the checkpoints of a run that died at step 6, after those of step 4."""
    play(until=6)
    (folder,) = (tmp_path / "checkpoints").iterdir()
    return folder


def test_auto_resumes_the_unfinished_run_and_then_starts_a_new_one(play, begun: Path):
    assert f"resuming run {begun.name} at step 4" in play("resume=auto")
    assert [*begun.parent.iterdir()] == [begun]
    assert "resuming" not in play("resume=auto")
    assert len([*begun.parent.iterdir()]) == 2


def test_a_finished_run_named_by_its_id_stays_unchanged(play, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("WANDB_RUN_ID", "job-7")
    play("max_steps=4")
    assert "resuming run job-7 at step 4" in play("resume=auto")  # with more steps
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    assert "run job-7 is already finished" in play("resume=auto")
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()} == before
    why = "resume=auto: run job-7 differs in seed (223 in that run, 1 now)"
    assert why in line_of(play, "resume=auto", "seed=1")
    assert "is finished" not in play("resume=never", until=6)
    assert "resuming run job-7 at step 4" in play("resume=auto")  # with the new one


@pytest.mark.parametrize("resume", ["never", "auto"])
def test_unreadable_folders_of_other_runs_do_not_stop_a_run(play, tmp_path: Path, resume: str):
    """Folders in a shared output_dir that are no runs, and files that go while they are seen."""
    top = tmp_path / "checkpoints"
    for number, content in enumerate([b"{", b"[]", b"{}", b'{"format": 6, "identity": 7}', b"\xff"]):
        (top / f"other{number}").mkdir(parents=True)
        (top / f"other{number}" / "run.json").write_bytes(content)
        (top / f"other{number}" / "step-000000009.pt").symlink_to("gone")
    (top / "gone").symlink_to("nowhere")
    (top / "file").write_text("in the way")
    before = {p: p.lstat().st_mtime_ns for p in top.rglob("*") if not p.is_dir()}
    said = play(f"resume={resume}")
    assert ("starting a new run, because run" in said) == (resume == "auto")
    assert {p: p.lstat().st_mtime_ns for p in before} == before
    assert len([*top.iterdir()]) == 8  # its own beside them


def test_a_run_of_another_version_is_refused_by_its_format(play, begun: Path, monkeypatch):
    described = json.loads((begun / "run.json").read_text())
    (begun / "run.json").write_text(json.dumps(described | {"format": 5}))  # of 0.3 and 0.4
    why = f"resume=auto: run {begun.name} has checkpoints of format 5, this version reads format 6"
    assert why in line_of(play, "resume=auto")
    monkeypatch.setenv("WANDB_RUN_ID", begun.name)
    assert why in line_of(play, "resume=auto")


def test_another_config_is_not_gone_on_with_and_the_fields_are_named(play, begun: Path):
    passed_over = play("resume=auto", "optimizer.lr=0.05", "epochs=3")
    assert "resuming" not in passed_over
    why = (
        f"run {begun.name} differs in epochs (2 in that run, 3 now), optimizer.lr (0.1 in that run, 0.05 now)"
    )
    assert f"resume=auto: starting a new run, because {why}" in passed_over


def test_an_option_that_is_newer_than_the_run_had_its_default(play, begun: Path):
    described = json.loads((begun / "run.json").read_text())
    del described["identity"]["training.perturb_weights"]
    (begun / "run.json").write_text(json.dumps(described))
    passed_over = play("resume=auto", "training.perturb_weights=one_ulp", "max_steps=1")
    assert "differs in training.perturb_weights (none in that run, one_ulp now)" in passed_over
    assert f"resuming run {begun.name}" in play("resume=auto")


def test_a_run_that_is_still_going_on_is_left_alone(play, begun: Path):
    store = CheckpointStore(begun)
    assert store.lock()
    assert f"because run {begun.name} is running in another process" in play("resume=auto", "max_steps=1")
    store.unlock()
    assert "resuming run" in play("resume=auto")


def test_a_damaged_checkpoint_is_replaced_by_the_previous_one(play, tmp_path: Path):
    play("epochs=3", until=11)
    newest, before = (
        file for path in (tmp_path / "checkpoints").iterdir() for file in CheckpointStore(path).files()
    )
    newest.write_bytes(newest.read_bytes()[:5000])
    said = play("epochs=3", "resume=auto", until=7)
    assert f"checkpoint {newest.name} is damaged" in said
    assert "at step 4" in said
    before.write_bytes(b"not one")
    hint = f"run {before.parent.name} of this config stopped at step 4; resume=auto would continue it"
    assert hint in play("epochs=3", until=1)  # said without reading them
    said = play("epochs=3", "resume=auto")
    assert "none of the checkpoints" in said
    assert "already finished" not in said  # a new run


def test_a_checkpoint_of_another_program_is_refused_in_a_line(play, begun: Path):
    store = CheckpointStore(begun)
    state = store.load()
    assert state
    del state["optimizer"]
    store.save(state, {}, best=True)
    assert "does not fit this run" in line_of(play, "resume=auto")


def test_a_run_resumed_on_another_machine_records_both_machines(play, begun: Path, tmp_path: Path):
    store = CheckpointStore(begun)
    state = store.load()
    assert state
    machine, elsewhere = state["machine"], {"host": "0123456789ab", "gpu": None}
    store.save(state | {"machine": elsewhere}, {}, best=True)
    out = tmp_path / "out"
    shutil.copytree(begun.parent, out / "checkpoints")
    assert "at step 4" in play("resume=auto", "wandb.mode=offline", f"output_dir={out}")
    (record,) = load_runs([out])
    assert record.config["environment"]["machine"] == machine | {"earlier": [elsewhere]}


def test_random_numbers_continue_after_a_resume():
    def drawn() -> tuple[float, float, float]:
        return torch.rand(()).item(), np.random.rand(), random.random()

    state = training.fit()[0].checkpoint()
    expected = drawn()
    training.fit()[0].resume(state)
    assert drawn() == expected
