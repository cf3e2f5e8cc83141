"""`ampcompare sweep --cluster slurm`: job arrays by submitit, on a real Slurm.

Whatever happens between the command and sbatch, no run is made twice, and a line reports it.
"""

import os
import re
import shlex

import pytest
from support.outside import Outside
from support.quick import QUICK, ROOT
from support.slurm import Slurm
from support.sweep_project import DIES_BEFORE, SweepProject
from support.wandb_files import leet_rows

from ampcompare import load_runs
from ampcompare.sweeps.journal import read_journal

XS = {"x": {"values": [1, 2, 3]}}


def xs(project: SweepProject, kind: str) -> list[str]:
    return sorted(event["given"]["x"] for event in project.events(kind))


def once_each(project: SweepProject) -> bool:
    return xs(project, "began") == xs(project, "ended") == ["1", "2", "3"]


@pytest.mark.slow
def test_every_point_is_run_once_and_nothing_twice_when_it_is_started_again(
    project: SweepProject, slurm: Slurm, says
):
    """Whatever sbatch and squeue are set to. A failed run is not submitted again."""
    project.write_file(parameters={**XS, "hold": {"value": "all"}, "fail": {"value": 2}})
    project.hold()
    project.before = "import sys; sys.modules['torch'] = None"  # submitting loads no torch
    resources = ["slurm.gres=gpu:1", "slurm.cpus_per_gpu=2", "slurm.partition=gpu", "slurm.time=1-12"]
    resources.append('slurm.additional_parameters={"gpu-bind": "closest", "nice": 5}')
    slurm.stop_starting()
    says("3 submitted as job", "--workers", "1", *resources, SBATCH_JOB_NAME="mine")
    project.before = "pass"
    jobs = slurm.jobs()
    details = [slurm.call("scontrol", "show", "job", job.id) for job in jobs]
    assert ["gpu:1" in job for job in details] == [True] * 3 + [False]  # the report's needs no GPU
    fields = ("Partition", "TimeLimit", "Nice", "Requeue")
    assert {tuple(slurm.show(job.id, name) for name in fields) for job in jobs} == {
        ("gpu", "1-12:00:00", "5", "1")
    }
    squeue = slurm.write_program("squeue", "echo down >&2; exit 1")
    says("squeue failed (down); run the command where squeue works", code=2)
    squeue.unlink()
    says("3 waiting or running, nothing new was submitted", SQUEUE_STATES="RUNNING")
    slurm.start_again()
    project.wait_for("began", 1)
    project.release()
    slurm.wait_until_ended()
    assert (xs(project, "began"), xs(project, "ended")) == (["1", "2", "3"], ["1", "3"])
    says("1 of 3 runs failed", code=1)
    project.mend()
    says("2 finished, 1 submitted", "--rerun")
    slurm.wait_until_ended()
    assert xs(project, "began") == ["1", "2", "2", "3"]


@pytest.mark.slow
def test_a_preempted_run_keeps_each_row_and_continues_and_the_report_comes_last(
    project: SweepProject, slurm: Slurm, says
):
    """The command is that of docs/clusters.md, with runs that a CPU can do."""
    text = (ROOT / "docs" / "clusters.md").read_text()
    command = re.search(r"^ampcompare sweep compare_backends (.*--cluster.*)$", text, re.M)
    assert command
    words = shlex.split(command[1].replace("--cluster slurm", "").replace("--workers 4", "--workers 1"))
    words = [word for word in words if not word.startswith("output_dir=")]
    parameters = {"backend": {"values": ["none"]}, "seed": {"values": [1]}}
    held = ["${interpreter}", str(ROOT / "tests/support/held_run.py"), "${program}", "${args_no_hyphens}"]
    project.write_file(
        program=str(ROOT / "run_experiment.py"), command=held, parameters=parameters, name="arr"
    )
    hold = project.folder / "hold-run"
    hold.touch()
    steps = ["epochs=1000", "max_steps=60", "log.every=10", "eval.every=30", "checkpoint.every_epochs=5"]
    quick = [word for word in QUICK if not word.startswith(("epochs=", "log.every=", "diagnostics"))]
    says("1 submitted", *words, *quick, *steps, HOLD=str(hold), HELD_AT="35", OMP_NUM_THREADS="1")
    slurm.wait((project.folder / "hold-run-35").exists)
    first = slurm.jobs()[0]
    (log,) = (project.out / "logs").iterdir()
    rows: list[int] = []

    def has_saved() -> bool:
        """W&B's service gets SIGTERM like the run, and loses no row nevertheless."""
        if "\nrecord: " not in log.read_text():
            return False
        files = project.out.rglob("*.wandb")
        rows[:] = [row["global_step"] for file in files for row in leet_rows(file) if "train/loss" in row]
        return True

    slurm.preempt(has_saved)
    hold.unlink()
    (line,) = [line for line in log.read_text().splitlines() if "interrupted" in line]
    interrupted = re.match(r"interrupted at step (\d+) \(SIGTERM\); continue with resume=auto$", line)
    assert interrupted, line
    assert "incomplete" not in log.read_text()
    last = int(interrupted[1])
    assert sorted(rows) == sorted({*range(4, last, 4), *range(10, last, 10), last})  # also after each epoch
    slurm.wait_until_ended()
    assert f"at step {interrupted[1]}" in re.findall(r"resuming run .*", log.read_text())[0]
    assert slurm.show(first.id, "Restarts") == "1"
    (run,) = load_runs([str(project.out)])
    steps = run.history.loc[run.history["train/loss"].notna(), "global_step"].tolist()
    assert steps == sorted({*steps})  # one more where it was interrupted
    assert {*range(10, 61, 10)} <= {*steps}
    assert [job.state for job in slurm.jobs()] == ["COMPLETED"] * 2 + ["CANCELLED"]  # the urgent job
    assert (project.out / "report" / "index.html").exists()


