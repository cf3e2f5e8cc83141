"""A file of somebody's own: read as those that come along are, or refused in a line with file and key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ampcompare import entrypoint
from ampcompare.errors import UserError
from ampcompare.published.publication import load, names

PAPER: dict[str, Any] = {
    "title": "A paper",
    "source": "Somebody",
    "setting": {"model": {"name": "tiny"}, "epochs": 2},
    "baseline": "fp32",
    "arms": {"fp32": {"backend": "none"}, "half": {"backend": "fp16", "precision": {"loss_scale": 1}}},
    "figures": {"time": {"measured": "seconds", "unit": "min", "values": {"fp32": "2.0", "half": "1.5"}}},
    "curves": ["eval/loss"],
}


NONE = ["fast", "", "0,24", "1,23", "24 %", "nan", "1.", ".5", "6h54", "9" * 41, True, None, []]
FIGURE = 'is no figure; expected it as it was printed, such as "0.240"'
INTERVAL = {"value": 1, "low": 0, "high": 2}


def written(folder: Path, content: Any) -> Path:
    path = folder / "paper.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def changed(key: str, value: Any) -> dict[str, Any]:
    """The paper with one value, by its dotted key, put in or taken out (`...`)."""
    content: Any = yaml.safe_load(yaml.safe_dump(PAPER))
    *path, last = key.split(".")
    place = content
    for part in path:
        place = place[int(part) if isinstance(place, list) else part]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return content


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as refused:
        load(str(path))
    said = str(refused.value)
    assert said.startswith(f"{path}")
    assert len(said.splitlines()) == 1
    return said.removeprefix(f"{path}: ")


def test_a_file_is_read_by_its_path_and_named_after_it(tmp_path):
    found = load(str(written(tmp_path, PAPER)))
    assert (found.name, found.runs, found.images, found.gflop) == ("paper", 1, None, None)
    assert found.arm_keys == ("backend", "precision.loss_scale")
    assert found.setting == {"model.name": "tiny", "epochs": 2}
    time = found.figures[0].values["fp32"]
    assert (time.value, time.low, time.high) == pytest.approx((120, 117, 123))


def test_what_is_wrong_in_a_file_is_one_line_with_its_key(tmp_path, subtests: pytest.Subtests):
    lines = "expected lines of the form key: value"
    for key, value, said in [
        ("titel", "x", "titel: no such key; did you mean title?"),
        ("figures.time.valeus", {}, "figures.time.valeus: no such key; did you mean values?"),
        ("title", ..., "title: missing"),
        ("source", "", "source='': expected a text"),
        ("baseline", ..., "baseline: missing"),
        ("baseline", "O1", "baseline='O1': expected one of the arms: fp32, half"),
        ("arms", {}, "arms: expected 1 or more of them"),
        ("arms", {str(n): {} for n in range(21)}, "arms: expected at most 20 of them"),
        ("arms", {"a\nb": {}}, "arms.a b='a\\nb': expected a name of 1 to 60 characters, in one line"),
        ("arms.half", "fp16", f"arms.half='fp16': {lines}"),
        ("arms.half", {1: 2}, "arms.half[1]=1: expected a text"),
        ("setting", [1], f"setting=[1]: {lines}"),
        ("runs", 0, "runs=0: expected at least 1"),
        ("runs", True, "runs=True: expected a whole number"),
        ("gflop", float("nan"), "gflop=nan: expected a number"),
        ("gflop", 0, "gflop=0: expected a number above 0"),
        ("figures.time.measured", "wall", "figures.time.measured='wall': expected 'seconds',"),
        ("figures.time.unit", "MiB", "figures.time.unit='MiB': expected one of s, min, h, which fit seconds"),
        ("figures.time.values", {"O1": "2"}, "figures.time.values.O1: no such arm; there are fp32, half"),
        *(
            ("figures.time.values.half", text, f"figures.time.values.half={text!r}: {FIGURE}")
            for text in NONE
        ),
        (
            "figures.time.values.half",
            INTERVAL | {"low": 2},
            "figures.time.values.half: low 2, value 1, high 2",
        ),
        (
            "figures.time.values.half",
            INTERVAL | {"n": 1},
            "figures.time.values.half.n=1: expected at least 2",
        ),
        (
            "figures.time.values.half",
            INTERVAL | {"confidence": 1.0},
            "figures.time.values.half.confidence=1.0",
        ),
        ("curves", {}, "curves: expected a list"),
        ("curves", [1], "curves[0]=1: expected a text"),
    ]:
        with subtests.test(key=key, value=value, said=said):
            assert refusal(written(tmp_path, changed(key, value))).startswith(said)


@pytest.mark.parametrize("content", ["", "[]", "a: [", "title: x\ntitle: y"])
def test_what_is_no_publication_at_all_is_refused_with_its_file(tmp_path, content):
    with pytest.raises(UserError, match=r"paper\.yaml"):
        load(str(written(tmp_path, content)))


@pytest.mark.parametrize("key", ["optimizer.rl", "precision"])
def test_an_option_that_there_is_none_of_ends_a_run_with_exit_code_2(tmp_path, capsys, key):
    path = written(tmp_path, changed("setting", {key: 1}))
    with pytest.raises(SystemExit) as ended:
        entrypoint.main([f"published.name={path}", "published.arm=fp32"])
    assert ended.value.code == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert f"{path}: setting: {key}" in said[0]


@pytest.mark.parametrize("name", names())
def test_what_comes_along_is_found_by_name_with_or_without_its_ending_and_by_path(name):
    found = load(name)
    assert load(f"{name}.yaml") == load(str(found.path)) == found
