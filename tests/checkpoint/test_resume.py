"""Which run a new process goes on with, and what it says when it does not."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from ampcompare.checkpoint.store import MAY_DIFFER, Store
from ampcompare.config.load import load_config
from ampcompare.config.schema import LEAVES
from ampcompare.errors import UserError
from ampcompare.experiment import run
from ampcompare.records import load_runs
from ampcompare.train.display import TrainingDisplay


class Killed(BaseException):
    """The end of a process, as far as the code in it can see."""


@pytest.fixture
def play(tmp_path: Path, quick_overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch):
    """Run quickly, without a record; `until` a step at which it dies. Gives what was printed."""

    def go(*words: str, until: int | None = None) -> str:
        def step(self: TrainingDisplay, step: int) -> None:
            if step == until:
                raise Killed

        monkeypatch.setattr(TrainingDisplay, "step", step)
        text = io.StringIO()
        given = (*quick_overrides, "wandb.mode=disabled", f"output_dir={tmp_path}", *words)
        try:
            result = run(load_config(None, given), Console(file=text, width=300))
        except Killed:
            assert until
        else:
            assert until is None
            assert result.exit_code == 0
        return text.getvalue()

    return go


def refusal(play, *words: str) -> str:
    with pytest.raises(UserError) as caught:
        play(*words)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def folders(tmp_path: Path) -> list[str]:
    return sorted(p.name for p in (tmp_path / "checkpoints").iterdir())


def test_auto_goes_on_with_the_unfinished_run_and_then_starts_a_new_one(play, tmp_path: Path):
    play(until=6)
    (name,) = folders(tmp_path)
    assert f"going on with run {name} at step 4" in play("resume=auto")
    assert folders(tmp_path) == [name]
    assert "going on" not in play("resume=auto")
    assert len(folders(tmp_path)) == 2


def test_a_given_run_that_is_finished_is_left_as_it_is(play, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("WANDB_RUN_ID", "job-7")
    play()
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    assert "run job-7 is finished: nothing is left to do" in play("resume=auto", until=None)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()} == before
    assert "resume=auto: run job-7 differs in seed (223 there, 1 here)" in refusal(
        play, "resume=auto", "seed=1"
    )
    assert "is finished" not in play("resume=never", until=6)
    assert "going on with run job-7 at step 4" in play("resume=auto")  # with the new one


def test_a_given_run_goes_on_with_more_steps(play, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("WANDB_RUN_ID", "job-7")
    play("max_steps=4")
    assert "going on with run job-7 at step 4" in play("resume=auto", "max_steps=6")


def test_never_says_that_there_is_an_unfinished_run_without_reading_its_checkpoints(play, tmp_path: Path):
    play(until=6)
    (name,) = folders(tmp_path)
    for file in tmp_path.rglob("*.pt"):
        file.write_bytes(b"not one")
    assert f"run {name} of this config stopped at step 4: resume=auto goes on with it" in play()
    assert len(folders(tmp_path)) == 2
    assert (tmp_path / "checkpoints" / name / "step-000000004.best.pt").read_bytes() == b"not one"


@pytest.fixture
def of_others(tmp_path: Path) -> Path:
    """What may lie in a shared output_dir: folders that cannot be read, files that go while they are seen."""
    top = tmp_path / "checkpoints"
    for number, content in enumerate([b"{", b"[]", b"{}", b'{"format": 4, "identity": 7}', b"\xff"]):
        (top / f"other{number}").mkdir(parents=True)
        (top / f"other{number}" / "run.json").write_bytes(content)
        (top / f"other{number}" / "step-000000009.pt").write_bytes(b"x")
    (top / "folder" / "run.json").mkdir(parents=True)
    (top / "folder" / "step-000000009.pt").symlink_to("gone")
    (top / "gone").symlink_to("nowhere")
    (top / "file").write_text("in the way")
    return top


@pytest.mark.parametrize("resume", ["never", "auto"])
def test_what_cannot_be_read_of_others_keeps_no_run_from_its_own(play, of_others: Path, resume: str):
    before = {p: p.lstat().st_mtime_ns for p in of_others.rglob("*") if not p.is_dir()}
    said = play(f"resume={resume}")
    assert ("this is a new run; run" in said) == (resume == "auto")
    assert {p: p.lstat().st_mtime_ns for p in before} == before
    assert len(list(of_others.iterdir())) == 9  # its own beside them


def test_an_earlier_version_s_unfinished_run_is_refused_by_its_format(play, tmp_path: Path, monkeypatch):
    play(until=6)
    (name,) = folders(tmp_path)
    folder = tmp_path / "checkpoints" / name
    (folder / "run.json").unlink()  # there was none
    why = f"resume=auto: run {name} has checkpoints of format 2, this version reads 4; finish it with"
    assert why in refusal(play, "resume=auto")
    assert "stopped at" not in play("resume=never")
    (folder / "recorded").write_text("4")  # so it said that it had ended
    assert "format" not in play("resume=auto", "max_steps=2")
    monkeypatch.setenv("WANDB_RUN_ID", name)
    assert why in refusal(play, "resume=auto")


def test_another_config_is_not_gone_on_with_and_the_fields_are_named(play, tmp_path: Path):
    play(until=6)
    (name,) = folders(tmp_path)
    passed_over = play("resume=auto", "optimizer.lr=0.05", "epochs=3")
    assert "going on" not in passed_over
    why = f"run {name} differs in epochs (2 there, 3 here), optimizer.lr (0.1 there, 0.05 here)"
    assert f"resume=auto: this is a new run; {why}" in passed_over


def test_a_run_that_is_still_going_on_is_left_alone(play, tmp_path: Path):
    play(until=6)
    (name,) = folders(tmp_path)
    store = Store(tmp_path / "checkpoints" / name)
    assert store.lock()
    assert f"new run; run {name} is going on in another process" in play("resume=auto", "max_steps=1")
    store.unlock()
    assert "going on with run" in play("resume=auto")


def test_a_damaged_newest_checkpoint_costs_what_came_after_the_one_before(play, tmp_path: Path):
    play("epochs=3", until=11)
    (name,) = folders(tmp_path)
    newest = Store(tmp_path / "checkpoints" / name).files()[0]
    newest.write_bytes(newest.read_bytes()[:5000])
    said = play("epochs=3", "resume=auto")
    assert f"checkpoint {newest.name} is damaged" in said
    assert "at step 4" in said


def test_if_all_are_damaged_a_new_run_is_begun_and_it_is_said(play, tmp_path: Path):
    play(until=6)
    for file in (tmp_path / "checkpoints").rglob("*.pt"):
        file.write_bytes(b"not one")
    assert "none of the checkpoints" in play("resume=auto")


def test_a_checkpoint_of_another_program_is_refused_in_a_line(play, tmp_path: Path):
    play(until=6)
    (name,) = folders(tmp_path)
    store = Store(tmp_path / "checkpoints" / name)
    state = store.load(print)
    assert state
    del state["optimizer"]
    store.save(state, {}, best=True)
    assert "does not fit this program" in refusal(play, "resume=auto")


def test_a_run_that_goes_on_elsewhere_keeps_the_machine_of_before(play, tmp_path: Path):
    play(until=6)
    store = Store(tmp_path / "checkpoints" / folders(tmp_path)[0])
    state = store.load(print)
    assert state
    machine, elsewhere = state["machine"], {"host": "0123456789ab", "gpu": None}
    store.save(state | {"machine": elsewhere}, {}, best=True)
    out = tmp_path / "out"
    shutil.copytree(tmp_path / "checkpoints", out / "checkpoints")
    assert "at step 4" in play("resume=auto", "wandb.mode=offline", f"output_dir={out}")
    (record,) = load_runs([out])
    assert record.config["environment"]["machine"] == machine | {"earlier": [elsewhere]}


def test_a_save_that_fails_is_said_and_the_training_goes_on(play, tmp_path: Path):
    (tmp_path / "checkpoints").write_text("in the way")
    said = play()
    assert said.count("could not be written") == 2
    assert "going on without it" in said


def test_what_a_run_may_go_on_with_follows_from_the_roles():
    groups = ("wandb", "checkpoint", "plan", "published")
    assert {key for key in MAY_DIFFER if not key.startswith(groups)} == {
        "output_dir",
        "resume",
        "max_steps",
        "device",
        "data.root",
        "data.workers",
        "log.warmup_steps",
    }
    assert {key for key in LEAVES if key.startswith(groups)} < MAY_DIFFER
