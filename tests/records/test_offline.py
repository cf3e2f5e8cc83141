"""The reader against files of the real client, and against what W&B's own reader says of the same files."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ampcompare.records.offline import read_fragment
from support.log_writer import frame
from support.offline_runs import plan

from ampcompare.former import config_now
from ampcompare.records import load_runs
from ampcompare.records.run import RunRecord, merge
from ampcompare.records.tree import flatten


def read(path: Path, **options) -> RunRecord:
    return merge([read_fragment(path, **options)])


def leet(path: Path, *options: str) -> str:
    """What `wandb leet inspect` prints."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_")}
    command = [sys.executable, "-m", "wandb", "leet", "inspect", str(path), "--json", *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def leet_rows(path: Path) -> list[dict]:
    """The history rows that W&B's own reader finds, values in the form of ours."""
    records = [json.loads(line) for line in leet(path).splitlines() if line.startswith("{")]
    return [record["history"]["item"] for record in records if record["type"] == "history"]


def our_rows(run: RunRecord) -> list[dict]:
    rows = []
    nan_rows = {name: set(numbers) for name, numbers in run.nan_rows.items()}
    for number, row in enumerate(run.history.to_dict("records")):
        there = {
            k: v
            for k, v in row.items()
            if v is not None and (not _is_nan(v) or number in nan_rows.get(k, ()))
        }
        rows.append({k: _as_leet_says(v) for k, v in there.items()})
    return rows


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _as_leet_says(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {k: _as_leet_says(v) for k, v in value.items()}
    return value


def without_nulls(row: dict) -> dict:
    return {k: v for k, v in row.items() if v is not None}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["usual", "odd", "killed"])
def test_history_equals_that_of_the_public_reader(real_runs, name):
    theirs = [without_nulls(row) for row in leet_rows(real_runs[name])]
    assert theirs
    assert our_rows(read(real_runs[name])) == theirs


@pytest.mark.parametrize("name", ["usual", "odd", "failed"])
def test_config_and_summary_equal_those_of_the_public_reader(real_runs, name):
    theirs = json.loads(leet(real_runs[name], "--summary"))
    ours = read(real_runs[name])
    # The public reader leaves out groups without members; here they are kept.
    assert {k: v for k, v in ours.config.items() if v != {}} == config_now(theirs["config"], {})
    summary = {k: v for k, v in _as_leet_says(ours.summary).items() if v is not None}
    assert summary == without_nulls(theirs["summary"])
    assert (ours.id, ours.name, ours.project) == (theirs["run_id"], theirs["name"], theirs["project"])
    assert ours.exit_code == theirs["exit_code"]


@pytest.mark.parametrize("share", [0.2, 0.77])
def test_truncated_file_reads_like_in_the_public_reader(real_runs, tmp_path, share):
    whole = real_runs["usual"].read_bytes()
    cut = tmp_path / "offline-run-20260101_000000-cut" / "run-cut.wandb"
    cut.parent.mkdir()
    cut.write_bytes(whole[: int(len(whole) * share)])
    theirs = [without_nulls(row) for row in leet_rows(cut)]
    ours = read(cut)
    assert 0 < len(theirs) < len(leet_rows(real_runs["usual"]))
    assert our_rows(ours) == theirs
    assert "ends inside a record" in ours.problems[0]


def test_damaged_file_reads_like_in_the_public_reader(real_runs, tmp_path):
    damaged = bytearray(real_runs["usual"].read_bytes())
    damaged[20_000] ^= 0xFF
    file = tmp_path / "offline-run-20260101_000000-bad" / "run-bad.wandb"
    file.parent.mkdir()
    file.write_bytes(damaged)
    theirs = [without_nulls(row) for row in leet_rows(file)]
    ours = read(file)
    assert our_rows(ours) == theirs
    assert ours.state == "finished"
    assert "bad checksum" in ours.problems[0]


def test_run_record_of_a_usual_run(real_runs):
    run = read(real_runs["usual"])
    assert (run.name, run.group, run.job_type, run.notes) == ("usual", "together", "train", "a note")
    assert run.tags == ("one", "two")
    assert run.project == "comparison-amp"
    assert run.state == "finished"
    assert run.problems == []
    assert run.started_at is not None
    assert run.paths == (real_runs["usual"],)
    assert run.option("backend") == "native"
    assert run.option("model.name") == "resnet50"
    assert run.option("late.added") == 1
    assert run.option("batch_size") == 256  # the update, not what init was given
    assert run.summary["environment"]["device_name"] == "Test Device 9000"
    assert run.summary_number("throughput/images_per_second_median") == 76.0
    assert run.history["global_step"].dtype == np.float64


def test_rows_with_one_step_are_all_kept_and_logged_nan_is_known(real_runs):
    run = read(real_runs["odd"])
    assert list(run.numbers("global_step")) == [0, 1, 1, 2]
    assert run.history["train/loss"].tolist()[1:3] == [1e-300, 1e300]
    assert list(run.history["nested.b.c"]) == ["x", None, None, None]
    assert list(run.values("third")) == [1 / 3]


def test_states_follow_from_exit_code_and_age(real_runs):
    killed = real_runs["killed"]
    written = killed.stat().st_mtime
    assert read(real_runs["failed"]).state == "failed"
    assert read(real_runs["failed"]).exit_code == 3
    assert read(killed, now=written + 59).state == "running"
    assert read(killed, now=written + 61).state == "crashed"
    assert len(read(killed).history) == len(plan("none", 3)["rows"])


def test_a_cut_never_loses_an_earlier_row(real_runs, tmp_path):
    whole = real_runs["odd"].read_bytes()
    file = tmp_path / "run-cut.wandb"
    rows_before = 0
    for cut in [*range(0, len(whole), 7), len(whole)]:  # every byte: see test_framing
        file.write_bytes(whole[:cut])
        fragment = read_fragment(file, now=0)
        assert fragment.rows >= rows_before, cut
        rows_before = fragment.rows
    assert rows_before == 4


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b":W&", "ends inside a record"),
        (b":W&B\xe1\xbe\x00", "no run record"),
        (b"\x89PNG\r\n" + bytes(range(256)) * 300, "not a .wandb file"),
        (frame([b"\xff" * 20, b"\xff\xff"]), "could not be decoded"),
        (frame([bytes([0xFA, 0x3E, 0x00])] * 3), "3 records of the unknown kind 1007"),
    ],
)
def test_file_without_a_run_becomes_a_sentence(tmp_path, content, words):
    file = tmp_path / "run-abc.wandb"
    file.write_bytes(content)
    run = read(file, now=0)
    assert words in " ".join(run.problems)
    assert (run.id, run.name, run.state, len(run.history)) == ("abc", "abc", "crashed", 0)


