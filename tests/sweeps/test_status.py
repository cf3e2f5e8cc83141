"""`ampcompare sweep FILE --status` and `--rerun`: what is left to do is listed, and only that is run."""

import os
import re
from collections import Counter

import pytest

from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.pipeline import open_journal
from ampcompare.sweeps.prepare import prepare
from ampcompare.sweeps.process_guard import write_end
from ampcompare.sweeps.run_end import RunEnd, end_file
from ampcompare.sweeps.samplers import run_at

XS = {"parameters": {"x": {"values": [1, 2, 3]}}}
FAILS = {"parameters": {"x": {"values": [1, 2, 3]}, "fail": {"value": 2}}}


@pytest.fixture
def run_command(project, ask):
    """Run the command of the project's file; return exit code and output."""
    return lambda *words: ask("sweep.yaml", *words, f"output_dir={project.out}")


def ran(project) -> Counter:
    return Counter(event["given"]["x"] for event in project.events("began"))


@pytest.mark.slow
def test_what_is_left_is_listed_without_writing_anything_and_made_by_new_runs(project, run_command):
    project.write_file(**FAILS)
    before = sorted(project.folder.rglob("*"))
    code, output = run_command("--status")
    listed = [line.split()[1] for line in output.splitlines() if line.startswith("queued")]
    assert (code, sorted(listed)) == (3, ["x=1", "x=2", "x=3"])
    assert "3 points: 3 queued" in output
    assert sorted(project.folder.rglob("*")) == before
    code, output = run_command()
    assert code == 1
    assert re.search(r"^run \d failed with exit code 3 after .*: the last words; log: ", output, re.M)
    again = f"sweep sweep.yaml --rerun output_dir={project.out}"
    assert re.search(f"^to repeat failed runs: .*{re.escape(again)}$", output, re.M)
    code, output = run_command()
    assert (code, "3 runs, 3 ended before (1 failed), " in output) == (1, True), output
    code, output = run_command("--status")
    assert (code, "3 points: 2 finished, 1 failed" in output) == (3, True)
    assert "to continue the sweep" not in output
    assert again in output
    (line,) = (line for line in output.splitlines() if line.startswith("failed"))
    (failed,) = (e["run"] for e in project.events("began") if e["given"]["x"] == "2")
    assert "the last words" in line
    assert failed in line
    project.mend()
    assert run_command("--rerun")[0] == 0
    assert ran(project) == {"1": 1, "2": 2, "3": 1}
    assert len({event["run"] for event in project.events("began")}) == 4
    code, output = run_command("--status")
    assert (code, "3 points: 3 finished; complete" in output) == (0, True)


def test_wrong_words_are_one_line_and_start_nothing(project, run_command, subtests: pytest.Subtests):
    project.write_file(**FAILS)
    for words, why in (
        (["--status", "--rerun"], "leave one out"),
        (["--rerun", "--until-decided"], "leave one out"),
        (["--rerun", "y"], "expected key=value"),
        (["--rerun", "slurm.time=3"], "is an option of --cluster slurm"),
        (["--cluster=pbs"], "expected one of slurm, ray"),
        (["--wait"], "--wait: only --cluster slurm needs it"),
    ):
        with subtests.test(words=words):
            code, output = run_command(*words)
            assert (code, output.count("\n"), why in output) == (2, 1, True), output
    assert not project.events("began")


def submitted(project, monkeypatch) -> list[SweepRun]:
    """Return a submitted array of the sweep, in which no job has ended, and its runs."""
    file = project.write_file(**XS)
    monkeypatch.chdir(project.folder)
    prepared = prepare(str(file), [f"output_dir={project.out}"])
    for folder in ("logs", "wandb", "ends"):
        (project.out / folder).mkdir(parents=True, exist_ok=True)
    with open_journal(prepared, project.out) as (journal, prepared):
        runs = [journal.propose(run_at(prepared.sweep, "", None, index)) for index in range(3)]
        journal.append("submission", mark="ampcompare-1", indices=[0, 1, 2])
        for run in runs:
            process = {"job": f"101_{run.index}"}
            journal.append("started", index=run.index, run_id=run.run_id, process=process)
        return [*journal.state.runs.values()]


def queued(project, monkeypatch, *lines: str) -> None:
    """Return the output of squeue: the jobs of a submission by their tasks."""
    folder = project.folder / "bin"
    folder.mkdir(exist_ok=True)
    jobs = "".join(f"echo ' {job}|sweep-ampcompare-1'\n" for job in lines)
    for name, text in (("squeue", jobs), ("sbatch", "exit 1"), ("srun", "")):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_what_waits_or_runs_as_a_job_is_known_by_its_note_and_by_squeue(project, run_command, monkeypatch):
    runs = submitted(project, monkeypatch)
    queued(project, monkeypatch, "101_0", "101_1", "101_2")
    code, output = run_command("--status")
    assert (code, "3 points: 3 running" in output, "in the queue as job 101_0" in output) == (
        3,
        True,
        True,
    ), output
    write_end(end_file(project.out, runs[0].run_id, 1), RunEnd(0).facts())
    write_end(end_file(project.out, runs[1].run_id, 1), RunEnd(3).facts())
    queued(project, monkeypatch, "101_2")
    assert "3 points: 1 finished, 1 running, 1 failed" in run_command("--status")[1]
    queued(project, monkeypatch)
    output = run_command("--status")[1]
    assert "3 points: 1 finished, 1 failed, 1 preempted" in output
    assert "its job has left the queue without a result" in output


def test_a_sweep_whose_runs_are_jobs_is_not_run_here_as_well(project, run_command, monkeypatch):
    submitted(project, monkeypatch)
    with monkeypatch.context() as without_squeue:
        without_squeue.setenv("PATH", str(project.folder))
        code, output = run_command("--status")
    assert (code, "squeue failed" in output, "3 points: 3 running" in output) == (3, True, True), output
    code, output = run_command()
    why = "runs of this sweep are Slurm jobs (101_0, 101_1, 101_2); continue with --cluster slurm"
    assert (code, why in output) == (2, True), output
    queued(project, monkeypatch, "101_0", "101_1", "101_2")
    code, output = run_command("--rerun")
    assert (code, "3 points are running and will not be started again" in output) == (3, True), output
    assert not project.events("began")


def test_a_run_whose_driver_was_killed_is_preempted(project, run_command, monkeypatch):
    prepared = prepare(str(project.write_file(**XS)), [f"output_dir={project.out}"])
    project.out.mkdir()
    with open_journal(prepared, project.out) as (journal, prepared):
        run = journal.propose(run_at(prepared.sweep, "", None, 0))
        journal.append("started", index=0, run_id=run.run_id, process={"pid": 1})
        assert "3 points: 1 running, 2 queued" in run_command("--status")[1]
    output = run_command("--status")[1]
    assert "3 points: 1 preempted, 2 queued" in output
    assert "the sweep command was killed" in output
