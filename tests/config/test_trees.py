"""Free trees of options: names of somebody else's, values as YAML types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from ampcompare.config.arguments import parse
from ampcompare.config.load import load_config
from ampcompare.errors import UserError


def kwargs(*words: str) -> dict[str, object]:
    return parse(words).model.kwargs


def test_a_word_is_typed_by_yaml(subtests: pytest.Subtests):
    for word, value in [
        ("64", 64),
        ("1e-5", 1e-5),  # a text to YAML 1.1
        ("true", True),
        ("None", None),
        ("", None),
        ("gelu", "gelu"),
        ('"64"', "64"),
        ("none", "none"),
        ("2024-01-01", "2024-01-01"),
        ("#ff0000", "#ff0000"),
        ("[1, 2.5, x]", [1, 2.5, "x"]),
        ("['a', None, True]", ["a", None, True]),
        ("{a: {b: [1e-3]}}", {"a": {"b": [1e-3]}}),
        ("{'a': {'b': None}}", {"a": {"b": None}}),
    ]:
        with subtests.test(word=word, value=value):
            found = kwargs(f"model.kwargs.x={word}")["x"]
            assert json.dumps(found) == json.dumps(value)


def test_a_later_word_adds_to_the_tree_and_null_empties_it(tmp_path: Path):
    file = tmp_path / "mine.yaml"
    file.write_text("model:\n  kwargs:\n    width: 1e2\n    act: {kind: relu, slope: 1}\ndata.kwargs.n: 5\n")
    config = load_config(str(file), ["model.kwargs.act.slope=2", "model.kwargs={depth: 3}"])
    assert config.model.kwargs == {"width": 100.0, "act": {"kind": "relu", "slope": 2}, "depth": 3}
    assert config.data.kwargs == {"n": 5}
    assert load_config(str(file), ["model.kwargs=null", "model.kwargs.a=1"]).model.kwargs == {"a": 1}


def test_what_is_in_a_tree_may_refer_to_what_else_is_there():
    words = ["model.kwargs={a: '${model.kwargs.b.c}', b: {c: '${seed}'}}", "data.kwargs.d=${model.kwargs.a}"]
    config = parse([*words, "seed=3"])
    assert (config.model.kwargs, config.data.kwargs) == ({"a": 3, "b": {"c": 3}}, {"d": 3})


def test_what_no_tree_can_be_gets_one_line(subtests: pytest.Subtests):
    for word in [
        "model.kwargs.=1",
        "model.kwargs.a..b=1",
        "model.kwargs.a=\0",
        "model.kwargs.a=\udcff",
        "model.kwargs.\udcff=1",
        "model.kwargs={null: 2}",
        "model.kwargs.a=" + "[" * 100_000,
        "model.kwargs.a=[&a [*a]]",
        "model.kwargs.a=!!python/object:os.system x",
        "model.kwargs.a=[1j]",
        "model.kwargs.a=b: c: d",
        "model.kwargs.a=${oc.env:HOME}",
        "model.kwargs.a=${model.kwargs}",
        "model.kwargs={a: '${model.kwargs.b}', b: '${model.kwargs.a}'}",
        "model.kwargs.a=???",
        "model.kwargs=64",
        "model.kwarg.a=1",
        "--model.kwargs.a",
    ]:
        with subtests.test(word=word):
            with pytest.raises(UserError) as caught:
                parse([word])
            assert str(caught.value).isprintable()
            assert len(str(caught.value)) < 3000


def test_a_recorded_tree_is_the_config_again(tmp_path: Path):
    config = parse(["model.kwargs={a: '1', b: [1, null], c: {d: 1e-7}}", "data.kwargs.e=true"])
    file = tmp_path / "recorded.yaml"
    for write in (yaml.safe_dump, json.dumps):
        file.write_text(write(config.to_dict()))
        assert load_config(str(file)) == config
