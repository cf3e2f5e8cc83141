"""A backend from outside, whose type is not fp16: training, record, sweep and report take it."""

from pathlib import Path

import pytest
from support.plugins import BF16
from support.refusals import line_of
from support.training import play

from ampcompare import analyse_runs, load_runs
from ampcompare.runs import RunRecord

MINE = "backend=./mine.py:Mine"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working directory with `mine.py`."""
    (tmp_path / "mine.py").write_text(BF16.format(label="mine_bf16"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read_records() -> list[RunRecord]:
    """Read the records of the working directory."""
    return sorted(load_runs(["runs"]), key=lambda record: record.name)


def test_an_option_or_a_result_that_does_not_fit_is_one_line(here: Path):
    message = line_of(play, MINE, "precision.loss_scale=128")
    assert "loss_scale=128: backend=./mine.py:Mine does not scale the" in message
    message = line_of(play, MINE, "precision.keep_batchnorm_fp32=true")
    assert "backend=./mine.py:Mine keeps all weights in fp32" in message
    for gives, kind in (("None", "None"), ("optimizer, model", "a tuple")):
        body = f"\n    def convert(self, model, optimizer): return {gives}\n"
        (here / "mine.py").write_text(BF16.format(label="mine_bf16") + body)
        message = f"backend='./mine.py:Mine': its convert returned {kind}; expected (model, optimizer)"
        assert line_of(play, MINE) == message


def test_a_plug_in_is_recorded_by_its_label_and_the_report_pools_only_equal_sources(here: Path):
    for words in (("backend=none",), (MINE,), (MINE, "seed=1")):
        message = play("epochs=1", *words)
    assert "mine_bf16: tiny on" in message
    record = read_records()[0]
    environment = record.config["environment"]
    assert (record.config["backend"], record.name) == ("./mine.py:Mine", "mine_bf16_tiny_synthetic")
    told = [environment[key] for key in ("precision_dtype", "backend_label", "backend_words")]
    assert told == ["bfloat16", "mine_bf16", "autocast, no scaling"]
    analysis = analyse_runs(load_runs(["runs"]))
    assert {group.label: len(group.all_rows) for group in analysis.groups} == {"none": 1, "mine_bf16": 2}
    (comparison,) = analysis.comparisons
    assert not comparison.uncontrolled_differences  # that it is another backend is what is compared
    with (here / "mine.py").open("a") as file:
        file.write("# another source of the same behaviour\n")
    play("epochs=1", MINE, "seed=2")
    _, *labels = [group.label for group in analyse_runs(load_runs(["runs"])).groups]
    assert [label.startswith("mine_bf16 · backend_source ") for label in labels] == [True, True]
