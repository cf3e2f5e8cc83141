"""One key with two meanings: rows of training and of evaluation are asked about, and never mixed."""

import json
import shlex
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ampcompare import analyse_runs, load_runs
from ampcompare.analysis.analysis import Analysis
from ampcompare.analysis.options import AnalysisOptions
from ampcompare.errors import UserError
from ampcompare.report.options import ReportOptions
from ampcompare.runs.missing_input import MissingInput

Row = dict[str, Any]
SPEED = {"a": 1.0, "b": 0.5}  # seconds of a training step


def sources(folder: Path, rows_of: Callable[[str, int], Iterable[Row]]) -> list[str]:
    """Write JSON lines for three runs per arm, and return the named sources."""
    for arm in SPEED:
        for seed in (1, 2, 3):
            path = folder / arm / f"{seed}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"{json.dumps(row)}\n" for row in rows_of(arm, seed)))
    return [f"{arm}={folder / arm}" for arm in SPEED]


def mmengine(arm: str, seed: int) -> Iterable[Row]:
    """Yield rows of mmengine: the evaluation has a time of its own, which no precision changes."""
    for step in range(1, 9):
        yield {"lr": 0.1, "loss": 1 / step, "time": SPEED[arm] + seed / 1000, "data_time": 0.1, "step": step}
        if step % 2 == 0:
            yield {"coco/bbox_mAP": 0.3 + seed / 100, "data_time": 0.2, "time": 5.0, "step": step // 2}


def with_mode(arm: str, seed: int) -> Iterable[Row]:
    """Yield rows of older mmcv, which name their kind and have the same keys."""
    for epoch in (1, 2, 3):
        for step in (10, 20):
            acc = 0.9 + seed / 1000
            yield {"mode": "train", "epoch": epoch, "iter": step, "lr": 0.1, "acc": acc, "time": SPEED[arm]}
        yield {"mode": "val", "epoch": epoch, "iter": 5, "lr": 0.1, "acc": 0.7 + seed / 1000, "time": 5.0}


def long_format(arm: str, seed: int) -> Iterable[Row]:
    """Yield rows with a column `set`."""
    for epoch in (1, 2, 3):
        for kind, score in (("valid", 0.7), ("train", 0.9)):
            yield {"epoch": epoch, "set": kind, "acc": score + seed / 1000 + epoch / 100, "loss": 1 / epoch}


def tidy(arm: str, seed: int) -> Iterable[Row]:
    """Yield one row for each number."""
    for epoch in (1, 2, 3):
        for name, value in (("acc", 0.7 + seed / 1000), ("loss", 1 / epoch)):
            yield {"epoch": epoch, "metric": name, "value": value}


def with_flag(arm: str, seed: int) -> Iterable[Row]:
    """Yield rows with a truth value."""
    for epoch in (1, 2, 3):
        for is_training in (True, False):
            score = 0.9 if is_training else 0.7
            yield {"epoch": epoch, "is_training": is_training, "acc": score + seed / 1000}


def with_codes(arm: str, seed: int) -> Iterable[Row]:
    """Yield rows whose kind is a number."""
    for epoch in (1, 2, 3):
        for phase, score in ((0, 0.9), (1, 0.7)):
            yield {"epoch": epoch, "phase": phase, "acc": score + seed / 1000}


def with_more_keys(arm: str, seed: int) -> Iterable[Row]:
    """Yield training rows that have a key more than the rows of an evaluation at the same step."""
    for step in (1, 2, 3):
        yield {"step": step, "loss": 1 / step, "acc": 0.9 + seed / 1000, "grad_norm": 1.0}
        yield {"step": step, "loss": 2 / step, "acc": 0.7 + seed / 1000}


def quality(analysis: Analysis) -> list[float]:
    """Return the quality of each group."""
    return [group.estimates["quality"].value for group in analysis.groups]


@pytest.mark.parametrize(
    ("rows_of", "metric", "kinds", "where", "value"),
    [
        (with_mode, "acc", "mode (train and val)", "mode=val", 70.2),
        (long_format, "acc", "set (train and valid)", "set=valid", 73.2),
        (tidy, "value", "metric (acc and loss)", "metric=acc", 70.2),
        (with_flag, "acc", "is_training (False and True)", "is_training=False", 70.2),
        (with_codes, "acc", "phase (0 and 1)", "phase=1", 70.2),
        (with_more_keys, "acc", "grad_norm", "acc:!grad_norm", 70.2),
    ],
)
def test_a_metric_in_rows_of_two_kinds_is_asked_about(tmp_path, rows_of, metric, kinds, where, value):
    runs = load_runs(sources(tmp_path, rows_of))
    with pytest.raises(MissingInput) as caught:
        analyse_runs(runs, metric=f"{metric}:max:fraction")
    (question,) = caught.value.questions
    assert f"{metric} stands in rows of several kinds" in question
    assert kinds in question
    assert caught.value.arguments[0] == "--where"
    analysis = analyse_runs(runs, metric=f"{metric}:max:fraction", where=[where])
    assert quality(analysis) == pytest.approx([value, value])
    assert any(where in note for note in analysis.notes)


def test_a_time_in_rows_of_training_and_evaluation_is_asked_about(tmp_path):
    runs = load_runs(sources(tmp_path, mmengine))
    options = {"metric": "coco/bbox_mAP:max", "time": "time:seconds:each", "ignore": ["device"]}
    with pytest.raises(MissingInput) as caught:
        analyse_runs(runs, **options)
    (question,) = caught.value.questions
    assert "time stands in rows of several kinds" in question
    assert caught.value.arguments[:2] == ("--where", "time:lr")
    analysis = analyse_runs(runs, **options, where=["time:loss"])
    assert analysis.comparison("b").estimates["speed"].value == pytest.approx(2.0, rel=0.01)
    assert quality(analysis) == pytest.approx([0.32, 0.32])
    analyse_runs(runs, metric="coco/bbox_mAP:max")  # without the time there is nothing to ask


def test_the_suggested_command_chooses_evaluation_and_training(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sources(tmp_path, with_mode)
    asked = AnalysisOptions(metric="acc:max:fraction", time="time:seconds:each", ignore=["device"])
    command = ReportOptions(["a=a", "b=b"], analysis=asked)
    with pytest.raises(UserError) as caught:
        command.analyse()
    words = shlex.split(caught.value.lines[-1].removeprefix("for example: "))
    where = [words[index + 1] for index, word in enumerate(words) if word == "--where"]
    assert where == ["acc:mode=val", "time:mode=train"]
    analysis = ReportOptions(["a=a", "b=b"], analysis=replace(asked, where=where)).analyse()
    assert quality(analysis) == pytest.approx([70.2, 70.2])
    assert analysis.comparison("b").estimates["speed"].value == pytest.approx(2.0)


def test_a_choice_for_the_metric_does_not_choose_the_rows_of_the_time(tmp_path):
    runs = load_runs(sources(tmp_path, with_mode))
    with pytest.raises(MissingInput) as caught:
        analyse_runs(runs, metric="acc:max:fraction", time="time:seconds:each", where=["mode=val"])
    assert caught.value.arguments == ("--where", "time:mode=train")


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("mode=vall", "--where 'mode=vall': no row has this value; mode has train and val"),
        ("mod=val", "--where 'mod=val': no run has the column 'mod'; did you mean mode?"),
        ("ac:mode=val", "no run has the column"),
    ],
)
def test_a_condition_that_no_row_meets_is_refused(tmp_path, where, message):
    runs = load_runs(sources(tmp_path, with_mode))
    with pytest.raises(UserError) as caught:
        analyse_runs(runs, metric="acc:max:fraction", where=[where])
    assert message in caught.value.lines[0]


