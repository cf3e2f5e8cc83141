"""Files that cannot be read are left out and named; a source without any run is refused."""

import re
from pathlib import Path

import pytest
from support.fakes import plan
from support.log_templates import write
from support.logs import logged
from support.wandb_files import write_runs

from ampcompare import load_runs
from ampcompare.errors import UserError

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 4096\n"
TABLE = "step,loss\n1,0.5\n2,0.25\n"
STATE_FILE = '{"global_step": 2, "log_history": [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}]}'
LINES = '{"step": 1, "loss": 0.5}\n{"step": 2, "val": {"acc": 0.75}}\n'


def names_and_notes(folder: Path) -> tuple[list[str], list[str]]:
    """Return the files that were read, and the log messages."""
    with logged() as notes:
        runs = load_runs([folder])
    return [str(run.paths[0].relative_to(folder)) for run in runs], notes


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("metrics.csv", POINTER, "git lfs pull"),
        ("events.out.tfevents.1.host", POINTER, "git lfs pull"),
        ("offline-run-1-abc/run-abc.wandb", POINTER, "git lfs pull"),
        ("metrics.csv", "step,loss\n", "a header and no row"),
        ("metrics.csv", "size,label\n1,2\n", "none of its columns is a step; --step COLUMN"),
        ("metrics.csv", "size;acc\n1;0,5\n", "none of its columns is a step"),
        ("metrics.csv", "step|acc\n1|0.5\n", "none of its columns is a step"),
        ("a.jsonl", '{"loss": 1, "acc": 2}\n', "none of its columns is a step"),
        ("a.jsonl", "loss 1\n", "none of its lines is a JSON object"),
        ("a.json", '{"loss": 1, "acc": 2}\n{"loss": 0.5, "acc": 3}\n', "none of its columns is a step"),
        ("a.json", '{"loss": 1, "acc": 2}\n', "it is no log of JSON lines"),
        ("a.json", '[\n{"loss": 1},\n{"loss": 0.5}\n]\n', "none of its columns is a step"),
        ("a.json", '{\n"train": {"loss": 1},\n"eval": {"loss": 2}\n}\n', "it is no log of JSON lines"),
        ("table.csv", "1,0.5\n2,0.25\n", "it has no header: its first line is all numbers"),
        ("trainer_state.json", '{"log_history": []}', "it holds no value"),
    ],
)
def test_a_file_without_a_run_is_left_out_among_others_and_refused_alone(tmp_path, name, text, why):
    bad = write(tmp_path / "bad" / name, text)
    with pytest.raises(UserError) as caught:
        load_runs([tmp_path])
    assert bad.name in str(caught.value)
    assert why in str(caught.value)
    with pytest.raises(UserError, match=re.escape(why)):
        load_runs([bad])
    write(tmp_path / "good.csv", TABLE)
    runs, notes = names_and_notes(tmp_path)
    assert runs == ["good.csv"]
    # The others may be data, or are not looked into.
    if name not in ("a.json", "a.jsonl", "table.csv", "trainer_state.json"):
        assert any(str(bad) in note and why in note for note in notes)


