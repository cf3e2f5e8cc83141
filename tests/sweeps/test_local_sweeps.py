"""Sweeps without a server, from the command line: real processes, real signals."""

import os
import re
import signal
import time

import pytest
import yaml
from rich.console import Console
from support.fakes import plan
from support.faults import children_of
from support.outside import Outside
from support.shell import run_in_shell
from support.sweep_project import is_alive
from support.wandb_files import write_runs

from ampcompare.errors import UserError
from ampcompare.runs.run_state import RunState
from ampcompare.sweeps import pipeline
from ampcompare.sweeps.executors import local
from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.prepare import SweepOptions
from ampcompare.sweeps.sweep import orders
from ampcompare.sweeps.sweep_file import read_sweep
from ampcompare.sweeps.sweep_report import look_at_runs


def values(events):
    return sorted(event["given"]["x"] for event in events)


@pytest.mark.slow
def test_every_point_is_run_once_in_the_environment_of_wandbs_agent_whatever_its_values(project):
    hostile = ["a b", 'it\'s "q"', "x=y", "é☃", "line\nbreak", "\x1b[2J", "[/b]:smile:", "-" * 300]
    points = [1, 2.5, None, True, *hostile]
    project.write_file(name="näme {0} 100%", project="ours", parameters={"x": {"values": points}})
    code, output = project.sweep("--workers", "2")
    assert code == 0, output
    assert values(project.events("ended")) == sorted(map(str, points))
    assert "12 of 12 done" in output
    assert "\x1b" not in output
    assert len([line for line in output.splitlines() if " started: " in line]) == 12
    for event in project.events("began"):
        environment = event["environment"]
        assert (environment["WANDB_SWEEP_ID"], environment["WANDB_PROJECT"]) == ("näme {0} 100%", "ours")
        assert re.fullmatch(r"[0-9a-f]{8}", event["run"])
        with open(environment["WANDB_SWEEP_PARAM_PATH"]) as file:
            (value,) = yaml.safe_load(file)["x"].values()
        assert str(value) == event["given"]["x"]
    code, output = project.sweep("--workers", "2")
    assert (code, ", 12 already done," in output) == (0, True)
    assert len(project.events("began")) == 12


