"""What a sweep says of its runs as they end."""

from __future__ import annotations

import io

from rich.console import Console

from ampcompare.sweeps.display import SweepDisplay
from ampcompare.sweeps.file import read_sweep
from ampcompare.sweeps.worker import Job


def test_what_is_done_counts_the_runs_of_other_workers(tmp_path):
    file = tmp_path / "sweep.yaml"
    file.write_text("program: x.py\nmethod: grid\nparameters: {x: {values: [1, 2, 3, 4]}}\n")
    ended, said = iter([3, 4]), io.StringIO()
    sweep = read_sweep(file)
    with SweepDisplay(
        Console(file=said, width=200), sweep, 1, 0, sweep.total, lambda: next(ended)
    ) as display:
        for number in (0, 3):
            job = Job(number, f"r{number}", {"x": 1}, 1, None, began=0.0, worker=0)
            display.change(job)
            job.state, job.seconds = "finished", 1.0
            display.change(job)
    first, last = [line for line in said.getvalue().splitlines() if "finished" in line]
    assert "(3 of 4 done, 1.0 s left)" in first
    assert last.endswith("(4 of 4 done)")
