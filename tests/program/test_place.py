"""Files that come along, and commands as they are printed for the user."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.pasting import paste
from support.quick import ROOT

from ampcompare.program.place import as_typed


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with an environment below it, whose one program prints its words."""
    scripts = tmp_path / "my project" / ".venv" / "bin"
    scripts.mkdir(parents=True)
    (scripts / "wandb").write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    (scripts / "wandb").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(scripts / "python"))
    return tmp_path / "my project"


@pytest.mark.parametrize("inside", [True, False])
def test_a_printed_command_works_pasted_without_an_activated_environment(
    environment: Path, inside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = environment if inside else tmp_path
    monkeypatch.chdir(folder)
    line = as_typed("wandb", "sync", tmp_path / "it's $HOME; *")
    assert line.startswith(".venv/bin/wandb ") == inside
    assert paste(line, folder).stdout == f"<sync><{tmp_path}/it's $HOME; *>"


def test_a_program_without_a_script_is_called_as_a_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    for program, said in (("ampcompare", "ampcompare 0"), ("wandb", "python -m wandb, version")):
        assert paste(as_typed(program, "--version"), tmp_path, PYTHONPATH="").stdout.startswith(said)


def test_a_package_without_its_checkout_carries_configs_and_sweeps(tmp_path: Path):
    """What setup.py copies; the wheel itself is tried by .ci/wheel-check."""
    for name in ("src", "configs", "sweeps"):
        shutil.copytree(
            ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.egg-info", "__pycache__")
        )
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    build = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", "out"]
    subprocess.run(build, cwd=tmp_path, check=True, capture_output=True)
    for name in ("src", "configs", "sweeps"):
        shutil.rmtree(tmp_path / name)
    code = (
        "from ampcompare.config.arguments import parse; from ampcompare.sweeps.run import find_sweep\n"
        "from ampcompare.sweeps.file.sweep import read_sweep\n"
        "from ampcompare.sweeps.check import problems_of\n"
        "print(parse(['--config', 'demo']).wandb.group)\n"
        "print(problems_of(read_sweep(find_sweep('compare_backends')), []))\n"
        "from ampcompare.published.publication import load, names\n"
        "print(*[load(name).name for name in names()])"
    )
    words = [sys.executable, "-c", code]
    env = {"PYTHONPATH": str(tmp_path / "out")}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)
    published = sorted(path.stem for path in (ROOT / "configs" / "published").glob("*.yaml"))
    assert published
    assert (done.stdout, done.stderr) == (f"demo\n[]\n{' '.join(published)}\n", "")
    sources = {p.relative_to(ROOT / "src") for p in (ROOT / "src" / "ampcompare").rglob("*.*")}
    wanted = {path for path in sources if path.suffix not in (".pyc", ".py")}
    assert wanted
    assert all((tmp_path / "out" / path).is_file() for path in wanted)