def test_pipe_and_folder_under_such_a_name_are_not_opened(tmp_path):
    os.mkfifo(tmp_path / "run-pipe.wandb")
    (tmp_path / "run-folder.wandb").mkdir()
    for name in ("run-pipe.wandb", "run-folder.wandb"):
        assert "not a plain file" in read(tmp_path / name).problems[0]


def test_file_that_vanishes_is_a_sentence(tmp_path):
    assert "Reading stopped: No such file" in read(tmp_path / "run-gone.wandb").problems[0]


def test_config_is_complete_without_any_wandb_key(real_runs):
    keys = {key for key, _ in flatten(read(real_runs["usual"]).config)}
    assert not any(key.startswith("_wandb") for key in keys)


def test_reading_loads_neither_torch_nor_wandb(real_runs, tmp_path):
    shutil.copytree(real_runs["usual"].parent, tmp_path / real_runs["usual"].parent.name)
    code = (
        "import sys; from ampcompare.records import load_runs; "
        f"assert len(load_runs([{str(tmp_path)!r}])) == 1; "
        "print({'torch', 'torchvision', 'wandb', 'altair'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_load_runs_reads_what_the_client_wrote(real_runs):
    folder = real_runs["usual"].parents[2]
    runs = {run.name: run for run in load_runs([folder])}
    assert set(runs) == {"usual", "</script><script>alert(1)</script>", "apex_o1_resnet50", "none_resnet50"}
