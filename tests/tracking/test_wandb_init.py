"""The W&B run as the client makes it: mode, names, environment variables, fallbacks."""

from pathlib import Path

import pytest
from support.logs import logged

from ampcompare import load_runs
from ampcompare.config.load import load_config
from ampcompare.errors import UserError
from ampcompare.experiment import describe_record
from ampcompare.runs import RunRecord
from ampcompare.runtime.paths import shell_command
from ampcompare.tracking.wandb_init import start_record


def track(folder: Path, *words: str) -> tuple[RunRecord | None, list[str]]:
    config = load_config("reference", [f"output_dir={folder}", *words])
    folder.mkdir(parents=True, exist_ok=True)
    with logged() as said:
        tracker = start_record(describe_record(config, {"torch": "x"}))
        tracker.log({"global_step": 1, "epoch": 0.5, "train/loss": float("nan")})
        tracker.finish({"best/epoch": 1.0}, 0)
    if tracker.record is None:
        return None, said
    (record,) = load_runs([folder])
    return record, said


def test_a_run_describes_itself_and_that_it_is_offline(tmp_path: Path):
    record, said = track(tmp_path, "backend=apex_o1")
    login = shell_command("wandb", "login")
    assert (record.name, record.project) == ("apex_o1_resnet50_cifar", "comparison-amp")
    assert (record.job_type, record.state) == ("train", "finished")
    assert record.summary["best/epoch"] == 1.0
    assert said == [f"no W&B account, so this run is recorded offline; to stream runs, log in once: {login}"]


def test_config_names_project_group_tags_and_notes(tmp_path: Path):
    words = ("wandb.mode=offline", "wandb.project=mine", "wandb.group=g", "wandb.name=n", "wandb.tags=[a,b]")
    record, said = track(tmp_path, *words, "wandb.notes=why")
    assert (record.project, record.group, record.name, record.notes) == ("mine", "g", "n", "why")
    assert set(record.tags) == {"none", "cifar10", "a", "b"}
    assert said == []


def test_wandbs_own_variables_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    theirs = {"PROJECT": "theirs", "RUN_GROUP": "their-group", "NAME": "their-name", "TAGS": "x,y"}
    for name, value in {**theirs, "MODE": "offline", "NOTES": "their notes"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    words = ("wandb.mode=online", "wandb.project=mine", "wandb.group=g", "wandb.name=n", "wandb.notes=why")
    record, said = track(tmp_path, *words)
    assert (record.project, record.group, record.name) == ("theirs", "their-group", "their-name")
    assert (record.notes, set(record.tags)) == ("their notes", {"x", "y"})
    assert said == []


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("WANDB_TAGS", "x" * 80, "run_tags: .* is 80 characters"),
        ("WANDB_INIT_TIMEOUT", "soon", "init_timeout: Input should be a valid number"),
        ("WANDB_BASE_URL", "nowhere", "base_url: Input should be a valid URL"),
    ],
)
def test_settings_that_the_client_refuses_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
):
    monkeypatch.setenv(variable, value)
    with pytest.raises(UserError, match=f"W&B refuses to start the run: {message}"):
        track(tmp_path)


def test_a_sweeps_id_is_the_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WANDB_SWEEP_ID", "abc123")
    record, _ = track(tmp_path, "wandb.mode=offline", "wandb.group=mine")
    assert record.group == "abc123"


def test_disabled_keeps_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    record, _ = track(tmp_path, "wandb.mode=disabled")
    assert record is None
    assert not list(tmp_path.rglob("*.wandb"))


@pytest.mark.slow
def test_a_server_that_cannot_be_reached_falls_back_to_offline_loudly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # no server listens there
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef0123456789abcdef01234567")
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "10")  # enough for the offline run on a busy machine, too
    record, said = track(tmp_path)
    assert record.state == "finished"
    assert record.history["global_step"].tolist() == [1]
    assert "cannot be reached" in said[-1]
    assert "recorded offline" in said[-1]


def test_a_key_of_the_wrong_form_is_refused_without_showing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("WANDB_API_KEY", "too-short")
    with pytest.raises(UserError) as caught:
        track(tmp_path)
    assert "too-short" not in str(caught.value)
    assert "wandb.mode=offline" in str(caught.value)
