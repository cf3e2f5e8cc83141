"""Plug-in files that import other files of their own folder: what is found, recorded, watched and refused."""

import hashlib
import os
import shutil
import sys
from pathlib import Path

import pytest
from support.outside import Outside
from support.refusals import line_of
from support.training import play

from ampcompare import load_runs
from ampcompare.plugins import LOSSES, MODELS, load
from ampcompare.sweeps.code_version import code_files
from ampcompare.sweeps.sweep_file import read_sweep

NET = """from torch import nn
from own_blocks import Half

def build(num_classes):
    import own_layers
    from own_plain.parts.first import bias
    return nn.Sequential(nn.Flatten(), Half(), own_layers.linear(num_classes, bias))
"""
FILES = {
    "net.py": NET,
    "own_layers.py": "from torch import nn\nlinear = lambda n, bias: nn.Linear(3072, n, bias)\n",
    "own_blocks/__init__.py": "from .half import Half\n",
    "own_blocks/half.py": """from torch import nn
class Half(nn.Module):
    def forward(self, x):
        from . import constants
        return x * constants.FACTOR
""",
    "own_blocks/constants.py": "FACTOR = 0.5\n",
    "own_plain/parts/first.py": "bias = True\n",  # no __init__.py
    "own_unused.py": "",
    "own_rows.py": """import torch
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        from own_targets import target
        return torch.full((3, 32, 32), index / 64), target(index)
""",
    "own_targets.py": "def target(index): return index % 2\n",
    "data.py": "from own_rows import Rows\ndef build(train): return Rows()\n",
}
IMPORTED = {name for name in FILES if name.startswith(("own_layers", "own_blocks", "own_plain"))}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the working directory of all tests: in one process, a module has one folder."""
    return tmp_path_factory.mktemp("siblings")


@pytest.fixture(autouse=True)
def mine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder `mine` of the working directory, with the files; Python does not look there."""
    shutil.rmtree(folder)
    write(folder / "mine", FILES)
    monkeypatch.chdir(folder)
    return folder / "mine"


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def get_source() -> str:
    return load(MODELS, "./mine/net.py:build").source


def test_a_file_alone_has_the_hash_of_its_content(mine: Path):
    text = "import torch\nfrom os import path\nbuild = torch.nn.Linear\n"
    (mine / "net.py").write_text(text)
    assert get_source() == hashlib.sha256(text.encode()).hexdigest()[:16]


def test_each_imported_file_counts_in_the_recorded_hash_and_no_other(mine: Path, subtests: pytest.Subtests):
    for name in sorted(FILES):
        with subtests.test(name):
            before = get_source()
            with (mine / name).open("a") as file:
                file.write("# edited\n")
            assert (get_source() != before) == (name in IMPORTED | {"net.py"})


def test_the_code_that_runs_is_the_code_of_the_hash(mine: Path, outside: Outside):
    outside.replace(sys, "dont_write_bytecode", False)
    (mine / "net.py").write_text("from own_value import A\n")
    sources = set()
    for text in ("A = 1\n", "A = 2\n"):
        (mine / "own_value.py").write_text(text)
        os.utime(mine / "own_value.py", (1, 1))  # same size, same second: bytecode would seem to be current
        plugin = load(MODELS, "./mine/net.py:A")
        assert plugin.value == int(text[4])
        sources.add(plugin.source)
    assert len(sources) == 2


@pytest.mark.slow
def test_a_run_and_its_data_workers_import_the_files(mine: Path):
    words = ("model.name=./mine/net.py:build", "data.source=./mine/data.py:build", "data.augment=false")
    play(*words, "data.workers=1", "epochs=1", "model.kwargs.num_classes=2")
    (record,) = load_runs(["runs"])
    assert record.config["environment"]["model_source"] == get_source()


@pytest.mark.parametrize("trains_here", [True, False])
def test_a_sweep_watches_the_imported_files_of_plug_ins_and_programs(mine: Path, trains_here: bool):
    words = 'ampcompare, run, "model.name=./mine/net.py:build"' if trains_here else "python, mine/net.py"
    Path("sweep.yaml").write_text(
        f"method: grid\nprogram: {'ampcompare' if trains_here else 'mine/net.py'}\n"
        f'command: [{words}, "${{args}}"]\nparameters: {{seed: {{values: [1, 2]}}}}\n'
    )
    files = code_files(read_sweep(Path("sweep.yaml")), [], trains_here=trains_here)
    assert {path.relative_to("mine").as_posix() for path in files} == IMPORTED | {"net.py"}


def test_equal_names_from_two_folders_are_one_line_with_both_paths(mine: Path):
    load(MODELS, "./mine/net.py:build")
    write(mine.parent / "other", {"loss.py": "def loss(a, b):\n    import own_layers\n", "own_layers.py": ""})
    message = line_of(load, LOSSES, "./other/loss.py:loss")
    assert message.startswith("task.loss='./other/loss.py:loss': imports own_layers from other/own_layers.py")
    assert str(mine / "own_layers.py") in message
    assert message.endswith("rename other/own_layers.py")


@pytest.mark.parametrize("name", ["json", "torch", "yaml", "time", "this"])
def test_a_name_of_an_installed_module_is_refused(mine: Path, name: str):
    write(mine, {f"{name}.py": "", "net.py": f"def build():\n    import {name}\n"})
    message = line_of(load, MODELS, "./mine/net.py:build")
    assert f"imports {name} from mine/{name}.py, but there is another {name}: " in message


def test_a_plug_in_file_may_have_the_name_of_the_installed_module_that_it_imports(mine: Path):
    write(mine, {"json.py": "import json\ndef build():\n    return json.dumps(1)\n"})
    assert load(MODELS, "./mine/json.py:build").value() == "1"


def test_an_error_in_an_imported_file_names_the_plug_in(mine: Path):
    (mine / "own_layers.py").write_text("def linear(n, bias):\n    raise ValueError('no such layer')\n")
    message = line_of(play, "model.name=./mine/net.py:build")
    assert "model.name='./mine/net.py:build'" in message
    assert "line 7: ValueError: no such layer" in message
