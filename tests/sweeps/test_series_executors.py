"""Several seeds in one process on this machine, as a job of Slurm, as a task of Ray: what survives what."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from support.series_program import SeriesProject, name_of
from support.slurm import Slurm, start_sweep
from support.wandb_server.clients import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def series(tmp_path: Path) -> SeriesProject:
    return SeriesProject(tmp_path)


@pytest.fixture
def sweep(series: SeriesProject, slurm: Slurm) -> Callable[..., str]:
    """Return what runs the command on Slurm to its end, and returns its output."""
    series.replace_outside("outside.scale_time(20)")  # runs and queue are looked at so many times as often

    def run(*words: str, code: int = 0) -> str:
        process = start_sweep(slurm, series, *words)
        output, _ = process.communicate()
        assert process.returncode == code, output
        return output

    return run


def test_a_job_of_slurm_trains_its_seeds_and_status_knows_each(
    series: SeriesProject, slurm: Slurm, sweep: Callable[..., str]
):
    slurm.stop_starting()
    assert " with 2 tasks" in sweep("--workers", "1")
    assert len(slurm.jobs()) == 3  # with the report's
    first, second, third = series.first_group()
    job = slurm.jobs()[0].id
    (series.folder / f"fail-{first}").touch()
    hold = series.hold_run(second)
    slurm.start_again()
    series.wait_until_began(second)
    output = sweep("--workers", "1", "--status", code=3)
    rows = {
        run_id: line for run_id in ids_of(series).values() for line in output.splitlines() if run_id in line
    }
    rows = {name: rows.get(run_id, "") for name, run_id in ids_of(series).items()}
    assert rows[first].startswith("failed")
    assert rows[second].startswith("running")
    assert f"in the queue as job {job}" in rows[second]
    assert rows[third].startswith("running")
    assert f"waits for its turn in job {job}" in rows[third]
    assert "6 points: 5 running, 1 failed" in output
    # By a driver that knows nothing but the journal, the queue and the facts.
    output = sweep("--workers", "1")
    assert "1 failed, 5 waiting or running, nothing new was submitted" in output
    hold.unlink()
    slurm.wait_until_ended()
    pids = {event["name"]: event["pid"] for event in series.events("began")}
    # The job goes on behind a run that failed, in a new process.
    assert pids[first] != pids[second] == pids[third]
    assert [job.state for job in slurm.jobs()] == ["FAILED", "COMPLETED", "COMPLETED"]
    assert "1 of 6 runs failed" in sweep("--workers", "1", code=1)
    assert sorted(series.names("began")) == sorted(ids_of(series))


def ids_of(series: SeriesProject) -> dict[str, str]:
    return {name_of(run): run.run_id for run in series.runs()}


def test_after_slurms_warning_a_job_resumes_its_present_seed_and_then_trains_the_others(
    series: SeriesProject, slurm: Slurm, sweep: Callable[..., str]
):
    """Slurm sends this signal before the time limit, which is a whole minute at least."""
    slurm.stop_starting()
    sweep("--workers", "1")
    first, second, third = series.first_group()
    hold = series.hold_run(second)
    slurm.start_again()
    job = slurm.jobs()[0].id
    series.wait_until_began(second)
    slurm.call("scancel", "--signal=USR2", job)
    slurm.wait(lambda: slurm.show(job, "Restarts") == "1")
    assert series.names("saved") == [second]
    hold.unlink()
    slurm.wait_until_ended()
    assert "no run is left" in sweep("--workers", "1")
    series.check_each_run_finished_once()
    own = [name for name in series.names("began") if name in (first, second, third)]
    assert own == [first, second, second, third]
    assert [run.starts for run in series.runs()] == [1] * 6  # a job that is requeued is the same start


ALL = [f"{backend}-{seed}" for backend in ("none", "native_bf16") for seed in (1, 2, 3)]


def test_on_ray_a_killed_process_a_lost_node_and_a_killed_driver_lose_and_repeat_nothing(
    series: SeriesProject, cluster
):
    """Two nodes with room for one task each, which see the output folder."""
    holds = {name: series.hold_run(name) for name in ALL}
    driver = series.start("--cluster", "ray")
    for name in ("none-1", "native_bf16-1"):
        holds[name].unlink()
    series.wait_until_began("native_bf16-2")
    os.kill(series.wait_until_began("none-2"), signal.SIGKILL)
    series.wait_until_began("none-3")  # in a new process of the same task
    cluster.remove_node(*cluster.worker_nodes, allow_graceful=False)
    wait_until(lambda: any(name in series.names("saved") for name in ("none-3", "native_bf16-2")))
    driver.kill()
    output, _ = driver.communicate()
    assert "raylet" not in output  # Ray's own dozens of lines
    series.wait_until_all_have_ended()
    for name in ALL:
        holds[name].unlink(missing_ok=True)
    code, output = series.sweep("--cluster", "ray")
    assert code == 0, output
    series.check_each_run_finished_once()
    signal_ends = {name_of(run): run.signal_ends for run in series.runs()}
    assert signal_ends["none-2"] == 1
    assert sum(signal_ends.values()) <= 2  # and that of the lost node
