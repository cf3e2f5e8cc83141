"""What is said in one place is taken everywhere: each test makes a change that once needed two lists.

`training`, `record`, `sweep check` and `report` are asked, and nothing but the one declaration is touched.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from support.quick import QUICK

from ampcompare import metrics
from ampcompare.config.load import load_config
from ampcompare.data.dataset import Dataset
from ampcompare.data.sources import SOURCES, Source, synthetic
from ampcompare.errors import UserError
from ampcompare.experiment import run
from ampcompare.records import RunRecord, load_runs
from ampcompare.report import analyse_runs
from ampcompare.sweeps.check import problems_of
from ampcompare.sweeps.file import read_sweep
from ampcompare.train.evaluation import Evaluation


def train(out: Path, *words: str) -> tuple[RunRecord, str]:
    """The record of a quick run, and what it printed."""
    said = io.StringIO()
    result = run(load_config(None, [*QUICK, f"output_dir={out}", *words]), Console(file=said, width=200))
    assert result.exit_code == 0, said.getvalue()
    (record,) = load_runs([out])
    return record, said.getvalue()


def sweep_problems(tmp_path: Path, **content: object) -> list[str]:
    """What the check has against a sweep of our program."""
    path = tmp_path / "sweep.yaml"
    content = {"program": "run_experiment.py", "method": "grid", **content}
    path.write_text(yaml.safe_dump(content))
    return [text for text in problems_of(read_sweep(path), []) if "no such file" not in text]


@pytest.fixture
def stripes(monkeypatch: pytest.MonkeyPatch) -> Source:
    """A source from outside: images and labels, no more."""

    def load(root: str | None, *limits: int | None) -> Dataset:
        assert root == "somewhere"
        return Dataset.of_images(synthetic.make_images("train", 32), synthetic.make_images("test", 16))

    source = Source("my_stripes", "my own stripes", "stripes", load, root="place", needs_root=True)
    monkeypatch.setitem(SOURCES, source.name, source)
    return source


def test_a_source_is_declared_once(stripes: Source, tmp_path: Path):
    words = ("data.source=my_stripes", "data.root=somewhere")
    record, said = train(tmp_path / "runs", *words)
    assert "tiny on my own stripes, 32 training images" in said
    assert record.name == "none_tiny_stripes"
    assert record.option("data.source") == "my_stripes"
    assert "my_stripes" in record.tags
    parameters = {"data.source": {"values": ["my_stripes", "synthetic"]}, "data.root": {"value": "somewhere"}}
    assert sweep_problems(tmp_path, parameters=parameters) == []
    assert analyse_runs([record]).setting.words.partition(" on ")[2].startswith("my own stripes somewhere")
    with pytest.raises(UserError, match=r"data\.source=my_stripes needs a place; set data\.root=PATH"):
        load_config(None, words[:1])


@pytest.fixture
def margin(monkeypatch: pytest.MonkeyPatch) -> str:
    """A metric put into the list, and the one line that logs it."""
    monkeypatch.setattr(metrics, "METRICS", dict(metrics.METRICS))
    key = metrics.declare("eval/doubt", "doubt", metrics.EVALUATION, "nats", better=metrics.LOWER)
    evaluate = Evaluation.run

    def run_and_doubt(*arguments: Any) -> dict[str, float] | None:
        found = evaluate(*arguments)
        return found and found | {key: 2 * found[metrics.EVAL_LOSS]}

    monkeypatch.setattr(Evaluation, "run", run_and_doubt)
    return key


def test_a_metric_is_declared_once(margin: str, tmp_path: Path):
    record, _ = train(tmp_path / "runs")
    assert record.values(margin) == pytest.approx(2 * record.values(metrics.EVAL_LOSS))
    parameters = {"backend": {"values": ["none", "native"]}}
    assert sweep_problems(tmp_path, parameters=parameters, metric={"name": margin}) == []
    compared = analyse_runs([record], metric=margin).metric
    assert (compared.name, compared.unit, compared.falls) == ("doubt", "nats", True)
