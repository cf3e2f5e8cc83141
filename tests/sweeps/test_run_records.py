"""The records of a run that was started several times under one id, as a sweep reads them."""

import os
from pathlib import Path

import pytest
import wandb
from support.outside import Outside

from ampcompare import load_runs
from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.run_records import RunRecords
from ampcompare.wandb_client.client import end_service

METRIC = "eval/accuracy"


def write_starts(folder: Path, run_id: str, values: list[float], exit_codes: list[int]) -> None:
    """Record one start of the run for each value, all of them within one second, as W&B names folders."""
    settings = wandb.Settings(console="off", quiet=True)
    second = ""
    for number, (value, exit_code) in enumerate(zip(values, exit_codes, strict=True)):
        run = wandb.init(id=run_id, dir=folder, mode="offline", settings=settings)
        run.log({METRIC: value, "global_step": number})
        made = Path(run.dir).parent
        run.finish(exit_code=exit_code)
        end_service()
        second = second or made.name
        made.rename(made.parent / (f"{second}-{number}" if number else second))


@pytest.mark.slow
def test_the_last_start_of_a_second_counts(tmp_path: Path):
    run_id, count = "a.b-1", 3
    values = [0.6 + number / 100 for number in range(count)]
    write_starts(tmp_path, run_id, values, [1] * (count - 1) + [0])
    write_starts(tmp_path, f"{run_id}-9", [0.1], [3])  # another run, with an id that looks like a start
    records = RunRecords(tmp_path, METRIC)
    assert records.values(run_id) == values
    assert records.record(SweepRun(0, run_id)).exit_code == 0
    (run,) = [run for run in load_runs([tmp_path]) if run.id == run_id]
    assert run.values(METRIC).tolist() == values
    assert run.exit_code == 0
    assert records.files("another") == []


def test_the_folder_of_the_records_is_listed_once_for_all_runs(tmp_path: Path, outside: Outside):
    listed: list[object] = []
    outside.call_before(os, "listdir", listed.append)
    for number in range(20):
        folder = tmp_path / "wandb" / f"offline-run-20260101_00000{number % 10}-r{number}"
        folder.mkdir(parents=True)
        (folder / f"run-r{number}.wandb").touch()
    records = RunRecords(tmp_path, METRIC)
    run_ids = [f"r{number}" for number in range(20)]
    for count in (1, 2):
        records.refresh()
        assert [len(records.files(run_id)) for run_id in run_ids] == [1] * 20
        assert len(listed) == count
    late = tmp_path / "wandb" / "offline-run-20260101_000009-r3-1"
    late.mkdir()
    (late / "run-r3.wandb").touch()
    assert len(records.files("r3")) == 1
    records.refresh()
    assert [file.parent.name[-2:] for file in records.files("r3")] == ["r3", "-1"]
