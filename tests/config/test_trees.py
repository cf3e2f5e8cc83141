"""Free trees of options: names of somebody else's, values as YAML types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from support.quick import ROOT

from ampcompare.config.arguments import parse
from ampcompare.config.load import load_config
from ampcompare.config.sweep_choice import check_parameters
from ampcompare.errors import UserError
from ampcompare.sweeps.check import first_config, problems_of
from ampcompare.sweeps.file.sweep import Sweep, read_sweep


def kwargs(*words: str) -> dict[str, object]:
    return parse(words).model.kwargs


def test_a_word_is_typed_by_yaml(subtests: pytest.Subtests):
    for word, value in [
        ("64", 64),
        ("0.5", 0.5),
        ("1e-5", 1e-5),  # a text to YAML 1.1
        ("1e-05", 1e-5),  # as W&B's agent writes it
        ("true", True),
        ("False", False),
        ("null", None),
        ("None", None),
        ("", None),
        ("gelu", "gelu"),
        ('"64"', "64"),
        ("'true'", "true"),
        ("none", "none"),
        ("2024-01-01", "2024-01-01"),
        ("#ff0000", "#ff0000"),
        ("[1, 2.5, x]", [1, 2.5, "x"]),
        ("['a', None, True]", ["a", None, True]),
        ("{a: {b: [1e-3]}}", {"a": {"b": [1e-3]}}),
        ("{'a': {'b': None}}", {"a": {"b": None}}),
        ("{}", {}),
    ]:
        with subtests.test(word=word, value=value):
            found = kwargs(f"model.kwargs.x={word}")["x"]
            assert json.dumps(found) == json.dumps(value)


def test_every_form_of_the_command_line_sets_the_same_tree():
    forms = (
        ["model.kwargs.width=64", "model.kwargs.act.slope=0.5"],
        ["model.kwargs={width: 64, act: {slope: 0.5}}"],
        ["model.kwargs={width: 64, act.slope: 0.5}"],
        ["model={'kwargs': {'width': 64, 'act': {'slope': 0.5}}}"],
        ["--model.kwargs.width=64", "--model.kwargs.act.slope=0.5"],
        ['{"model.kwargs.width": 64, "model.kwargs": {"act": {"slope": 0.5}}}'],
        ["+model.kwargs.width=64", "++model.kwargs.act={slope: 0.5}"],
    )
    assert [kwargs(*words) for words in forms] == [{"width": 64, "act": {"slope": 0.5}}] * len(forms)


def test_a_later_word_adds_to_the_tree_and_null_empties_it(tmp_path: Path):
    file = tmp_path / "mine.yaml"
    file.write_text("model:\n  kwargs:\n    width: 1e2\n    act: {kind: relu, slope: 1}\ndata.kwargs.n: 5\n")
    config = load_config(str(file), ["model.kwargs.act.slope=2", "model.kwargs={depth: 3}"])
    assert config.model.kwargs == {"width": 100.0, "act": {"kind": "relu", "slope": 2}, "depth": 3}
    assert config.data.kwargs == {"n": 5}
    assert load_config(str(file), ["model.kwargs=null", "model.kwargs.a=1"]).model.kwargs == {"a": 1}


DEEP = ".a" * 1000


def test_a_hostile_name_or_value_gets_one_line(subtests: pytest.Subtests):
    for word in [
        "model.kwargs.=1",
        "model.kwargs..a=1",
        "model.kwargs.a..b=1",
        "model.kwargs.a.=1",
        "model.kwargs.a\0b=1",
        "model.kwargs.a=\0",
        'model.kwargs.a="\\0"',
        "model.kwargs.__class__=1",
        "model.kwargs.__init__.x=1",
        "model.kwargs.1a=1",
        "model.kwargs.a b=1",
        "model.kwargs={'': 1}",
        "model.kwargs={1: 2}",
        "model.kwargs={'a': {1: 2}}",
        "model.kwargs={null: 2}",
        "model.kwargs.a=" + "[" * 1000 + "]" * 1000,
        "model.kwargs.a=" + "[" * 100_000,
        "model.kwargs.a=" + "{a: " * 1000 + "1" + "}" * 1000,
        f"model.kwargs{DEEP}=1",
        "model.kwargs={" + DEEP[1:] + ": 1}",
        "model.kwargs.a=" + "[" * 30 + "]" * 30,
        "model.kwargs.a=[&a [*a]]",
        "model.kwargs.a=!!python/object:os.system x",
        "model.kwargs.a=!!binary aGk=",
        "model.kwargs.a=[1j]",
        "model.kwargs.a=b: c: d",
        "model.kwargs.a=.inf",
        "model.kwargs.a=.nan",
        "model.kwargs.a=1e999",
        "model.kwargs.a=0x" + "f" * 5000,
        "model.kwargs.a=" + "9" * 5000,
        "model.kwargs.a=\udcff",
        "model.kwargs.\udcff=1",
        "model.kwargs.a=${oc.env:HOME}",
        "model.kwargs.a=${model.kwargs}",
        "model.kwargs.a=${model.kwargs.a}",
        "model.kwargs.a=???",
        "model.kwargs=64",
        "model.kwargs=[1]",
        "model.kwargs=text",
        "model.kwarg.a=1",
        "--model.kwargs.a",
    ]:
        with subtests.test(word=word):
            with pytest.raises(UserError) as caught:
                parse([word])
            assert str(caught.value).isprintable()
            assert len(str(caught.value)) < 3000


def test_what_the_sweep_chose_is_compared_with_its_type():
    config = parse(["model.kwargs.width=64", "model.kwargs.act=gelu", "model.kwargs.drop=1e-5"])
    check_parameters(config, {"model.kwargs.width": 64, "model": {"kwargs": {"act": "gelu"}}})
    check_parameters(config, {"model.kwargs.drop": "1e-5"})  # as `wandb sweep` reads it
    for chosen in ({"model.kwargs.width": 32}, {"model.kwargs": {"width": True}}, {"model.kwargs.depth": 3}):
        with pytest.raises(UserError, match=r"the sweep chose .* did not pass that on"):
            check_parameters(config, chosen)


def test_a_recorded_tree_is_the_config_again(tmp_path: Path):
    config = parse(["model.kwargs={a: '1', b: [1, null], c: {d: 1e-7}}", "data.kwargs.e=true"])
    file = tmp_path / "recorded.yaml"
    file.write_text(yaml.safe_dump(config.to_dict()))
    assert load_config(str(file)) == config
    file.write_text(json.dumps(config.to_dict()))
    assert load_config(str(file)).to_dict() == config.to_dict()


SWEEP = """
program: run_experiment.py
method: grid
parameters:
  model.name: {value: "timm:convnext_tiny"}
  model.kwargs.dims: {values: [[8, 8], [16, 16]]}
  model:
    parameters:
      kwargs:
        parameters:
          drop_path_rate: {values: [0, 1e-1]}
          %s: {value: gelu}
  data.kwargs.noise: {value: null}
"""


def test_a_sweep_may_vary_what_is_in_a_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    file = tmp_path / "sweep.yaml"
    file.write_text(SWEEP % "act")

    def read() -> Sweep:
        return read_sweep(file, lambda found, is_whole: problems_of(found, [], is_whole))

    sweep = read()
    config = first_config(sweep, ["model.kwargs.more=[1]"])
    assert config.model.kwargs == {"dims": [8, 8], "drop_path_rate": 0, "act": "gelu", "more": [1]}
    assert config.data.kwargs == {"noise": None}
    file.write_text(SWEEP % "__act__")
    with pytest.raises(UserError, match=r"model\.kwargs\.__act__: '__act__' is no name"):
        read()
