"""Commands as they are printed for the user."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.pasting import paste

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
