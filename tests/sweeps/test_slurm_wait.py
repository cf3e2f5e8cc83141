"""`ampcompare sweep --cluster slurm --wait`: the driver stays, decides as runs end, and may be killed."""

import os
import random
import signal
import subprocess
import time
from collections import Counter

import psutil
import pytest
from support.quick import ROOT
from support.slurm import Job, Slurm
from support.sweep_project import SweepProject

from ampcompare import load_runs
from ampcompare.runs.wandb_file import read_wandb_file
from ampcompare.sweeps.journal import read_journal

pytestmark = pytest.mark.slow

QUICK_LOOKS = "outside.scale_time(20)"  # runs and queue are looked at so many times as often


def start(project: SweepProject, slurm: Slurm, *words: str, before: str = "") -> subprocess.Popen[str]:
    project.replace_outside(f"{QUICK_LOOKS}; {before}")
    return subprocess.Popen(
        project.command("--cluster", "slurm", "--wait", *words),
        cwd=project.folder,
        env=slurm.environment(PYTHONPATH=f"{ROOT / 'src'}"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_search_that_learns_goes_on_as_its_jobs_end(project: SweepProject, slurm: Slurm):
    project.write_file(
        program="logger.py",
        method="bayes",
        run_cap=3,
        metric={"name": "score", "goal": "maximize"},
        parameters={"x": {"min": 0.0, "max": 1.0}, "steps": {"value": 1}},
    )
    driver = start(project, slurm, "--workers", "1")
    output, _ = driver.communicate()
    assert driver.returncode == 0, output
    assert "best run: " in output
    assert len(load_runs([str(project.out)])) == 3
    lines = [line.partition(" ")[2] for line in output.splitlines() if line.startswith("run ")]
    states = [line.split()[1] for line in lines]
    assert states == ["started", "finished"] * 3  # one after the other


def test_ctrl_c_cancels_the_jobs_in_order_and_the_same_command_continues(project: SweepProject, slurm: Slurm):
    project.write_file(parameters={"x": {"values": [1, 2]}, "hold": {"value": "all"}})
    project.hold()
    driver = start(project, slurm)
    project.wait_for("began", 1)
    driver.send_signal(signal.SIGINT)
    output, _ = driver.communicate()
    assert driver.returncode == 130, output
    assert not [job for job in slurm.jobs if job.state in ("PENDING", "RUNNING")]
    project.release()
    driver = start(project, slurm)
    output, _ = driver.communicate()
    assert driver.returncode == 0, output
    assert sorted(event["given"]["x"] for event in project.events("ended")) == ["1", "2"]


def test_jobs_that_are_preempted_and_killed_and_a_killed_driver_lose_and_repeat_nothing(
    project: SweepProject, slurm: Slurm
):
    """A soak of 16 points on four machines.

    No run gets more than two signals: a warning that a job gets before it listens ends the job, too, and a
    run that three signals end has failed.
    """
    dice, points = random.Random(3), 16
    program = ROOT / "benchmarks" / "soak_program.py"
    parameters = {"x": {"values": [*range(points)]}, "seconds": {"value": 1.5}}
    project.write_file(program=str(program), parameters=parameters, name="soak")
    slurm.slots = 4
    driver = start(project, slurm)
    signals: Counter[str] = Counter()
    driver_kills = warnings = 0
    while driver.poll() is None:
        time.sleep(dice.expovariate(1.0))
        running = [
            job for job in [*slurm.jobs] if job.state == "RUNNING" and "soak" in job.options["job-name"]
        ]
        if running and dice.random() < 0.4:
            job = dice.choice(running)
            run = run_of(job, project)
            if signals[run] < 2 and job.state == "RUNNING" and job.process.poll() is None:
                signals[run] += 1
                warnings += 1
                slurm.warn(job)
        else:
            runs = [*running_programs(program, project)]
            pid, run = dice.choice(runs) if runs else (0, "")
            if pid and signals[run] < 2:
                signals[run] += 1
                os.kill(pid, signal.SIGKILL)
        if driver_kills < 1 and sum(signals.values()) - warnings > 2:
            driver_kills += 1
            driver.kill()
            driver.communicate()
            driver = start(project, slurm)
    output, _ = driver.communicate()
    assert (driver.returncode, driver_kills) == (0, 1), output
    assert sum(signals.values()) - warnings > 2
    assert any(job.restarts for job in slurm.jobs)
    runs = load_runs([str(project.out)])
    assert sorted(run.config["x"] for run in runs) == [*range(points)]
    assert {run.state for run in runs} == {"finished"}
    ends = Counter(
        file.stem for file in project.out.glob("wandb/*/*.wandb") if read_wandb_file(file).exit_code == 0
    )
    assert set(ends.values()) == {1}
    assert [run.state for run in read_journal(project.out).runs.values()] == ["finished"] * points
    assert not [*running_programs(program, project)]


def run_of(job: Job, project: SweepProject) -> str:
    """Return the id of the run that a job has, or the job's name if the journal does not have it yet."""
    runs = read_journal(project.out).runs.values()
    return next((run.run_id for run in runs if run.process.get("job") == job.name), job.name)


def running_programs(program, project: SweepProject):
    """Process id and run id of each program that runs."""
    for process in psutil.process_iter():
        try:
            if str(program) in process.cmdline() and process.cmdline()[0] != "sh":
                environment = process.environ()
                if environment.get("WANDB_DIR") == str(project.out):
                    yield process.pid, environment["WANDB_RUN_ID"]
        except (psutil.Error, KeyError):
            continue


def test_the_driver_submits_a_run_that_a_signal_ended_three_times_in_all(project: SweepProject, slurm: Slurm):
    """Its job does not start it again, so that there is one rule for all executors."""
    project.prepend("import os, signal, sys\n")
    program = project.folder / "program.py"
    dies = "if given['x'] == '1': os.kill(os.getpid(), signal.SIGKILL)"
    program.write_text(program.read_text().replace("def waits", f"{dies}\ndef waits"))
    project.write_file(parameters={"x": {"values": [1, 2]}})
    driver = start(project, slurm)
    output, _ = driver.communicate()
    assert driver.returncode == 1, output
    assert "ended by a signal (1 of 3)" in output
    began = [(event["given"]["x"], event["run"]) for event in project.events("began")]
    assert sorted(x for x, _ in began) == ["1", "1", "1", "2"]
    assert len({run for _, run in began}) == 2  # under one id
    killed = [job for job in slurm.jobs if job.state == "FAILED"]
    assert (len(killed), [job.restarts for job in killed]) == (3, [0, 0, 0])
    states = {run.parameters["x"]: run for run in read_journal(project.out).runs.values()}
    assert (states[1].state, states[1].starts, states[1].signal_ends) == ("failed", 3, 3)
    assert (states[2].state, states[2].starts) == ("finished", 1)


@pytest.mark.parametrize(
    "answer", ["sleep 600", "echo 'scancel: error: Unable to contact controller' >&2; exit 1"]
)
def test_ctrl_c_ends_the_command_with_a_line_where_scancel_does_not_answer(
    project: SweepProject, slurm: Slurm, answer: str
):
    """One call for all jobs, none of which is lost: the same command finds them."""
    project.write_file(parameters={"x": {"values": [1, 2, 3]}, "hold": {"value": "all"}})
    project.hold()
    slurm.slots = 2
    calls = project.folder / "calls"
    scancel = slurm.folder / "bin" / "scancel"
    scancel.rename(scancel.with_suffix(".own"))
    scancel.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n{answer}\n')
    scancel.chmod(0o755)
    driver = start(project, slurm, before="outside.limit_program('scancel', 0.5)")
    project.wait_for("began", 2)
    driver.send_signal(signal.SIGINT)
    output, _ = driver.communicate()
    assert driver.returncode == 130, output
    assert "Traceback" not in output
    assert calls.read_text().splitlines() == ["101_0 101_1 101_2"]
    assert output.count("scancel failed") == 1
    assert "cancel them with: scancel 101_0 101_1 101_2" in output
    scancel.with_suffix(".own").rename(scancel)
    project.release()
    driver = start(project, slurm)
    output, _ = driver.communicate()
    assert driver.returncode == 0, output
    assert sorted(event["given"]["x"] for event in project.events("began")) == ["1", "2", "3"]
