"""Fixtures: a folder with a sweep, the command on Slurm, and a cluster of Ray."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.slurm import Slurm, start_sweep
from support.sweep_project import SweepProject

from ampcompare.cli import main


@pytest.fixture
def project(tmp_path) -> SweepProject:
    return SweepProject(tmp_path)


@pytest.fixture
def says(project: SweepProject, slurm: Slurm) -> Callable[..., None]:
    """Return a check of `ampcompare sweep --cluster slurm`: a text in its output, once, and its exit code."""

    def check(text: str, *words: str, code: int = 0, **env: str) -> None:
        process = start_sweep(slurm, project, *words, **env)
        printed, _ = process.communicate()
        output = " ".join(printed.split())
        assert "Traceback" not in output
        assert (process.returncode, output.count(text)) == (code, 1 if text else len(output) + 1), output

    return check


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two nodes of Ray for one run each, as the cluster of RAY_ADDRESS."""
    from support.ray_cluster import two_nodes  # which loads Ray

    yield from two_nodes(monkeypatch)


@pytest.fixture
def ask(
    project: SweepProject, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Return what runs `ampcompare sweep` in the folder of the project: exit code and output."""
    monkeypatch.chdir(project.folder)
    monkeypatch.setenv("COLUMNS", "1000")

    def run(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["sweep", *words])
        output = capsys.readouterr()
        return int(ended.value.code or 0), output.out + output.err

    return run
