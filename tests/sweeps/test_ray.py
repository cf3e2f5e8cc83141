"""Sweeps on Ray: real clusters of this machine, nodes and drivers that are killed."""

import shutil
import signal
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from rich.console import Console
from support.outside import Outside
from support.quick import ROOT
from support.ray_cluster import NODE
from support.sweep_project import make_grid

from ampcompare.errors import UserError
from ampcompare.runs.run_state import RunState
from ampcompare.sweeps import pipeline
from ampcompare.sweeps.executors.ray_task import RayTask, run_task
from ampcompare.sweeps.journal import Journal, SweepRun, read_journal
from ampcompare.sweeps.prepare import SweepOptions
from ampcompare.sweeps.run_launcher import RunLauncher

# Notes SIGTERM as a training with a checkpoint does, and ends.
NOTES_SIGTERM = """
import signal, sys
def save(number, frame):
    note(event="saved", given=given)
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
"""


def write_soak_sweep(project, points: int, seconds: float) -> Path:
    """Write a sweep of the program that writes a W&B record within so many seconds."""
    shutil.copy(ROOT / "benchmarks" / "soak_program.py", project.folder / "program.py")
    return project.write_file(
        parameters={"x": {"values": list(range(points))}, "seconds": {"value": seconds}}
    )


@pytest.mark.slow
def test_ctrl_c_lets_runs_save_and_leaves_nothing_of_the_local_cluster(project, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    program = project.folder / "program.py"
    program.write_text(program.read_text().replace("def waits", NOTES_SIGTERM + "def waits"))
    project.write_file(parameters={"x": {"values": [1, 2]}, "hold": {"value": "all"}})
    project.hold()
    process = project.start("--cluster", "ray", "ray.num_cpus=1", "--workers", "1")
    project.wait_for("began", 1)
    below = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate()
    assert process.returncode == 130, output
    assert "--cluster=ray" in output
    assert "ray.num_cpus=1" in output
    assert len(project.events("saved")) == 1
    assert psutil.wait_procs(below, timeout=60)[1] == []
    (run,) = read_journal(project.out).runs.values()
    assert run.state is RunState.PREEMPTED


def test_node_that_does_not_see_the_folder_trains_nothing_and_says_so(tmp_path):
    """It has a folder of its own there, with the journal of an earlier sweep of this name."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    with closing(Journal(folder, "s", {})) as journal:
        journal.propose(SweepRun(0))
    launcher = RunLauncher(make_grid(1), folder, (), {}, False)
    line = run_task(RayTask(launcher, (SweepRun(0, "0123abcd"),), None))
    assert line.endswith("elsewhere; use a folder on a drive that all nodes share")


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("ray.num_gpu=1", "did you mean num_gpus or num_cpus?"),
        ("ray.num_gpus=1.5", "expected GPUs of a run"),
        ("ray.num_cpus=true", "expected CPUs of a run"),
        ("ray.memory=0.5", "expected bytes"),
        ('ray.resources={"GPU": 1}', "expected amounts by name"),
        ("ray.max_retries=-2", "expected how often"),
        ('ray.runtime_env={"workingdir": "."}', "did you mean working_dir?"),
        ('ray.runtime_env={"working_dir": "/no/such/folder"}', "not a valid path"),
    ],
)
def test_wrong_word_is_refused_before_anything_is_started(project, monkeypatch, word, message):
    file = write_soak_sweep(project, points=2, seconds=1)
    monkeypatch.chdir(project.folder)
    words = [word, f"output_dir={project.out}"]
    with pytest.raises(UserError) as refusal:
        pipeline.run_sweep(str(file), words, Console(quiet=True), SweepOptions(cluster="ray"))
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not project.out.exists()


def test_ray_that_is_not_installed_is_named_with_its_extra(project, outside: Outside, monkeypatch):
    file = write_soak_sweep(project, points=2, seconds=1)
    monkeypatch.chdir(project.folder)
    outside.uninstall("ray")
    with pytest.raises(UserError, match=r"pip install 'ampcompare\[ray\]'"):
        pipeline.run_sweep(
            str(file), [f"output_dir={project.out}"], Console(quiet=True), SweepOptions(cluster="ray")
        )
    assert not project.out.exists()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:10001"])
def test_cluster_that_does_not_answer_is_refused_in_a_line(project, monkeypatch, address):
    file = write_soak_sweep(project, points=2, seconds=1)
    monkeypatch.chdir(project.folder)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(UserError, match=f"^RAY_ADDRESS={address}: ") as refusal:
        pipeline.run_sweep(
            str(file), [f"output_dir={project.out}"], Console(quiet=True), SweepOptions(cluster="ray")
        )
    assert "\n" not in str(refusal.value)
    assert not project.out.exists()


@pytest.mark.slow
def test_two_runs_with_half_a_gpu_share_the_gpu_of_the_task(project, monkeypatch):
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    project.write_file(parameters={"x": {"values": [1, 2]}, "together": {"value": 2}})
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args=NODE | {"num_cpus": 4, "num_gpus": 1})
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    try:
        code, refusal = project.sweep("--cluster", "ray", "ray.num_gpus=2")
        assert (code, "no node has the resources of a run (CPU 1, GPU 2)" in refusal) == (2, True), refusal
        code, output = project.sweep("--cluster", "ray", "ray.num_gpus=0.5")
    finally:
        cluster.shutdown()
    assert code == 0, output
    assert "2 runs at a time" in output
    assert len(project.events("ended")) == 2
    devices = [event["environment"]["CUDA_VISIBLE_DEVICES"] for event in project.events("began")]
    assert devices == ["0", "0"]