def test_lightnings_placeholder_alone_is_no_run(tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    with tensorboard.SummaryWriter(str(tmp_path / "version_0")) as writer:
        writer.add_scalar("hp_metric", -1, 0)
    with pytest.raises(UserError, match="hp_metric alone"):
        load_runs([tmp_path])
    write(tmp_path / "version_0" / "metrics.csv", TABLE)
    runs, notes = names_and_notes(tmp_path)
    assert runs == ["version_0/metrics.csv"]
    assert any("hp_metric alone" in note for note in notes)
    with tensorboard.SummaryWriter(str(tmp_path / "version_1")) as writer:  # of another run, which is read
        writer.add_scalar("acc", 0.5, 0)
    assert len(names_and_notes(tmp_path)[0]) == 2


def test_hidden_folders_and_copies_are_not_read(tmp_path):
    for copy in ("metrics.csv", "metrics-Copy1.csv", "metrics copy.csv", "Copy of metrics.csv"):
        write(tmp_path / copy, TABLE)
    write(tmp_path / ".ipynb_checkpoints" / "metrics-checkpoint.csv", TABLE)
    write(tmp_path / "metrics (2).csv", TABLE.replace("0.25", "0.125"))  # another run
    runs, notes = names_and_notes(tmp_path)
    assert sorted(runs) == ["metrics (2).csv", "metrics.csv"]
    assert sum("it has the bytes of" in note for note in notes) == 3
    assert not any("ipynb" in note for note in notes)


def test_a_run_of_wandb_that_was_copied_is_one_run(tmp_path):
    (path,) = write_runs(tmp_path, [plan("none")])
    copy = tmp_path / "backup" / path.parent.name / path.name
    copy.parent.mkdir(parents=True)
    copy.write_bytes(path.read_bytes())
    (run,) = load_runs([tmp_path])
    assert run.problems == []


def test_kinds_are_recognised_by_content_under_any_name(tmp_path):
    write(tmp_path / "a" / "trainer_state (1).json", STATE_FILE)
    write(tmp_path / "a" / "settings.json", '{"step": "no log"}')
    write(tmp_path / "a" / "all_results.json", '{"_step": 2, "step": 2, "loss": 0.25}\n')  # a summary
    runs, notes = names_and_notes(tmp_path / "a")
    assert runs == ["trainer_state (1).json"]
    assert not any("JSON lines" in note for note in notes)
    (path,) = write_runs(tmp_path / "b", [plan("none")])
    moved = tmp_path / "c" / "downloaded.wandb"
    moved.parent.mkdir()
    path.rename(moved)
    assert names_and_notes(tmp_path / "c")[0] == ["downloaded.wandb"]
    write(tmp_path / "d" / "log.txt", f"{LINES}no JSON\n")
    (run,) = load_runs([tmp_path / "d"])
    assert run.values("val.acc").tolist() == [0.75]
    assert run.problems == ["1 line is not a JSON object and was skipped."]
    assert load_runs([write(tmp_path / "log", TABLE)])[0].values("loss").tolist() == [0.5, 0.25]


@pytest.mark.parametrize("content", [b"", b":W&B\xe1\xbe\x00", b":W&B\xe1\xbe\x00torn"])
def test_a_named_file_without_a_run_is_left_out_beside_others(tmp_path, content):
    """The client of a run that was killed early may not have written its record."""
    (whole,) = write_runs(tmp_path / "whole", [plan("native", 1, id="one")])
    empty = write(tmp_path / "offline-run-20260101_000000-one" / "run-one.wandb", content)
    with logged() as messages:
        assert [run.id for run in load_runs([empty, whole])] == ["one"]
    assert any(one.startswith(f"left out: {empty}: no run can be read from it") for one in messages)
    write(tmp_path / "offline-run-20260102_000000-one" / "run-one.wandb", content)  # alike, and no copy
    with pytest.raises(UserError) as refused:
        load_runs([*tmp_path.glob("offline*")])
    assert "bytes of" not in str(refused.value)


@pytest.mark.parametrize(
    ("backend", "config", "option"),
    [
        ("native", {"precision": {"dtype": "float16"}}, "precision.dtype=float16"),
        ("none", {"tf32": True}, "backend=none tf32=true"),
    ],
)
def test_a_record_of_a_version_before_0_3_is_left_out_by_name(tmp_path, backend, config, option):
    write_runs(tmp_path / "old", [plan(backend, 1, id="old", config=config)])
    reason = f"(old): left out: {option} is of a version before 0.3; AMP Compare 0.4 reads this record"
    with pytest.raises(UserError, match=rf"{re.escape(reason)}; no run is left to read$"):
        load_runs([tmp_path])
    write_runs(tmp_path / "new", [plan("native", 2, id="new", config={"recorder": {"every": 50}} | config)])
    runs, notes = names_and_notes(tmp_path)  # a recorded loop may have any options
    assert len(runs) == 1
    assert any(note.endswith(reason) for note in notes)
