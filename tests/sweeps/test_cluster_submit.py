"""Between this command and sbatch: whatever happens, nothing is submitted twice, and a line says it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.place import Place
from support.quick import ROOT
from support.slurm import Slurm
from support.wandb_server.clients import wait_until

pytestmark = pytest.mark.slow

XS = {"x": {"values": [1, 2, 3]}}
DIES = "os.kill(os.getpid(), 9)"
FULL = "(_ for _ in ()).throw(OSError(28, 'No space left on device'))"


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Slurm]:
    with Slurm(tmp_path / "slurm", kill_wait=5) as found:
        yield found


def sweep(place: Place, slurm: Slurm, *words: str, out: Path | None = None, **env: str) -> tuple[int, str]:
    done = subprocess.run(
        place.command("--cluster", "slurm", *words, out=out),
        cwd=place.folder,
        env=slurm.environment(PYTHONPATH=f"{ROOT / 'src'}", **env),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, " ".join((done.stdout + done.stderr).split())


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


def test_an_array_whose_command_died_behind_sbatch_is_found_in_the_queue(place: Place, slurm: Slurm):
    """Its jobs, which submitit has not given their tasks, get them, and the report follows."""
    place.file(parameters=XS)
    place.before = (
        f"import os, submitit.core.utils as u; u.JobPaths.move_temporary_file = lambda *a, **k: {DIES}"
    )
    slurm.slots = 0
    assert sweep(place, slurm)[0] == -9
    place.before = "pass"
    code, said = sweep(place, slurm)
    assert (code, "3 waiting or running as job 101; nothing new was submitted" in said) == (0, True), said
    slurm.slots = 2
    slurm.wait_until_ended()
    assert once_each(place, ["1", "2", "3"])
    assert [job.options["job-name"] for job in slurm.jobs] == ["sweep"] * 3 + ["report"]


def test_a_submission_that_never_reached_sbatch_is_forgotten(place: Place, slurm: Slurm):
    place.file(parameters=XS)
    place.before = f"import os, submitit.core.utils as u; u.CommandFunction = lambda *a, **k: {DIES}"
    assert sweep(place, slurm)[0] == -9
    place.before = "pass"
    code, said = sweep(place, slurm)
    assert (code, "3 submitted as job 101" in said) == (0, True), said
    assert len(list((place.out / "cluster").glob("submitted-*.json"))) == 1


def test_a_disk_that_is_full_behind_sbatch_is_one_line_and_no_second_array(place: Place, slurm: Slurm):
    place.file(parameters=XS)
    place.before = (
        "import ampcompare.sweeps.cluster.book as b; real = b.replacing; b.replacing = "
        f"lambda path: {FULL} if 'submitted' in path.name and path.exists() else real(path)"
    )
    slurm.slots = 0
    code, said = sweep(place, slurm)
    assert (code, "(No space left on device); the runs are submitted all the same, as job 101" in said) == (
        2,
        True,
    ), said
    place.before = "pass"
    code, said = sweep(place, slurm)
    assert (code, "3 waiting or running as job 101; nothing new" in said) == (0, True), said


def test_what_cannot_be_noted_is_not_submitted(place: Place, slurm: Slurm):
    place.file(parameters=XS)
    place.before = (
        "import ampcompare.sweeps.cluster.book as b; real = b.replacing; b.replacing = "
        f"lambda path: {FULL} if 'submitted' in path.name else real(path)"
    )
    code, said = sweep(place, slurm)
    assert (code, said.endswith("(No space left on device); nothing was submitted")) == (2, True), said
    assert slurm.jobs == []


@pytest.mark.parametrize("is_queued", [True, False])
def test_an_answer_that_is_not_understood_is_no_refusal(place: Place, slurm: Slurm, is_queued: bool):
    place.file(parameters=XS)
    slurm.slots = 0
    sbatch = in_front(
        slurm, "sbatch", f"{'$0.own $@ > /dev/null; ' if is_queued else ''}echo queued, my friend"
    )
    code, said = sweep(place, slurm)
    if not is_queued:
        assert code == 2
        assert 'is not understood (Could not make sense of sbatch output "queued, my friend")' in said
        assert "jobs may be queued, the same command again looks for them" in said
        put_back(sbatch)
        assert "3 submitted as job 101" in sweep(place, slurm)[1]
        return
    # The runs are known by their mark; what became of the report nobody knows.
    assert (code, "the runs are submitted, as job 101: only the report is not" in said) == (2, True), said
    put_back(sbatch)
    code, said = sweep(place, slurm)
    assert (code, "3 waiting or running as job 101; nothing new" in said) == (0, True), said
    slurm.slots = 2
    # Not until the last job has ended: the report that nobody knows of waits a minute for its task.
    wait_until(lambda: len(place.events("ended")) >= 3)
    assert once_each(place, ["1", "2", "3"])


def test_a_submission_that_sbatch_refuses_is_said_once_and_binds_nobody(place: Place, slurm: Slurm):
    place.file(parameters=XS)
    code, said = sweep(place, slurm, 'slurm.additional_parameters={"nonsense": 1}')
    assert (code, said.count("unrecognized option"), slurm.jobs) == (2, 1, []), said
    place.file(parameters={"y": {"values": [1]}})
    code, said = sweep(place, slurm)
    assert (code, "1 submitted as job 101" in said) == (0, True), said
    place.file(parameters=XS)
    code, said = sweep(place, slurm)
    assert (code, "differs in parameters" in said) == (2, True), said


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("", "a file", "cannot be made"),
        ("lock", None, "lock: cannot be opened"),
        ("sweep.json", "{}", "expected what a sweep on a cluster keeps there"),
        ("submitted-0000.json", '{"job": "1"}', "expected what a sweep on a cluster keeps there"),
        ("submitted-0000.json", "[", "cannot be read"),
    ],
)
def test_a_spoiled_book_is_one_line(place: Place, slurm: Slurm, monkeypatch, capsys, name, content, said):
    from ampcompare.cli import main

    path = place.out / "cluster" / name
    path.parent.mkdir(parents=True)
    if content is None:
        path.mkdir()
    else:
        path.write_text(content)
    place.file(parameters=XS)
    monkeypatch.chdir(place.folder)
    monkeypatch.setenv("PATH", slurm.environment()["PATH"])
    with pytest.raises(SystemExit) as ended:
        main(["sweep", "sweep.yaml", "--cluster", "slurm", f"output_dir={place.out}"])
    told = capsys.readouterr().err
    assert (ended.value.code, told.count("\n"), said in told) == (2, 1, True), told


def test_a_sweep_that_is_too_large_for_one_array_is_several(place: Place, slurm: Slurm):
    place.file(parameters=XS)
    slurm.max_array_size = 2
    slurm.slots = 0
    code, said = sweep(place, slurm, "--workers", "1")
    assert (code, "3 submitted as job 101, 103" in said) == (0, True), said
    assert slurm.job(104).options["dependency"] == "afterany:101:103"
    assert slurm.job(103).options.get("dependency") == "afterany:101"
    assert "6 waiting" not in (said := sweep(place, slurm)[1])
    assert "3 waiting or running as job 101, 103; nothing new" in said
    slurm.slots = 2
    slurm.wait_until_ended()
    assert once_each(place, ["1", "2", "3"])
