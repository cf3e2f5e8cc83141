"""`ampcompare sweep --cluster slurm --wait`: the driver stays, decides as runs end, and may be killed."""

import os
import signal
import subprocess

import pytest
from support.slurm import Slurm, start_sweep
from support.sweep_project import SweepProject

from ampcompare import load_runs
from ampcompare.sweeps.journal import read_journal

pytestmark = pytest.mark.slow

QUICK_LOOKS = "outside.scale_time(20)"  # runs and queue are looked at so many times as often
XS = {"x": {"values": [1, 2, 3]}}


def start(project: SweepProject, slurm: Slurm, *words: str, before: str = "") -> subprocess.Popen[str]:
    project.replace_outside(f"{QUICK_LOOKS}; {before}")
    return start_sweep(slurm, project, "--wait", *words)


def xs(project: SweepProject, kind: str) -> list[str]:
    return sorted(event["given"]["x"] for event in project.events(kind))


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


def test_a_killed_program_a_killed_node_and_a_killed_driver_lose_and_repeat_nothing(
    project: SweepProject, slurm: Slurm
):
    project.write_file(parameters={**XS, "hold": {"value": "all"}})
    project.hold()
    driver = start(project, slurm)
    project.wait_for("began", 3)
    os.kill(project.events("began")[0]["pid"], signal.SIGKILL)
    project.wait_for("began", 4)  # the driver has submitted it again
    slurm.kill_node()
    slurm.start_node()
    slurm.wait(lambda: len(project.events("began")) == 7)  # Slurm has put the jobs back into its queue
    driver.kill()
    driver.communicate()
    project.release()
    driver = start(project, slurm)
    output, _ = driver.communicate()
    assert driver.returncode == 0, output
    assert xs(project, "ended") == ["1", "2", "3"], output
    assert len({event["run"] for event in project.events("began")}) == 3
    runs = read_journal(project.out).runs.values()
    assert {run.state for run in runs} == {"finished"}
    # A job that Slurm has put back is the same start, and its end was not one by a signal.
    assert sorted((run.starts, run.signal_ends) for run in runs) == [(1, 0), (1, 0), (2, 1)]


def test_ctrl_c_ends_the_command_with_a_line_where_scancel_does_not_answer(
    project: SweepProject, slurm: Slurm
):
    """One call for all jobs, none of which is lost: the same command finds them."""
    project.write_file(parameters={**XS, "hold": {"value": "all"}})
    project.hold()
    calls = project.folder / "calls"
    scancel = slurm.write_program("scancel", f'echo "$@" >> {calls}\nsleep 600')
    driver = start(project, slurm, before="outside.limit_program('scancel', 0.5)")
    project.wait_for("began", 3)
    driver.send_signal(signal.SIGINT)
    output, _ = driver.communicate()
    assert driver.returncode == 130, output
    assert "Traceback" not in output
    jobs = " ".join(job.id for job in slurm.jobs())
    assert calls.read_text().splitlines() == [jobs]
    assert output.count("scancel failed") == 1
    assert f"cancel them with: scancel {jobs}" in output
    scancel.unlink()
    project.release()
    driver = start(project, slurm)
    output, _ = driver.communicate()
    assert driver.returncode == 0, output
    assert xs(project, "began") == ["1", "2", "3"]
