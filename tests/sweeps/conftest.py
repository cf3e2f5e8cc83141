"""A folder of a sweep, and a stand-in for Slurm."""

import subprocess
from collections.abc import Callable, Iterator

import pytest
from support.place import Place
from support.quick import ROOT
from support.slurm import Slurm


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def slurm(tmp_path) -> Iterator[Slurm]:
    with Slurm(tmp_path / "slurm") as found:
        yield found


@pytest.fixture
def says(place: Place, slurm: Slurm) -> Callable[..., None]:
    """`ampcompare sweep --cluster slurm`: that it says something, in one line, and its exit code."""

    def command(said: str, *words: str, code: int = 0, **env: str) -> None:
        done = subprocess.run(
            place.command("--cluster", "slurm", *words),
            cwd=place.folder,
            env=slurm.environment(PYTHONPATH=f"{ROOT / 'src'}", **env),
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        told = " ".join((done.stdout + done.stderr).split())
        assert (done.returncode, told.count(said)) == (code, 1 if said else len(told) + 1), told

    return command