def every_few(arm: str, seed: int) -> Iterable[Row]:
    """Yield training rows in which further values stand now and then."""
    for step in range(1, 13):
        row: Row = {"step": step, "loss": 1 / step, "time": SPEED[arm]}
        row |= {"grad_norm": 1.0} if step % 2 == 0 else {}
        row |= {"acc": 0.7 + seed / 100} if step % 3 == 0 else {}
        yield row


def resumed(arm: str, seed: int) -> Iterable[Row]:
    """Yield rows of which some were logged twice."""
    for step in (1, 2, 3, 2, 3, 4):
        yield {"step": step, "loss": 1 / step, "acc": 0.7 + seed / 100, "time": SPEED[arm]}


def restarting(arm: str, seed: int) -> Iterable[Row]:
    """Yield rows whose step restarts in each epoch; a further value stands in every fourth of them."""
    for number in range(21):
        row: Row = {"epoch": number // 3, "step": number % 3, "acc": 0.7, "loss": seed, "time": SPEED[arm]}
        yield row | ({"grad_norm": 1.0} if number % 4 == 0 else {})


def few_epochs(arm: str, seed: int) -> Iterable[Row]:
    """Yield rows of three epochs, whose name has a capital letter, and of a setting with whole numbers."""
    for number in range(9):
        epoch = number // 3
        yield {"Epoch": epoch, "step": number % 3, "growth": epoch // 2, "acc": seed, "time": SPEED[arm]}


def stages(arm: str, seed: int) -> Iterable[Row]:
    """Yield rows with a text column that names no kind of row."""
    for step in range(1, 7):
        yield {"step": step, "stage": "warmup" if step < 3 else "main", "acc": seed, "time": SPEED[arm]}


def evaluated_again(arm: str, seed: int) -> Iterable[Row]:
    """Yield rows as Hugging Face's Trainer does, with an evaluation of the best model at the end."""
    for step in (10, 20):
        yield {"step": step, "loss": 1 / step, "time": SPEED[arm]}
        yield {"step": step, "acc": 0.6 + seed / 100, "eval_runtime": 2.0 + step / 100}
    yield {"step": 20, "train_runtime": 50.0}
    yield {"step": 20, "acc": 0.7 + seed / 100, "eval_runtime": 2.1}


def batches(arm: str, seed: int) -> Iterable[Row]:
    """Yield rows of batches, whose epoch is the only known step."""
    for epoch in (1, 2):
        for batch in (10, 20, 30):
            acc = 0.7 + seed / 1000 + epoch / 100 + batch / 1e4
            yield {"epoch": epoch, "batch": batch, "acc": acc, "time": SPEED[arm]}


def test_rows_of_batches_are_counted_by_the_column_that_the_user_names(tmp_path):
    named = sources(tmp_path, batches)
    options = {"metric": "acc:max:fraction", "time": "time:seconds:each", "ignore": ["device"]}
    with pytest.raises(MissingInput, match=r"batch \(10, 20 and 30\).* or --step COLUMN"):
        analyse_runs(load_runs(named), **options)
    analysis = analyse_runs(load_runs(named, step="batch"), **options)
    assert quality(analysis) == pytest.approx([72.5, 72.5])


@pytest.mark.parametrize("rows_of", [every_few, evaluated_again, resumed, restarting, few_epochs, stages])
def test_rows_of_one_kind_are_not_asked_about(tmp_path, rows_of):
    runs = load_runs(sources(tmp_path, rows_of), starts="joined" if rows_of is resumed else None)
    options = {"metric": "acc:max", "margin": 0.1, "time": "time:seconds:each", "ignore": ["device"]}
    analysis = analyse_runs(runs, **options)
    assert analysis.comparison("b").estimates["speed"].value == pytest.approx(2.0)