# Has time to save its state at SIGTERM, and ends with 0.
QUITS = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), note(event="saved"), sys.exit(0)))
"""


@pytest.mark.slow
def test_a_run_gets_its_part_of_the_plan_and_another_program_none_of_it(project):
    """The record of another program has the plan; runs of the control chaos begin with other last bits."""
    command = ["${interpreter}", "${program}", "${args}"]
    file = {"x": {"values": [1]}, "plan": {"parameters": {"margin": {"value": 0.01}}}}
    project.write_file(parameters=file, command=command)
    code, output = project.sweep("plan.looks=2,3")
    assert code == 0, output
    (event,) = project.events("began")
    assert event["given"] == {"x": "1"}
    with open(event["environment"]["WANDB_SWEEP_PARAM_PATH"]) as recorded:
        assert yaml.safe_load(recorded)["plan"]["value"].items() >= {"margin": 0.01, "looks": [2, 3]}.items()
    training = "# ampcompare.entrypoint\n" + (project.folder / "program.py").read_text()
    (project.folder / "run_experiment.py").write_text(training)
    parameters = {"backend": {"values": ["none", "native"]}, "seed": {"values": [1]}}
    project.write_file(program="run_experiment.py", parameters=parameters)
    project.out = project.folder / "chaos"
    code, output = project.sweep("--control", "chaos", "epochs=2")
    assert code == 0, output
    keys = ("backend", "training.perturb_weights", "plan.control")
    runs = [tuple(event["given"].get(key) for key in keys) for event in project.events("began")]
    assert sorted(runs, key=str) == [
        ("native", None, "chaos"),
        ("none", "one_ulp", "chaos"),
        ("none", None, "chaos"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "first", "to_all"),
    [(signal.SIGUSR1, QUITS, False), (signal.SIGTERM, "", True)],
)
def test_stopped_sweep_goes_on_with_the_interrupted_run(project, number, first, to_all):
    """Also if another program ends with 0 when it is interrupted.

    Slurm sends a signal to every process: the run may end before the sweep has received it.
    """
    project.prepend(first)
    points = [[1, 2, 3][at] for at in next(orders("mine", 3))]
    project.write_file(parameters={"x": {"values": [1, 2, 3]}, "hold": {"value": points[1]}})
    project.hold()
    process = project.start("--name=mine")
    project.wait_for("began", 2)
    second = project.events("began")[1]
    others = {*children_of(process.pid)} - {second["pid"]}
    for pid in (second["pid"], *others, process.pid) if to_all else [process.pid]:
        os.kill(pid, number)
    output, _ = process.communicate()
    assert process.returncode == 128 + number, output
    assert "stopped; continue with: " in output
    assert "failed" not in output
    assert len(project.events("saved")) == bool(first)
    assert not is_alive(second["pid"])
    project.release()
    command = output.rpartition("continue with: ")[2].splitlines()[0]
    assert run_in_shell(command, project.folder).returncode == 0
    assert values(project.events("ended")) == ["1", "2", "3"]
    began = [(event["given"]["x"], event["run"]) for event in project.events("began")]
    assert [x for x, _ in began] == [str(points[at]) for at in (0, 1, 1, 2)]
    assert began[1] == began[2]  # the same run goes on


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_second_interrupt_ends_at_once(project):
    project.prepend("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n")
    project.write_file(parameters={"x": {"value": 1}, "hold": {"value": "all"}})
    project.hold()
    # The time after which a run is killed anyway is ten minutes then, longer than this test may take.
    project.replace_outside("outside.scale_time(1 / 20)")
    process = project.start()
    project.wait_for("began", 1)
    process.send_signal(signal.SIGINT)
    assert process.stdout
    assert any("stopping: waiting" in line for line in process.stdout)
    run = project.events("began")[0]["pid"]
    while is_alive(run):  # an interrupt that comes soon after the first is taken for the same
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)
    process.communicate()
    assert process.returncode == 130


@pytest.mark.slow
def test_a_killed_drivers_runs_are_ended_and_continued_by_the_same_command(project):
    """Each point ends once, although its program ends in order and with 0."""
    project.prepend(QUITS)
    project.write_file(parameters={"x": {"values": [1, 2, 3]}, "hold": {"value": "all"}})
    project.hold()
    driver = project.start("--workers", "2")
    project.wait_for("began", 2)
    driver.kill()
    driver.communicate()
    runs = {event["run"]: event["pid"] for event in project.events("began")}
    project.release()
    code, output = project.sweep("--workers", "2")
    assert code == 0, output
    assert not any(map(is_alive, runs.values()))
    assert values(project.events("ended")) == ["1", "2", "3"]
    began = project.events("began")
    assert len(began) == 5
    assert len({event["run"] for event in began}) == 3  # continued under their ids


@pytest.mark.slow
def test_hyperband_stops_the_runs_that_fall_behind(project):
    project.write_file(
        program="logger.py",
        metric={"name": "score", "goal": "maximize"},
        early_terminate={"type": "hyperband", "min_iter": 3, "eta": 2},
        parameters={"x": {"values": [5, 1]}, "steps": {"value": 20}, "endless": {"value": 1}},
    )
    code, output = project.sweep()
    assert code == 0, output
    assert re.search(r"run 0 finished after .*, score 5\.019", output)
    assert re.search(r"run 1 stopped after .*, score 1\.\d+", output), output
    assert "best run: " in output
    assert "score 5.019: x=5 steps=20 endless=1" in output
    assert "No eval accuracy" not in output  # the report goes by the sweep's metric
    assert (project.out / "report" / "index.html").is_file()


@pytest.mark.slow
def test_each_gpu_gets_a_worker_and_each_worker_sees_one(project, outside: Outside, monkeypatch, capsys):
    outside.set_nvidia_gpus(2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,GPU-abc")
    monkeypatch.chdir(project.folder)
    project.write_file(parameters={"x": {"values": [1, 2]}, "together": {"value": 2}})
    assert pipeline.run_sweep("sweep.yaml", [f"output_dir={project.out}"], Console(), SweepOptions()) == 0
    seen = {event["environment"]["CUDA_VISIBLE_DEVICES"] for event in project.events("began")}
    assert seen == {"0", "GPU-abc"}
    assert "2 runs at a time" in capsys.readouterr().out


def test_visible_gpus_are_those_of_cuda(outside: Outside, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for there, expected in ((2, ["0", "1"]), (0, [])):
        outside.set_nvidia_gpus(there)
        assert local.visible_gpus() == expected
    outside.set_nvidia_gpus(4)
    for given, expected in (("2, GPU-abc", ["2", "GPU-abc"]), ("0,-1,1", ["0"]), ("", [])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
        assert local.visible_gpus() == expected


def test_a_look_calls_nothing_decided_of_which_nothing_is_claimed(tmp_path):
    """Accuracy at chance, or none at all, was not decided; more seeds would not help."""
    plans = [plan(backend, seed) for backend in ("none", "native", "fp16") for seed in (1, 2, 3)]
    for made in plans:
        for holder in [made["summary"], *made["rows"]]:
            if holder.pop("eval/accuracy", None) and made["config"]["backend"] != "fp16":
                holder["eval/accuracy"] = 0.1
    write_runs(tmp_path, plans)
    parameters = {"backend": {"values": ["none", "native", "fp16"]}, "seed": {"values": [1, 2, 3]}}
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump({"program": "x.py", "method": "grid", "parameters": parameters}))
    sweep = read_sweep(file)
    look = look_at_runs(sweep, tmp_path, [])
    decided, of_native, of_fp16 = sorted(look.messages, key=lambda line: "no claim about" in line)
    assert "quality" not in decided
    assert decided.endswith("; nothing else can be decided")
    assert "the quality of native" in of_native
    assert "at chance" in of_native
    assert of_fp16.endswith("the quality of fp16: no value is recorded for fp16")
    assert look.is_over
    with pytest.raises(UserError, match="the record of a finished run is missing under output_dir"):
        look_at_runs(sweep, tmp_path, [SweepRun(0, "elsewhere", state=RunState.FINISHED)])


@pytest.mark.slow
def test_first_runs_that_fail_with_one_message_end_the_sweep_and_a_corrected_command_goes_on(project):
    project.prepend("import sys\nif '--wrong=1' in sys.argv: sys.exit('no such option: --wrong')\n")
    grid = {"name": "s", "parameters": {"x": {"values": [*range(8)]}}}
    project.write_file(command=["${interpreter}", "${program}", "${args}", "--wrong=1"], **grid)
    for _ in range(2):  # the same command starts three further runs
        code, output = project.sweep()
        assert code == 1, output
        assert "no further run was started" in output
        assert "no such option: --wrong" in output.splitlines()[-1]
        assert output.count(" failed with exit code 1") == 3
    project.write_file(command=["${interpreter}", "${program}", "${args}", "--right=1"], **grid)
    code, output = project.sweep("--workers", "2")
    assert values(project.events("ended")) == [str(x) for x in range(8)], output
    project.write_file(command=["${interpreter}", "${program}", "${args}"], **grid)
    assert "differs in command" in project.sweep()[1]  # runs have finished