BAYES = {"method": "bayes", "metric": {"name": "score"}, "run_cap": 2}
NO_ARRAY = [  # of this file, with this word
    ({}, "--cluster=local", "expected one of slurm, ray"),
    ({}, "slurm.partitoin=a", "slurm.partitoin: submitit has no such parameter; did you mean partition?"),
    ({}, "slurm.mem_gb=2", "slurm.mem_gb: submitit has no such parameter; did you mean mem"),
    ({}, "slurm.comment=a\nrm", "expected a printable word"),
    ({}, 'slurm.additional_parameters={1: 2, "job_name": "x"}', "cannot have job_name"),
    ({}, "slurm.setup=a", "expected JSON or a number, such as slurm.setup="),
    ({}, "output_dir=a\\b", "expected a printable path without % and \\"),
    ({"method": "random"}, "x=1", "needs run_cap"),
    (BAYES, "x=1", "method bayes needs a command that keeps running; add --wait"),
]


def test_what_cannot_be_an_array_is_one_line_and_nothing_is_submitted(
    project: SweepProject,
    outside: Outside,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    subtests: pytest.Subtests,
):
    from ampcompare.cli import main

    def refused(word: str, expected: str) -> None:
        with pytest.raises(SystemExit) as ended:
            main(["sweep", "sweep.yaml", "--cluster=slurm", f"output_dir={project.out}", word])
        output = capsys.readouterr().err
        assert (ended.value.code, output.count("\n")) == (2, 1)
        assert expected in output
        assert not list(project.out.rglob("*.pkl"))

    for name in ("srun", "sbatch"):
        (project.folder / name).touch(mode=0o755)
    monkeypatch.chdir(project.folder)
    monkeypatch.setenv("PATH", f"{project.folder}{os.pathsep}{os.environ['PATH']}")
    for content, word, expected in NO_ARRAY:
        with subtests.test(content=content, word=word):
            project.write_file(**{"parameters": XS, **content})
            refused(word, expected)
    outside.uninstall("submitit.slurm.slurm")
    project.write_file(parameters=XS)
    refused("slurm.time=1", "pip install 'ampcompare[slurm]'")


UNHEARD = [  # what sbatch says, and whether its controller may have taken the jobs nevertheless
    ("Batch job submission failed: Socket timed out on send/recv operation", True),
    ("", True),  # it was killed
    ("Batch job submission failed: Invalid partition name specified", False),
]


def test_what_sbatchs_controller_may_have_heard_stays_noted(
    project: SweepProject,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    subtests: pytest.Subtests,
):
    from ampcompare.cli import main

    project.write_file(parameters=XS)
    for name in ("srun", "squeue"):
        (project.folder / name).write_text("#!/bin/sh\n")
    monkeypatch.chdir(project.folder)
    monkeypatch.setenv("PATH", f"{project.folder}{os.pathsep}{os.environ['PATH']}")
    for number, (answer, is_unheard) in enumerate(UNHEARD):
        with subtests.test(answer=answer):
            (project.folder / "sbatch").write_text(f'#!/bin/sh\necho "{answer}" >&2\nexit 1\n')
            for name in ("srun", "squeue", "sbatch"):
                (project.folder / name).chmod(0o755)
            out = project.folder / str(number)
            with pytest.raises(SystemExit) as ended:
                main(["sweep", "sweep.yaml", "--cluster=slurm", f"output_dir={out}"])
            output = capsys.readouterr().err
            assert (ended.value.code, output.count("\n")) == (2, 1), output
            assert ("answer was lost" in output, "refused the job" in output) == (is_unheard, not is_unheard)
            assert bool(read_journal(out).submissions) is is_unheard


@pytest.mark.slow
def test_whatever_happens_between_the_command_and_sbatch_each_run_is_made_once(
    project: SweepProject, slurm: Slurm, says
):
    """Refused, answer lost, or driver killed after it: jobs that may be queued are found by their mark."""
    project.write_file(parameters={"y": {"values": [1]}})
    slurm.stop_starting()
    unknown = "unrecognized option '--reservatoin=a'"
    says(unknown, 'slurm.additional_parameters={"reservatoin": "a"}', code=2)
    says("refused the job: sbatch: error: invalid partition specified: none", "slurm.partition=none", code=2)
    assert slurm.jobs() == []
    project.write_file(parameters=XS)
    sbatch = slurm.write_program("sbatch", "$own $@ > /dev/null; echo queued, my friend")
    todo = "run the same command again: it submits runs that are neither done nor queued"
    says(f'lost (Could not make sense of sbatch output "queued, my friend"); {todo}', code=2)
    sbatch.unlink()
    says("3 waiting or running, nothing new was submitted")
    slurm.call("scancel", slurm.jobs()[0].array)
    project.replace_outside(DIES_BEFORE.format(event="started"))
    says("", code=-9)
    project.before = "pass"
    says("3 waiting or running, nothing new was submitted")
    slurm.start_again()
    slurm.wait_until_ended()
    assert once_each(project)
    assert {job.state for job in slurm.jobs()} == {"CANCELLED", "COMPLETED"}
    assert slurm.jobs()[-1].name.startswith("report")
