"""docs/sweeps.md, "Your own network in a sweep": its files and commands, without a server and with one."""

import re
import subprocess
from pathlib import Path

import pytest
from support import warm_python
from support.quick import ROOT

from ampcompare import load_runs
from ampcompare.errors import UserError
from ampcompare.sweeps.prepare import prepare

pytestmark = pytest.mark.slow

TEXT = (ROOT / "docs" / "sweeps.md").read_text()
FILES = dict(re.findall(r"^```(?:python|yaml)\n# (\S+)\n(.*?)^```", TEXT, re.M | re.S))
COMMANDS = re.findall(r"^(ampcompare sweep own.*?|wandb .*? ?(?:own.yaml|own-network/ID)) +#", TEXT, re.M)
REFUSED = "model.name='./net.py:build': there is no file ./net.py in"  # as the page has it
TRAINED = ("finished", "./net.py:build", "native_bf16", 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    mine = tmp_path / "mine"
    mine.mkdir()
    for name in ("net.py", "data.py", "own.yaml"):
        (mine / name).write_text(FILES[name])
    return mine


def test_the_commands_are_those_that_are_tested_here():
    names = ["ampcompare sweep own.yaml", "wandb sweep own.yaml", "wandb agent ENTITY/own-network/ID"]
    assert names == COMMANDS
    assert f"`{REFUSED} ...`" in TEXT


def test_it_runs_without_a_server_where_its_files_are_and_nowhere_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    words = ("backend=native_bf16", "seed=1", "device=cpu", "wandb.mode=offline")
    command = [warm_python.python(), "-m", "ampcompare", "sweep", "own.yaml", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = load_runs([str(folder / "runs" / "own")])
    assert (run.state, *map(run.option, ("model.name", "backend", "seed"))) == TRAINED
    assert (folder / "runs" / "own" / "report" / "index.html").is_file()
    monkeypatch.chdir(folder.parent)
    with pytest.raises(UserError) as caught:
        prepare("mine/own.yaml", ["device=cpu"])
    assert f"parameters.{REFUSED} {folder.parent};" in str(caught.value)
