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
from support.quick import ROOT
from support.shell import run_in_shell
from support.sweep_project import is_alive
from support.wandb_files import write_runs
from support.wandb_server.clients import wait_until

from ampcompare.errors import UserError
from ampcompare.runs.run_state import RunState
from ampcompare.sweeps import pipeline
from ampcompare.sweeps.executors import local
from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.prepare import SweepOptions
from ampcompare.sweeps.stop_request import SweepStopRequest
from ampcompare.sweeps.sweep import orders
from ampcompare.sweeps.sweep_file import read_sweep
from ampcompare.sweeps.sweep_report import look_at_runs, report_options


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


@pytest.mark.slow
def test_runs_of_the_control_chaos_alone_begin_with_changed_weights(project):
    """The words of the command and what the record gets as parameters of the sweep."""
    training = "# ampcompare.entrypoint\n" + (project.folder / "program.py").read_text()
    (project.folder / "run_experiment.py").write_text(training)
    parameters = {"backend": {"values": ["none", "native"]}, "seed": {"values": [1, 2]}}
    project.write_file(program="run_experiment.py", parameters=parameters)
    code, output = project.sweep("--control", "chaos", "epochs=2")
    assert code == 0, output
    assert output.count("(control, chaos)") == 2
    runs = []
    for event in project.events("began"):
        given = event["given"]
        with open(event["environment"]["WANDB_SWEEP_PARAM_PATH"]) as file:
            plan = yaml.safe_load(file)["plan"]["value"]
        change = given.get("training.perturb_weights")
        runs.append((given["backend"], given["seed"], change, plan.get("arm"), given["plan.control"]))
    assert sorted(runs, key=str) == [
        (backend, seed, None, None, "chaos") if arm is None else (backend, seed, "one_ulp", arm, "chaos")
        for backend, seed, arm in [
            ("native", "1", None),
            ("native", "2", None),
            ("none", "1", "chaos"),
            ("none", "1", None),
            ("none", "2", "chaos"),
            ("none", "2", None),
        ]
    ]


# Has time to save its state at SIGTERM, and ends with 0.
QUITS = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), note(event="saved"), sys.exit(0)))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "first", "to_all"),
    [(signal.SIGINT, "", False), (signal.SIGUSR1, QUITS, False), (signal.SIGTERM, "", True)],
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


def test_of_further_signals_only_ctrl_c_means_at_once(outside: Outside):
    """Slurm warns with one signal and ends with another; the runs need the time in between."""
    clock = outside.stop_clock()
    with SweepStopRequest() as stop:
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGTERM):
            signal.raise_signal(number)
            clock.now += 1.0
        assert stop.is_made()
        assert not stop.is_at_once
        signal.raise_signal(signal.SIGINT)
        assert stop.is_at_once
    assert stop.signal == signal.SIGUSR1


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
@pytest.mark.parametrize("orderly", [True, False])
def test_a_killed_drivers_runs_are_ended_and_continued_by_the_same_command(project, orderly):
    """Each point ends once, whether its program ends in order or not."""
    project.prepend(QUITS if orderly else "")
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
def test_run_whose_record_has_ended_is_finished_by_any_signal_and_what_it_left_is_ended(project):
    (project.folder / "program.py").write_text(
        f"import sys, time\nsys.path.append({str(ROOT / 'benchmarks')!r})\n"
        "import soak_program\nsoak_program.main()\n"
        "import subprocess\nchild = subprocess.Popen(['sleep', '300'])\n"
        "print(child.pid, file=open('behind', 'w'), flush=True)\ntime.sleep(300)\n"
    )
    project.write_file(parameters={"x": {"value": 1}, "seconds": {"value": 0.1}})
    process = project.start()
    wait_until(lambda: (project.folder / "behind").exists() and (project.folder / "behind").read_text())
    process.terminate()
    output, _ = process.communicate()
    assert "1 of 1 done" in output
    assert "preempted" not in output
    assert not is_alive(int((project.folder / "behind").read_text()))


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


@pytest.mark.parametrize(
    ("method", "parameters", "group_by", "baseline"),
    [
        ("random", {"lr": {"min": 0.0, "max": 1.0}, "kind": {"values": ["a", "b"]}}, "kind", "a"),
        ("random", {"lr": {"min": 0.0, "max": 1.0}}, "lr", None),
        ("random", {"lr": {"min": 0.0, "max": 1.0}, "backend": {"values": ["a", "none"]}}, "backend", "none"),
        ("grid", {"lr": {"values": [0.1, 0.2]}, "seed": {"values": [0, 1]}}, "lr", "0.1"),
    ],
)
def test_report_of_a_foreign_sweep_compares_what_it_varies(method, parameters, group_by, baseline, tmp_path):
    content = {"program": "x.py", "method": method, "parameters": parameters}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(content | {"metric": {"name": "val_score"}}))
    options = report_options(read_sweep(tmp_path / "sweep.yaml"), tmp_path).analysis
    assert (options.group_by, options.baseline) == (group_by.split(","), baseline)
    assert options.metric == "val_score"


