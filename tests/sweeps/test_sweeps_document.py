"""docs/sweeps.md: each command works in a small form, and the bundled sweeps are valid."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from support import warm_python
from support.outside import Outside
from support.quick import ROOT

from ampcompare import load_runs
from ampcompare.cli import main
from ampcompare.precision.registry import REGISTRY
from ampcompare.sweeps.prepare import prepare_sweep
from ampcompare.sweeps.sweep_file import read_sweep

TEXT = (ROOT / "docs" / "sweeps.md").read_text()
BASH = "".join(re.findall(r"^```bash\n(.*?)^```", TEXT, re.M | re.S))
COMMANDS = re.findall(r"^(?:srun )?ampcompare (.*?)(?:\s+# .*)?$", BASH, re.M)
ONLINE = "ENTITY/PROJECT"  # such are run by tests/online
AT_ONCE = ("reproduce", "--show", "--status", "--write-sweep")  # what trains nothing
SMALL = """device=cpu wandb.mode=offline data.source=synthetic data.train_limit=32 data.test_limit=16 epochs=1
    batch_size=16 log.warmup_steps=0 diagnostics.every=null""".split()
OF_A_SWEEP = ["model.name=tiny", "backend=[none]", "seed=[1]"]
DECIDING = ["backend=[none,native_bf16]", "plan.looks=[2]", "plan.max_seeds=2"]
PAPER = "title: A\nsource: B\nbaseline: a\nsetting: {model.name: tiny}\narms: {a: {backend: none}}\n"


def marks(command: str) -> list[pytest.MarkDecorator]:
    quick = command == AT_ONCE[0] or any(option in command for option in AT_ONCE[1:])
    return [] if quick else [pytest.mark.slow]


@pytest.mark.parametrize(
    "command", [pytest.param(c, marks=marks(c), id=c[:60]) for c in COMMANDS if ONLINE not in c]
)
def test_a_command_of_the_document_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outside: Outside, command: str
):
    monkeypatch.chdir(tmp_path)
    outside.replace(sys, "executable", warm_python.python())
    (tmp_path / "paper.yaml").write_text(PAPER)
    for there, here in (
        ("/shared/", "shared/"),
        ("reproduce ignite", "reproduce kuangliu"),  # which is one arm
    ):
        command = command.replace(there, here)
    verb, *words = shlex.split(command)
    trains = bool(marks(command))
    if trains:
        own = OF_A_SWEEP if verb == "sweep" else ["--seeds=1", "--scale=0.02", "--network=tiny"]
        words += DECIDING if "--until-decided" in words else []
        words += ["seed=[1,2]"] if "--seeds-per-process" in words else []
        named = {word.partition("=")[0] for word in words}
        words += [word for word in [*SMALL, *own] if word.partition("=")[0] not in named]
    with pytest.raises(SystemExit) as end:
        main([verb, *words])
    assert (end.value.code or 0) == (3 if "--status" in words else 0)
    if "--plan" in words:
        assert not [*tmp_path.glob("**/wandb")]
    elif trains:
        runs = load_runs([str(path.parent) for path in tmp_path.glob("**/wandb")])
        group = "reproduce-" if verb == "reproduce" else "compare_backends"
        assert {(run.state, run.group.startswith(group)) for run in runs} == {("finished", True)}
        assert {run.sweep_id for run in runs} == {""}  # W&B's server knows no such sweep
        assert list(tmp_path.glob("**/report/index.html"))
        if "bookends" in words:
            assert [run.option("plan.arm") for run in runs].count(None) == len(runs) - 2


@pytest.mark.parametrize("path", sorted((ROOT / "sweeps").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_sweep_that_comes_along_validates_and_says_how_to_run_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(ROOT)
    sweep = read_sweep(path)
    prepare_sweep(sweep, [])
    comment = path.read_text().partition("program:")[0]
    for command in (f"wandb sweep sweeps/{path.name}", f"ampcompare sweep {path.stem}"):
        assert f"#   {command}\n" in comment
    if path.stem == "compare_all":  # on a CPU too: W&B's agents end where runs are refused
        everywhere = [name for name, backend in REGISTRY.items() if not backend.uses_tf32]
        assert [p.values() for p in sweep.parameters if p.key == "backend"] == [everywhere]
