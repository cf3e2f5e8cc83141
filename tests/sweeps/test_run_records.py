"""The records of a run that was started several times under one id, as a sweep reads them."""

from pathlib import Path

import pytest
import wandb

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