@pytest.mark.slow
def test_bayes_takes_the_metric_from_the_records_and_ends_at_its_target(project):
    project.write_file(
        program="logger.py",
        method="bayes",
        run_cap=3,
        metric={"name": "score", "goal": "minimize", "target": 2.5},
        parameters={"x": {"min": 0.0, "max": 1.0}, "steps": {"value": 1}},
    )
    code, output = project.sweep()
    assert code == 0, output
    (found,) = re.findall(r"finished after .*?, score ([\d.e-]+)", output)
    assert re.search(r"best run: \w+, score ([\d.e-]+)", output)[1] == found


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


@pytest.mark.parametrize(
    ("given", "there", "expected"),
    [
        (None, 2, ["0", "1"]),
        (None, 0, []),
        ("1", 4, ["1"]),
        ("2, GPU-abc", 4, ["2", "GPU-abc"]),
        ("0,-1,1", 4, ["0"]),
        ("", 4, []),
        ("0", 0, []),
    ],
)
def test_visible_gpus_are_those_of_cuda(outside: Outside, monkeypatch, given, there, expected):
    outside.set_nvidia_gpus(there)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if given is not None:
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
    noisy = [plan(backend, seed) for backend in ("none", "native") for seed in (1, 2, 3)]
    for made, off in zip(noisy, (0, 0, 0, -0.003, 0.003, -0.003), strict=True):
        made["rows"][-1]["eval/accuracy"] = 0.9 + made["config"]["seed"] / 5000 + off
    write_runs(tmp_path / "noisy", noisy)
    undecided = look_at_runs(sweep, tmp_path / "noisy", [])
    assert not undecided.is_over
    assert "look at 3 seeds: undecided: quality of native" in undecided.messages
    with pytest.raises(UserError, match="the record of a finished run is missing under output_dir"):
        look_at_runs(sweep, tmp_path, [SweepRun(0, "elsewhere", state=RunState.FINISHED)])


PLANS = [
    ({"plan.margin": {"value": 0.01}}, [], {"plan.margin": 0.01}),
    (
        {"plan": {"parameters": {"margin": {"value": 0.01}}}},
        ["plan.looks=2,3"],
        {"margin": 0.01, "looks": [2, 3]},
    ),
    ({}, ["plan.margin=0.01", "plan.max_seeds=4"], {"margin": 0.01, "max_seeds": 4}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("parameters", "words", "plan"), PLANS)
@pytest.mark.parametrize("args", ["${args}", "${args_no_hyphens}"])
def test_a_plan_is_recorded_and_never_passed_to_another_program(project, parameters, words, plan, args):
    command = ["${interpreter}", "${program}", args]
    project.write_file(parameters={"x": {"values": [1, 2]}, **parameters}, command=command)
    code, output = project.sweep(*words)
    assert code == 0, output
    assert [event["given"] for event in project.events("ended")] == [{"x": "1"}, {"x": "2"}]
    for event in project.events("began"):
        with open(event["environment"]["WANDB_SWEEP_PARAM_PATH"]) as file:
            recorded = {
                key: entry["value"] for key, entry in yaml.safe_load(file).items() if key != "wandb_version"
            }
        flat = {**recorded, **recorded.get("plan", {})}
        assert {key: flat[key] for key in plan} == plan


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_first_runs_that_fail_with_one_message_end_the_sweep_and_a_corrected_command_goes_on(
    project, workers
):
    project.prepend("import sys\nif '--wrong=1' in sys.argv: sys.exit('no such option: --wrong')\n")
    grid = {"name": "s", "parameters": {"x": {"values": [*range(8)]}}}
    project.write_file(command=["${interpreter}", "${program}", "${args}", "--wrong=1"], **grid)
    for _ in range(2):  # the same command starts three further runs
        code, output = project.sweep("--workers", workers)
        assert code == 1, output
        assert "no further run was started" in output
        assert "no such option: --wrong" in output.splitlines()[-1]
        assert output.count(" failed with exit code 1") in (3, 2 + int(workers))
    project.write_file(command=["${interpreter}", "${program}", "${args}", "--right=1"], **grid)
    code, output = project.sweep("--workers", workers)
    assert values(project.events("ended")) == [str(x) for x in range(8)], output
    assert all(event["given"]["right"] == "1" for event in project.events("ended"))
    project.write_file(command=["${interpreter}", "${program}", "${args}"], **grid)
    assert "differs in command" in project.sweep()[1]  # runs have finished
