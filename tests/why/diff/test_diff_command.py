"""`ampcompare why diff` as it is typed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.quick import QUICK

from ampcompare.cli import main
from ampcompare.why.diff.answer import Difference
from ampcompare.why.diff.command import difference
from ampcompare.why.diff.picture import write_picture
from ampcompare.why.diff.words import sentences

WORDS = [*QUICK, "batch_size=4"]


def diff(*words: object) -> int:
    with pytest.raises(SystemExit) as end:
        main(["why", "diff", *map(str, words)])
    assert isinstance(end.value.code, int)
    return end.value.code


def test_the_same_question_has_the_same_answer(tmp_path: Path):
    files = [tmp_path / "deeper" / f"{number}.json" for number in (1, 2)]
    for file in files:
        assert diff(*WORDS, "backend=native_bf16", "--steps", 2, "--json", file) == 0
    assert files[0].read_bytes() == files[1].read_bytes()
    answer = json.loads(files[0].read_text())
    assert [side["label"] for side in answer["backends"]] == ["native_bf16", "none"]
    assert len(answer["modules"]) == 10
    assert sorted(answer["worst"]) == sorted(line["module"] for line in answer["modules"])
    assert {tuple(drift["of"]) for drift in answer["drift"]} == {
        ("native_bf16", "fp64"),
        ("none", "fp64"),
        ("native_bf16", "none"),
        ("none", "another order of the batches"),
    }


@pytest.mark.slow
def test_the_table_fits_a_terminal_and_shows_the_worst(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert diff(*WORDS, "model.name=resnet20", "data.kwargs.size=8", "backend=native_bf16") == 0
    said = capsys.readouterr().out
    lines = said.splitlines()
    assert max(map(len, lines)) <= 80
    rows = [
        line
        for line in lines
        if re.search(r" (bf16|fp32) ", line) and not line.startswith(("-", " ", "module"))
    ]
    assert len(rows) == 15
    own = [float(re.split(r"\s+", row)[2]) for row in rows]
    assert own == sorted(own, reverse=True)
    assert "modules more with --all" in said
    assert "most error arises in " in said


@pytest.fixture(scope="module")
def found() -> Difference:
    return difference([*WORDS, "backend=native_bf16"])


@pytest.mark.parametrize(
    ("kind", "start"), [("png", b"\x89PNG"), ("svg", b"<svg"), ("html", b"<!DOCTYPE html>")]
)
def test_the_heat_map_is_a_picture_of_each_kind(found: Difference, tmp_path: Path, kind: str, start: bytes):
    file = tmp_path / f"heat.{kind}"
    write_picture(found, file)
    content = file.read_bytes().lstrip()
    assert content.startswith(start)
    assert b"<script src=" not in content
    if kind != "png":
        assert all(name in content for name in (b"BatchNorm2d", b"its own error", b"Errors of native_bf16"))


def test_a_large_batch_is_looked_at_in_part():
    words = [word for word in WORDS if "batch_size" not in word]
    assert difference([*words, "backend=none"]).samples == 8


def test_the_drift_of_rounding_is_set_beside_that_of_chance():
    found = difference([*WORDS, "backend=native_bf16"], steps=3)
    assert found.between
    assert found.chance
    assert len(found.between.weights) == len(found.chance.losses) == 3
    assert found.between.last is not None
    assert found.chance.last is not None
    assert 1e-4 < found.between.last < found.chance.last
    assert any("parted by less than chance" in sentence for sentence in sentences(found))


def test_steps_that_overflow_are_said():
    found = difference([*WORDS, "backend=apex_o2", "precision.init_scale=1e7"], steps=2)
    assert found.sides[0].skipped
    assert found.sides[0].update is not None
    assert found.sides[0].update.flushed == 1
    said = " ".join(sentences(found))
    assert "apex_o2: the step was skipped" in said
    assert re.search(r"apex_o2: [12] of 2 steps were skipped", said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["backend=O1"], "backend='O1': expected one of none, native"),
        (["backend=native", "--against", "nobody"], "backend='nobody': expected one of none, native"),
        (["backend=native", "--plot", "heat.pdf"], "expected a file that ends in .png, .svg or .html"),
        (["backend=native", "--steps", "0"], "--steps"),
        (["backend=native", "--nonsense"], "--nonsense"),
        (["execution=compile"], "execution='compile': diff looks at modules one by one"),
        (["backend=none", "--json", "{tmp}/taken/x.json"], "cannot be written"),
    ],
)
def test_wrong_use_of_diff_is_one_line(words: list[str], said: str, tmp_path: Path, capsys):
    (tmp_path / "taken").write_text("a file")
    assert diff(*WORDS, *(word.format(tmp=tmp_path) for word in words)) == 2
    error = capsys.readouterr().err
    assert re.fullmatch(r"error: [^\n]+\n", error), error
    assert said in error


def test_a_device_without_float64_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr("ampcompare.why.diff.built.machine.has_float64", lambda device: False)
    assert diff(*WORDS, "backend=native") == 2
    assert capsys.readouterr().err.startswith("error: device='cpu': has no float64, which is the truth")
