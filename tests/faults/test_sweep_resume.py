"""A sweep that is stopped or dies in mid-run, and the same command again: the run goes on from its
checkpoint.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.quick import QUICK, ROOT
from support.same_run import assert_same_state, history
from support.wandb_server.clients import wait_until
from support.zygote import children_of, of_process

from ampcompare.checkpoint.store import Store, read
from ampcompare.records import RunRecord, load_runs

STEPS = 200
WORDS = [
    *QUICK,
    f"max_steps={STEPS}",
    "epochs=1000",
    "log.every=50",
    "eval.every=100",
    "checkpoint.every_epochs=10",
]
SWEEP = {
    "program": "run_experiment.py",
    "method": "grid",
    "parameters": {"backend": {"values": ["native"]}},
    "command": [
        "${env}",
        sys.executable,
        "tests/support/held_run.py",
        "${program}",
        "${args_no_hyphens}",
        *WORDS,
        "diagnostics.every=null",
    ],
}


class Played:
    """`ampcompare sweep` of one run, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out = folder, folder / "out"
        folder.mkdir()
        (folder / "sweep.yaml").write_text(yaml.safe_dump(SWEEP))

    def start(self) -> subprocess.Popen[str]:
        words = ["sweep", str(self.folder / "sweep.yaml"), f"output_dir={self.out}"]
        return subprocess.Popen(
            [sys.executable, "-m", "ampcompare.cli", *words],
            cwd=ROOT,
            env=os.environ
            | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "HOLD": str(self.hold)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @property
    def hold(self) -> Path:
        """While it is there, a run waits behind its first checkpoint."""
        return self.folder / "hold"

    def end(self, process: subprocess.Popen[str]) -> str:
        said, _ = process.communicate()
        assert "Traceback" not in said
        return said

    def wait_for_checkpoint(self) -> None:
        wait_until(lambda: any(self.out.rglob("step-*.pt")))

    def record(self) -> RunRecord:
        (record,) = load_runs([self.out])
        return record

    def last(self) -> Store:
        (folder,) = self.out.glob("**/checkpoints/*")
        return Store(folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """The sweep that nothing happens to."""
    played = Played(tmp_path_factory.mktemp("sweep") / "whole")
    process = played.start()
    said = played.end(process)
    assert process.returncode == 0, said
    return played


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["program killed", "sweep killed"])
def test_the_same_command_goes_on_from_the_checkpoint(whole: Played, tmp_path: Path, fault: str):
    played = Played(tmp_path / "parts")
    played.hold.touch()
    process = played.start()
    played.wait_for_checkpoint()
    if fault == "program killed":  # the sweep tries it once more by itself
        runs = [p for p in children_of(process.pid) if b"run_experiment" in of_process(p, "cmdline")]
        os.kill(runs[0], signal.SIGKILL)
        played.hold.unlink()
    else:
        process.kill()
        said = played.end(process)
        played.hold.unlink()
        assert process.returncode == -9, said
        assert played.record().history["global_step"].max() < STEPS
        process = played.start()
    said = played.end(process)
    assert process.returncode == 0, said
    (log,) = (played.out / "logs").glob("*.log")
    record = played.record()
    assert f"going on with run {record.id} at step " in log.read_text()
    assert (record.state, len(record.paths)) == ("finished", 2)

    one, other = (read(p.last().files()[0]) for p in (whole, played))
    for part in ("model", "optimizer", "precision"):
        assert_same_state(one[part], other[part], part)
    rows, expected = (history(p.record()) for p in (played, whole))
    on_grid = rows["global_step"].isin(expected["global_step"])  # one that is stopped has a row there, too
    assert rows[on_grid]["global_step"].tolist() == expected["global_step"].tolist()
    assert rows["train/loss"].dropna().iloc[-1] == expected["train/loss"].dropna().iloc[-1]
