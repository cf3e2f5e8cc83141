"""Fifty runs of 4,000 rows in the form of W&B's client: memory of the whole command, size of its page."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.fakes import plan
from support.wandb_files import client_records, frame, row_records

RUNS, STEPS = 50, 19_500  # a row every 5 steps and one an epoch: 4,000
BACKENDS = ("none", "native", "apex_o1", "apex_o2", "fp16")
# The most memory of this process and of the largest that it started; on two processors there is one such.
MEASURED = """
import os, resource, sys
from pathlib import Path
from ampcompare.cli import main
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
try:
    main(sys.argv[1:])
finally:
    # Not ru_maxrss of this process: on Linux it starts with that of the one that launched it.
    lines = Path("/proc/self/status").read_text().splitlines()
    own = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    print(own + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
"""


def write_many_runs(folder: Path) -> None:
    """Write one run per backend 50 times, with different names and seeds."""
    plans = {backend: plan(backend, steps=STEPS, epochs=100) for backend in BACKENDS}
    rows = {backend: row_records(made["rows"]) for backend, made in plans.items()}
    for number in range(RUNS):
        backend, seed, run_id = BACKENDS[number % 5], number // 5, f"r{number:03}"
        made = plans[backend]
        changed = {
            "config": made["config"] | {"seed": seed},
            "wandb": made["wandb"] | {"id": run_id, "name": f"{backend} {seed}"},
            "kill": seed % 3 == 0,  # these crashed
        }
        path = folder / f"offline-run-20260101_000{number:03}-{run_id}" / f"run-{run_id}.wandb"
        path.parent.mkdir(parents=True)
        path.write_bytes(frame(client_records(made | changed, rows[backend])))
        os.utime(path, (1_795_400_000,) * 2)  # long over


@pytest.mark.slow
def test_many_runs_have_their_report_in_550_mb(tmp_path):
    runs, out = tmp_path / "runs", tmp_path / "out"
    write_many_runs(runs)
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, "report", str(runs), "--out", str(out)],
        env=os.environ | {"AMPCOMPARE_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
    )
    for path in runs.glob("*/*.wandb"):  # 200 MB; pytest would keep them
        path.unlink()
    assert done.returncode == 0, done.stderr
    assert "page: " in done.stdout
    assert int(done.stderr.splitlines()[-1]) < 550_000  # KiB
    content = json.loads((out / "comparison.json").read_text())
    assert len(content["runs"]) == RUNS
    assert {run["rows"] for run in content["runs"]} == {4000}
    assert (out / "index.html").stat().st_size < 15_000_000
