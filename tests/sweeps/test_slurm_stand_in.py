"""The stand-in for Slurm does what its documentation says of Slurm."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.quick import HANG
from support.slurm import Job, Slurm


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Slurm]:
    with Slurm(tmp_path / "slurm", kill_wait=5) as found:
        yield found


def sh(slurm: Slurm, *words: str) -> str:
    """What a command prints."""
    where, env = slurm.folder, slurm.environment()
    done = subprocess.run(words, cwd=where, env=env, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr
    return done.stdout


def submit(slurm: Slurm, script: str, *options: str) -> list[Job]:
    (slurm.folder / "job.sh").write_text(f"#!/bin/bash\n{script}\n")
    return slurm.find(sh(slurm, "sbatch", "--parsable", *options, "job.sh", "word").strip())


def printed(slurm: Slurm, job: Job) -> str:
    path = slurm.output(job)
    return path.read_text() if path.exists() else ""


def test_an_array_runs_each_index_so_many_at_a_time_and_what_depends_on_it_behind(slurm: Slurm):
    script = "#SBATCH --array=2-6:2%1\n#SBATCH -o out-%A_%a.txt\n\ntrue\n#SBATCH --hold\n"
    script += "echo $1 $SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID $SLURM_ARRAY_TASK_COUNT; squeue -h -o '%i %T'"
    jobs = submit(slurm, script)
    after = slurm.job(sh(slurm, "sbatch", f"-dafterany:{jobs[0].id}", "--wrap", "echo last").split()[-1])
    slurm.wait_until_ended(HANG)
    for number, job in enumerate(jobs):
        first, *queue = printed(slurm, job).splitlines()
        assert first == f"word {jobs[0].id} {2 + 2 * number} 3"
        assert sum("RUNNING" in line for line in queue) == 1
        assert (slurm.folder / f"out-{jobs[0].id}_{2 + 2 * number}.txt").exists()
    assert printed(slurm, after) == "last\n"
    assert sh(slurm, "sacct", "-n", "-P", "-o", "State").split() == ["COMPLETED"] * 4


STEP = "srun sh -c 'trap \"echo step; exit 0\" USR1; echo begun; sleep 60 & wait'"


@pytest.mark.parametrize(("where", "heard"), [("", "step"), ("B:", "batch")])
def test_a_warning_goes_to_the_steps_or_to_the_batch_shell_alone(slurm: Slurm, where: str, heard: str):
    script = f"#SBATCH --signal={where}USR1@120\ntrap 'echo batch; exit 0' USR1\n{STEP} &\nwait $!"
    (job,) = submit(slurm, script)
    slurm.wait(lambda: "begun" in printed(slurm, job), HANG)
    slurm.warn(job)
    slurm.wait(lambda: job.state != "RUNNING", HANG)
    assert printed(slurm, job).split() == ["begun", heard]


def test_a_requeued_job_starts_again_under_its_id(slurm: Slurm):
    script = "#SBATCH --requeue --signal=USR1@120 --open-mode=append\n"
    script += f'if [ -z "$SLURM_RESTART_COUNT" ]; then {STEP}; fi\n'
    script += 'echo $SLURM_JOB_ID ${SLURM_RESTART_COUNT:-0}\n[ -n "$SLURM_RESTART_COUNT" ] || sleep 60'
    (job,) = submit(slurm, script)
    slurm.wait(lambda: "begun" in printed(slurm, job), HANG)
    slurm.preempt(job, seconds=1)
    slurm.wait_until_ended(HANG)
    assert printed(slurm, job).split() == ["begun", "step", str(job.id), "0", str(job.id), "1"]
    assert job.history == ["RUNNING", "SIGUSR1", "SIGTERM", "PENDING", "RUNNING", "COMPLETED"]


def test_what_is_not_to_be_queued_again_ends(slurm: Slurm):
    (job,) = submit(slurm, STEP)
    slurm.wait(lambda: "begun" in printed(slurm, job), HANG)
    slurm.preempt(job)
    slurm.wait_until_ended(HANG)
    assert job.history == ["RUNNING", "SIGTERM", "PREEMPTED"]


def test_a_script_can_have_its_job_queued_again_and_what_ignores_sigterm_is_killed(slurm: Slurm):
    slurm.kill_wait = 0.2
    script = "trap '' TERM\n[ -n \"$SLURM_RESTART_COUNT\" ] && exit 3\n"
    script += "scontrol requeue $SLURM_JOB_ID\nsleep 60 & wait"
    (job,) = submit(slurm, script)
    slurm.wait_until_ended(HANG)
    assert (job.state, job.exit_code, job.restarts) == ("FAILED", 3, 1)


def test_each_task_of_a_step_has_a_number(slurm: Slurm):
    command = "echo $SLURM_PROCID of $SLURM_NTASKS; exit $SLURM_PROCID"
    (job,) = submit(slurm, f"#SBATCH --ntasks=3\nsrun --output=t%t sh -c '{command}'")
    slurm.wait_until_ended(HANG)
    assert [(slurm.folder / f"t{t}").read_text() for t in range(3)] == [f"{t} of 3\n" for t in range(3)]
    assert job.exit_code == 2


def test_options_that_slurm_does_not_know_are_refused(slurm: Slurm):
    env = slurm.environment()
    for words in (["--requeu", "job.sh"], ["--array=a", "--wrap=true"], ["--signal=NO@3", "--wrap=true"]):
        done = subprocess.run(["sbatch", *words], cwd=slurm.folder, env=env, capture_output=True, text=True)
        assert done.returncode == 1
        assert "sbatch: " in done.stderr
    assert not slurm.jobs
