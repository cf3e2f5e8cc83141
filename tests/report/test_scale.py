"""200 runs of 4,000 rows: memory and size of the whole command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.log_writer import frame
from support.offline_runs import plan

RUNS, STEPS = 200, 19_500  # a row every 5 steps and one an epoch: 4,000
MEASURED = """
import resource, sys
from pathlib import Path
from ampcompare.cli import main
try:
    main(sys.argv[1:])
finally:
    # Not ru_maxrss of this process: on Linux it starts with that of the one that launched it.
    lines = Path("/proc/self/status").read_text().splitlines()
    own = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    print(own + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
"""
BACKENDS = ("none", "native", "apex_o1", "apex_o2", "fp16")


def write_many_runs(folder: Path) -> None:
    """The rows of one run for each backend, under 200 names and seeds."""
    from wandb.proto import wandb_internal_pb2 as protocol

    plans = {backend: plan(backend, steps=STEPS, epochs=100) for backend in BACKENDS}
    bodies = {}
    for backend, made in plans.items():
        bodies[backend] = []
        for row in made["rows"]:
            record = protocol.Record()
            for key, value in row.items():
                record.history.item.add(nested_key=[key], value_json=json.dumps(value))
            bodies[backend].append(record.SerializeToString())
    for number in range(RUNS):
        backend, seed = BACKENDS[number % 5], number // 5
        head, summary, end = protocol.Record(), protocol.Record(), protocol.Record()
        head.run.run_id, head.run.display_name = f"r{number:03}", f"{backend} {seed}"
        for key, value in (plans[backend]["config"] | {"seed": seed}).items():
            head.run.config.update.add(key=key, value_json=json.dumps(value))
        for key, value in plans[backend]["summary"].items():
            summary.summary.update.add(key=key, value_json=json.dumps(value))
        end.exit.exit_code = 0
        payloads = [head.SerializeToString(), *bodies[backend], summary.SerializeToString()]
        if seed % 3:  # the others crashed
            end.exit.SetInParent()
            payloads.append(end.SerializeToString())
        path = folder / f"offline-run-20260101_000{number:03}-r{number:03}" / f"run-r{number:03}.wandb"
        path.parent.mkdir(parents=True)
        path.write_bytes(frame(payloads))


@pytest.mark.rest
def test_200_runs_of_4000_rows(tmp_path):
    many_runs = tmp_path / "many"
    write_many_runs(many_runs)
    words = ["report", str(many_runs), "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "page: " in done.stdout
    peak_kib = int(done.stderr.splitlines()[-1])
    assert peak_kib < 1_000_000
    content = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert len(content["runs"]) == RUNS
    assert {run["rows"] for run in content["runs"]} == {4000}
    assert (tmp_path / "out" / "index.html").stat().st_size < 15_000_000
