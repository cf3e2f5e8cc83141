"""Between this command and sbatch: whatever happens, nothing is submitted twice, and a line says it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.place import Place
from support.slurm import Slurm

pytestmark = pytest.mark.slow

XS = {"x": {"values": [1, 2, 3]}}
DIES = "os.kill(os.getpid(), 9)"


def once_each(place: Place, values: list[str]) -> bool:
    return all(
        sorted(event["given"]["x"] for event in place.events(kind)) == values for kind in ("began", "ended")
    )


def in_front(slurm: Slurm, name: str, text: str) -> Path:
    """A program that is found before the stand-in's, which it may call as $0.own."""
    path = slurm.folder / "bin" / name
    path.rename(path.with_suffix(".own"))
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def put_back(path: Path) -> None:
    path.with_suffix(".own").rename(path)


def test_an_array_whose_command_died_behind_sbatch_is_found_in_the_queue(place: Place, slurm: Slurm, submit):
    """By its mark; the report that it had not come to follows."""
    place.file(parameters=XS)
    place.before = f"import os, ampcompare.sweeps.cluster.submit as s; s.of_report = lambda words: {DIES}"
    slurm.slots = 0
    assert submit()[0] == -9
    place.before = "pass"
    code, said = submit()
    assert (code, "3 waiting or running as job 101; nothing new was submitted" in said) == (0, True), said
    slurm.slots = 2
    slurm.wait_until_ended()
    assert once_each(place, ["1", "2", "3"])
    assert [job.options["job-name"].partition("-")[0] for job in slurm.jobs] == ["sweep"] * 3 + ["report"]


def test_a_run_that_two_jobs_have_is_made_once(place: Place, slurm: Slurm, submit):
    """As where a first submission came late: sbatch's answer was lost, and it was not in the queue yet."""
    place.file(parameters=XS)
    slurm.slots = 0
    assert submit()[0] == 0
    squeue = in_front(slurm, "squeue", "true")
    assert "3 submitted as job 105" in submit()[1]
    put_back(squeue)
    slurm.slots = 2
    slurm.wait_until_ended()
    assert once_each(place, ["1", "2", "3"])
    assert {job.state for job in slurm.jobs} == {"COMPLETED"}


def test_an_answer_that_is_not_understood_is_no_refusal(place: Place, slurm: Slurm, submit):
    """What it may have queued nevertheless is waited for, and submitted again when it is gone."""
    place.file(parameters=XS)
    slurm.slots = 0
    sbatch = in_front(slurm, "sbatch", "$0.own $@ > /dev/null; echo queued, my friend")
    code, said = submit()
    assert code == 2
    assert 'lost (Could not make sense of sbatch output "queued, my friend")' in said
    assert "the same command again submits what is neither done nor in the queue" in said
    put_back(sbatch)
    assert "3 waiting or running as job 101; nothing new was submitted" in submit()[1]
    subprocess.run(["scancel", "101"], env=slurm.environment(), check=True)
    assert "3 submitted as job 105" in submit()[1]
    slurm.slots = 2
    slurm.wait_until_ended()
    assert once_each(place, ["1", "2", "3"])


def test_the_queue_is_asked_for_everybodys_jobs_whatever_squeue_is_set_to(place: Place, slurm: Slurm, submit):
    place.file(parameters=XS)
    slurm.slots = 0
    assert submit(LOGNAME="colleague", SBATCH_JOB_NAME="mine")[0] == 0
    for name, value in (("STATES", "RUNNING"), ("USERS", "me"), ("FORMAT", "%j")):
        assert "nothing new" in submit(**{f"SQUEUE_{name}": value})[1]
    squeue = in_front(slurm, "squeue", 'echo "$SLURM_CLUSTERS"; echo "CLUSTER: far"; $0.own "$@"')
    assert "nothing new" in submit(SBATCH_CLUSTERS="far")[1]
    squeue.write_text("#!/bin/sh\necho down >&2; exit 1\n")
    code, said = submit()
    assert (code, "cannot be asked (down); nothing was submitted" in said) == (2, True), said


def test_a_submission_that_sbatch_refuses_is_said_once_and_binds_nobody(place: Place, slurm: Slurm, submit):
    place.file(parameters=XS)
    code, said = submit('slurm.additional_parameters={"nonsense": 1}')
    assert (code, said.count("unrecognized option"), slurm.jobs) == (2, 1, []), said
    place.file(parameters={"y": {"values": [1]}})
    code, said = submit()
    assert (code, "1 submitted as job 101" in said) == (0, True), said
    place.file(parameters=XS)
    code, said = submit()
    assert (code, "differs in parameters" in said) == (2, True), said


def test_of_a_sweep_that_is_too_large_for_one_array_the_rest_is_submitted_later(
    place: Place, slurm: Slurm, submit
):
    place.file(parameters=XS)
    place.before = "import ampcompare.sweeps.cluster.submit as s; s.MOST_TASKS = 2"
    slurm.slots = 0
    code, said = submit("--workers", "1")
    assert (code, "2 of 3 submitted as job 101, 1 at a time" in said) == (0, True), said
    code, said = submit()
    assert (code, "2 waiting or running as job 101: 1 submitted as job 104" in said) == (0, True), said
    assert "3 waiting or running as job 101, 104; nothing new" in submit()[1]
    slurm.slots = 2
    slurm.wait_until_ended()
    assert once_each(place, ["1", "2", "3"])
