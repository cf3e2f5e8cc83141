"""A new option is one line of the schema: what follows from its role follows everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.quick import QUICK, ROOT

from ampcompare.config.options import Role
from ampcompare.config.schema import LEAVES, with_role

# In a process of its own the schema is loaded with two options more in one of its groups.
PROGRAM = """
import json, sys, types
from importlib.util import find_spec

spec = find_spec("ampcompare.config.schema")
place = "class LogConfig:\\n"
lines = '    emoji: str = option("none", "on the page", role=Role.BOOKKEEPING)\\n'
lines += '    mood: str = option("calm", "of the training")\\n'
source = open(spec.origin, encoding="utf-8").read()
assert place in source
schema = sys.modules[spec.name] = types.ModuleType(spec.name)
exec(compile(source.replace(place, place + lines), spec.origin, "exec"), schema.__dict__)

from pathlib import Path
from ampcompare.checkpoint.store import differences, identify
from ampcompare.config.arguments import parse
from ampcompare.errors import UserError
from ampcompare.experiment import run
from ampcompare.records import load_runs
from ampcompare.report import analyse_runs

folder, *words = sys.argv[1:]
words = ["--config=demo", *words, "epochs=1"]
plain, smiling, wild = (
    parse([*words, f"output_dir={folder}/{n}", *more])
    for n, more in enumerate([[], ["log.emoji=smile", "seed=2"], ["log.mood=wild", "seed=3"]])
)
for config in (plain, smiling, wild):
    assert run(config).exit_code == 0
runs = load_runs([folder])
groups = analyse_runs(runs).groups
saved = identify(plain, "cpu", 1)
try:
    refusal = parse(["log.emojy=x"])
except UserError as problem:
    refusal = str(problem)

def differs(*given, saved=saved):
    return differences(identify(parse([*words, *given]), "cpu", 1), saved)

print("RESULT" + json.dumps({
    "recorded": sorted(run.option("log.emoji") for run in runs),
    "refusal": refusal,
    "groups": sorted(len(group.runs) for group in groups),
    "apart": sorted({value for group in groups for key, value in group.apart if key == "log.mood"}),
    "emoji": differs("log.emoji=smile"),
    "mood": differs("log.mood=wild"),
}))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("runs")
    command = [sys.executable, "-c", PROGRAM, str(folder), *QUICK]
    env = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_")}  # of tests before this one
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.rpartition("RESULT")[2])


@pytest.mark.slow
def test_a_new_option_is_read_and_recorded(found):
    assert found["recorded"] == ["none", "none", "smile"]
    assert found["refusal"] == "log.emojy: no such key; did you mean log.emoji?"


@pytest.mark.slow
def test_a_new_option_of_bookkeeping_neither_splits_groups_nor_keeps_a_run_from_going_on(found):
    assert (found["groups"], found["emoji"]) == ([1, 2], [])


@pytest.mark.slow
def test_a_new_option_that_shapes_the_result_does_both(found):
    assert found["apart"] == ["calm", "wild"]
    assert found["mood"] == ["log.mood (calm there, wild here)"]


def test_every_option_has_the_role_that_its_name_promises():
    assert with_role(Role.REPEAT) == {"seed"}
    assert with_role(Role.BOOKKEEPING) >= {"wandb", "wandb.name", "checkpoint", "output_dir", "resume"}
    shapes = {key for key, leaf in LEAVES.items() if leaf.role is Role.RESULT}
    assert shapes >= {"backend", "batch_size", "optimizer.lr", "precision.init_scale", "log.every"}


def test_the_schema_and_the_reports_settings_load_without_torch():
    code = "import sys, ampcompare.config.check, ampcompare.report.runs.settings; "
    code += "assert not {'torch', 'omegaconf'} & set(sys.modules), sorted(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(ROOT)).returncode == 0
