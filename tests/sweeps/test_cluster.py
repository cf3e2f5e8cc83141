"""`ampcompare sweep --cluster`: a job array by submitit, against the stand-in for Slurm."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys

import pytest
from support.place import Place
from support.quick import QUICK, ROOT
from support.slurm import Slurm

from ampcompare.records import load_runs

pytestmark = pytest.mark.slow

XS = {"x": {"values": [1, 2, 3]}}


def xs(place: Place, kind: str) -> list[str]:
    return sorted(event["given"]["x"] for event in place.events(kind))


def test_every_point_is_run_once_and_nothing_twice_when_it_is_started_again(
    place: Place, slurm: Slurm, submit
):
    place.file(parameters={**XS, "hold": {"value": "all"}})
    place.hold()
    place.before = "import sys; sys.modules['torch'] = None"  # submitting loads no torch
    code, said = submit("--workers", "1")
    place.before = "pass"
    assert (code, "3 submitted as job 101, 1 at a time" in said) == (0, True), said
    place.wait_for("began", 1)
    code, said = submit()
    assert (code, "3 waiting or running as job 101; nothing new was submitted" in said) == (0, True), said
    slurm_jobs = [job.name for job in slurm.jobs]
    slurm.find(slurm_jobs[1])[0].options.pop("hold", None)
    subprocess.run(["scancel", slurm_jobs[1]], env=slurm.environment(), check=True)
    place.release()
    slurm.wait_until_ended()
    assert len(xs(place, "ended")) == 2
    code, said = submit()
    assert (code, "2 of them done before: 1 submitted" in said) == (0, True), said
    slurm.wait_until_ended()
    assert xs(place, "began") == xs(place, "ended") == ["1", "2", "3"]
    code, said = submit()
    assert (code, "nothing is left to run" in said) == (0, True), said


def test_what_is_preempted_starts_again_as_one_curve_and_the_report_comes_last(
    place: Place, slurm: Slurm, submit
):
    """The command is that of docs/clusters.md, with runs that a CPU can do."""
    text = (ROOT / "docs" / "clusters.md").read_text()
    command = re.search(r"^ampcompare sweep compare_backends (.*--cluster.*)$", text, re.M)
    assert command
    said_there = shlex.split(command[1].replace("--cluster slurm", ""))
    words = [word for word in said_there if not word.startswith("output_dir=")]
    parameters = {"backend": {"values": ["none"]}, "seed": {"values": [1, 2]}}
    held = ["${interpreter}", str(ROOT / "tests/support/held_run.py"), "${program}", "${args_no_hyphens}"]
    place.file(program=str(ROOT / "run_experiment.py"), command=held, parameters=parameters, name="arr")
    hold = place.folder / "hold-run"
    hold.touch()
    steps = ["epochs=1000", "max_steps=60", "log.every=10", "eval.every=30", "checkpoint.every_epochs=5"]
    quick = [word for word in QUICK if not word.startswith(("epochs=", "log.every=", "diagnostics"))]
    code, said = submit(*words, *quick, *steps, HOLD=str(hold), OMP_NUM_THREADS="1")
    assert code == 0, said
    first = slurm.find(101)[0]
    slurm.wait(lambda: any(place.out.rglob("step-*.pt")))
    slurm.preempt(first, seconds=900)
    hold.unlink(missing_ok=True)
    slurm.wait_until_ended()
    assert first.history == ["RUNNING", "SIGUSR2", "SIGTERM", "PENDING", "RUNNING", "COMPLETED"]
    runs = load_runs([str(place.out)])
    assert len({run.id for run in runs}) == len(runs) == 2
    for run in runs:
        steps = run.history.loc[run.history["train/loss"].notna(), "global_step"].tolist()
        assert steps == sorted({*steps})  # one more where it was interrupted
        assert {*range(10, 61, 10)} <= {*steps}
    assert [job.state for job in slurm.jobs] == ["COMPLETED"] * 3
    assert (place.out / "report" / "index.html").exists()


BAYES = {"method": "bayes", "metric": {"name": "score"}, "run_cap": 2}
NO_ARRAY = [  # of this file, with this word
    ({}, "--cluster=local", "expected slurm"),
    ({}, "slurm.partitoin=a", "Unavailable parameter(s): ['partitoin']"),
    ({}, "slurm.comment=a\nrm", "expected a printable word"),
    ({}, 'slurm.additional_parameters={"job_name": "x"}', "goes without job_name"),
    ({}, "slurm.setup=a", "expected JSON or a number, such as slurm.setup="),
    ({}, "--missing", "leave --cluster out"),
    ({}, "output_dir=a\\b", "expected a printable path without % and \\"),
    ({}, "slurm.nodes=2", "a run of the array is one process"),
    ({}, "--storage=sqlite:///a", "goes without --storage"),
    ({}, "--until-decided", "goes without --until-decided"),
    ({"method": "random"}, "x=1", "needs run_cap"),
    (BAYES, "x=1", "goes without method bayes"),
]


def test_what_cannot_be_an_array_is_one_line_and_nothing_is_submitted(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, subtests: pytest.Subtests
):
    from ampcompare.cli import main

    for name in ("srun", "sbatch"):
        (place.folder / name).touch(mode=0o755)
    monkeypatch.chdir(place.folder)
    monkeypatch.setenv("PATH", f"{place.folder}{os.pathsep}{os.environ['PATH']}")
    for content, word, said in NO_ARRAY:
        with subtests.test(content=content, word=word):
            place.file(**{"parameters": XS, **content})
            with pytest.raises(SystemExit) as ended:
                main(["sweep", "sweep.yaml", "--cluster=slurm", f"output_dir={place.out}", word])
            told = capsys.readouterr().err
            assert (ended.value.code, told.count("\n")) == (2, 1)
            assert said in told
            assert not list(place.out.rglob("*.pkl"))


def test_submitit_that_is_not_installed_is_one_line(place: Place, monkeypatch: pytest.MonkeyPatch, capsys):
    from ampcompare.cli import main

    place.file(parameters=XS)
    monkeypatch.chdir(place.folder)
    monkeypatch.setitem(sys.modules, "submitit.slurm.slurm", None)
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(SystemExit):
        main(["sweep", "sweep.yaml", "--cluster", "slurm"])
    assert "pip install 'ampcompare[slurm]'" in capsys.readouterr().err


def test_the_report_needs_no_gpu_however_the_words_for_one_are_written(place: Place, slurm: Slurm, submit):
    place.file(parameters={"x": {"values": [1]}})
    slurm.slots = 0
    extra = 'slurm.additional_parameters={"gpus_per_node": 1, "gpu-bind": "closest", "wckey": "mine"}'
    words = ["slurm.gres=gpu:1", "slurm.cpus_per_gpu=2", "slurm.partition=gpu", "slurm.time=1-12", extra]
    code, said = submit(*words)
    assert code == 0, said
    run, last = (job.options for job in slurm.jobs)
    assert {"gpus-per-node", "gpu-bind", "gres", "cpus-per-gpu"} <= run.keys()
    assert not {name for name in last if "gpu" in name or name == "gres"}
    for options in (run, last):
        assert (options["partition"], options["time"], options["wckey"]) == ("gpu", "1-12", "mine")
        assert "requeue" in options


def test_a_run_that_failed_stays_so_until_it_is_submitted_as_a_new_one_with_fill(
    place: Place, slurm: Slurm, submit
):
    place.file(parameters={**XS, "fail": {"value": 2}})
    submit()
    slurm.wait_until_ended()
    assert sorted(job.state for job in slurm.jobs) == ["COMPLETED"] * 3 + ["FAILED"]
    code, said = submit()
    assert (code, "1 of 3 runs failed" in said) == (1, True), said
    assert len(xs(place, "began")) == 3
    program = place.folder / "program.py"
    program.write_text(program.read_text().replace("sys.exit(3)", "pass"))
    code, said = submit("--fill")
    assert (code, "2 of them done before: 1 submitted" in said) == (0, True), said
    slurm.wait_until_ended()
    assert xs(place, "began") == ["1", "2", "2", "3"]
    assert len({event["run"] for event in place.events("began")}) == 4
    code, said = place.sweep("--missing")
    assert (code, "3 points: 3 finished; whole" in said) == (0, True), said
