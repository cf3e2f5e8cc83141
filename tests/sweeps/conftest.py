"""Fixtures: a folder with a sweep, the command on Slurm, and a cluster of Ray."""

import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.quick import ROOT
from support.slurm import Slurm
from support.sweep_project import SweepProject


@pytest.fixture
def project(tmp_path) -> SweepProject:
    return SweepProject(tmp_path)


@pytest.fixture
def says(project: SweepProject, slurm: Slurm) -> Callable[..., None]:
    """Return a check of `ampcompare sweep --cluster slurm`: a text in its output, once, and its exit code."""

    def check(text: str, *words: str, code: int = 0, **env: str) -> None:
        done = subprocess.run(
            project.command("--cluster", "slurm", *words),
            cwd=project.folder,
            env=slurm.environment(PYTHONPATH=f"{ROOT / 'src'}", **env),
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        output = " ".join((done.stdout + done.stderr).split())
        assert (done.returncode, output.count(text)) == (code, 1 if text else len(output) + 1), output

    return check


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two nodes of Ray for one run each, as the cluster of RAY_ADDRESS."""
    from support.ray_cluster import two_nodes  # which loads Ray

    yield from two_nodes(monkeypatch)
