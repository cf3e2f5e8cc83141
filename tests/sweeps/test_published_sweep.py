"""A publication as a sweep file: our runner reads it, and W&B's schema knows its every key."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
import yaml
from support.sweep_schema import SCHEMA

from ampcompare.cli import main
from ampcompare.config.arguments import parse
from ampcompare.config.publication import arm_config
from ampcompare.published.publication import load
from ampcompare.report.request import FORMATS
from ampcompare.sweeps.answer import request_of
from ampcompare.sweeps.command import build_command
from ampcompare.sweeps.file import Sweep, read_sweep
from ampcompare.sweeps.prepare import prepared


def read(path: Path) -> Sweep:
    return prepared(read_sweep(path), ()).sweep


def written(tmp_path: Path, name: str, *options: str) -> Path:
    path = tmp_path / "written.yaml"
    path.unlink(missing_ok=True)
    with pytest.raises(SystemExit) as end:
        main(["reproduce", name, "--write-sweep", str(path), *options])
    assert not end.value.code
    return path


def test_a_written_sweep_is_read_back_and_holds_every_arm_in_every_seed(tmp_path):
    path = written(tmp_path, "recipe", "--seeds", "2", "--scale", "0.5", "log.every=7")
    jsonschema.validate(yaml.safe_load(path.read_text()), SCHEMA)
    sweep, publication = read(path), load("recipe")
    assert sweep.total() == 2 * len(publication.arms)
    template = sweep.command[sweep.command.index("run") + 1 :]
    configs = [
        parse(build_command(template, sweep.program, sweep.points[place].parameters, tmp_path / "json"))
        for place in range(2 * len(publication.arms))
    ]
    ran = sorted((config.published.arm, config.seed) for config in configs)
    first = publication.setting.get("seed", 223)
    assert ran == sorted((arm, seed) for arm in publication.arms for seed in (first, first + 1))
    assert {config.published.scale for config in configs} == {0.5}
    assert {config.log.every for config in configs} == {7}
    for config in configs:
        whole = arm_config(publication, config.published.arm, 0.5)
        assert {k: config.value(k) for k in publication.arm_keys} == {
            k: whole.value(k) for k in publication.arm_keys
        }


def test_the_sweep_of_a_publication_ends_with_its_verdict(tmp_path):
    """Whoever runs it: the report is that of `--reproduce`, with the pictures."""
    request = request_of(read(written(tmp_path, "ignite")), tmp_path)
    assert (request.reproduce, request.kinds) == ("ignite", FORMATS)


def test_the_baseline_comes_first_and_a_seed_of_the_setting(tmp_path):
    paper = tmp_path / "my paper: 2.yaml"
    arms = "arms: {half: {backend: native}, fp32: {}, bf16: {backend: native_bf16}}"
    paper.write_text(f"title: A\nsource: B\nbaseline: fp32\nsetting: {{seed: 7}}\n{arms}\n")
    sweep = read(written(tmp_path, str(paper), "--seeds", "2"))
    of = {p.key: p.settings.get("values") for p in sweep.parameters}
    assert (of["published.arm"], of["seed"]) == (["fp32", "half", "bf16"], [7, 8])
    assert sweep.name == "reproduce-my-paper-2"  # which a folder can be called
