"""Several processes of which one dies, or is asked to stop.

torchrun starts the processes again and the run is resumed, or a second command resumes it.
"""

import os
import subprocess
from pathlib import Path

import pytest
import torch
from support import warm_python
from support.quick import DROPOUT, QUICK, ROOT
from support.same_run import assert_same_run, end_of, record_of, steps_of

pytestmark = pytest.mark.slow
# 8 steps an epoch, 16 in all; with a checkpoint of every moment that allows one: 1, 2, 3, 6, 8, 9, 12, 15,
# 16, and of the first two steps behind a resume.
WORDS = (
    *QUICK,
    DROPOUT,
    "backend=native",
    "data.train_limit=64",
    "log.every=3",
    "recipe=reference",
    "optimizer.momentum=0.9",
    "precision.growth_interval=3",
    "precision.init_scale=1024",
    "checkpoint.every_minutes=1e-9",
    "resume=auto",
)


def torchrun(
    folder: Path, *options: str, words: tuple[str, ...] = (), kills: str = ""
) -> tuple[int, str, str]:
    """Exit code, what it said, what torchrun said."""
    command = [warm_python.python(), "-m", "torch.distributed.run", "--nproc-per-node=2", *options]
    program = [str(ROOT / "tests" / "support" / "ddp_worker.py"), *WORDS, *words, f"output_dir={folder}"]
    given = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "KILLS": kills}
    done = subprocess.run([*command, *program], capture_output=True, text=True, env=given, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a run without a kill."""
    folder = tmp_path_factory.mktemp("whole")
    code, said, problems = torchrun(folder, "--standalone")
    assert code == 0, said + problems
    return folder


def test_each_process_draws_its_own_random_numbers(whole: Path):
    """Else dropout would mask the same activations in all. The first weights are one seed's in each."""
    first, second = end_of(whole)["random"]
    assert not torch.equal(first["torch"], second["torch"])


def test_a_dead_process_ends_all_with_the_cause_and_a_second_command_resumes(tmp_path: Path, whole: Path):
    """One that waited for the dead would reach the limit of a hang: the processes' own is half an hour."""
    code, said, problems = torchrun(tmp_path, "--standalone", kills="1:step:11")
    assert code != 0
    assert "Signal 9 (SIGKILL)" in problems  # the cause
    assert "another process of this run has ended" in said

    code, said, problems = torchrun(tmp_path, "--standalone")
    assert code == 0, said + problems
    assert "resuming run" in said
    assert "at step 9" in said
    assert_same_run(whole, tmp_path)


def test_a_run_restarted_by_torchrun_resumes_exactly_from_its_checkpoint(tmp_path: Path, whole: Path):
    kills = "0:step:5 1:evaluate:8 0:write:12"
    code, said, problems = torchrun(tmp_path, "--standalone", "--max-restarts=3", kills=kills)
    assert code == 0, said + problems
    # torchrun tells of one process each time, and now and then of the one that noticed: exit code 1, not -9.
    assert problems.count("failed (exitcode: ") == 3
    went_on = [line.rpartition(" ")[2] for line in said.splitlines() if "resuming run" in line]
    assert went_on == ["3", "6", "9"]
    assert_same_run(whole, tmp_path)
    assert record_of(tmp_path).state == "finished"
    assert steps_of(tmp_path) == [3, 6, 8, 9, 12, 15, 16]


# Process 1 has no image of the second, last batch: it is asked with none. Log intervals end with epochs.
UNEVEN = ("data.test_limit=9", "eval.batch_size=8", "log.every=8", "checkpoint.every_minutes=null")


def test_a_signal_to_one_process_in_an_evaluation_stops_all_in_it_with_its_code(tmp_path: Path):
    code, said, problems = torchrun(tmp_path, "--standalone", words=UNEVEN, kills="1:evaluate:8:SIGUSR1")
    assert code != 0
    assert "interrupted at step 8 (SIGUSR1)" in said, said + problems
    ends = sorted(line for line in said.splitlines() if line.startswith("process "))
    assert ends == ["process 0 ends with 138", "process 1 ends with 138"]
    assert record_of(tmp_path).history.filter(like="eval/").empty
