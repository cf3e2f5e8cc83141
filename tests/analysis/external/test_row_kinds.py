"""One key with two meanings: rows of training and of evaluation are asked about, and never mixed."""

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.log_templates import MMENGINE, results, write_logs

from ampcompare import analyse_runs, load_runs
from ampcompare.analysis.analysis import Analysis
from ampcompare.analysis.options import AnalysisOptions
from ampcompare.errors import UserError
from ampcompare.report.options import ReportOptions
from ampcompare.runs import RunRecord
from ampcompare.runs.missing_input import MissingInput

Loader = Callable[..., list[RunRecord]]
TIMED: dict[str, Any] = {"time": "time:seconds:each", "ignore": ["device"]}
ARMS = ["fp32=fp32", "amp=amp"]
# Older mmcv names the kind of a row, and all rows have the same keys.
MODE = """\
{"mode": "train", "epoch": $epoch, "iter": 10, "lr": 0.1, "acc": 0.9, "time": $seconds}
{"mode": "train", "epoch": $epoch, "iter": 20, "lr": 0.1, "acc": 0.9, "time": $seconds}
{"mode": "val", "epoch": $epoch, "iter": 5, "lr": 0.1, "acc": $score, "time": 5.0}
"""


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loader:
    """Return what writes JSON lines for three runs per arm, and loads them."""
    monkeypatch.chdir(tmp_path)

    def load(template: str, **options: str | None) -> list[RunRecord]:
        return load_runs(write_logs({"$seed.jsonl": template}, "$arm"), **options)

    return load


def quality(analysis: Analysis) -> dict[str, tuple[int, float]]:
    """Return the number of runs and the quality of each group."""
    return {
        group.label: (group.n, pytest.approx(group.estimates["quality"].value)) for group in analysis.groups
    }


@pytest.mark.parametrize(
    ("template", "metric", "kinds", "where"),
    [
        (MODE, "acc", "mode (train and val)", "mode=val"),
        (
            '{"epoch": $epoch, "set": "valid", "acc": $score}\n{"epoch": $epoch, "set": "train", "acc": 0.9}',
            "acc",
            "set (train and valid)",
            "set=valid",
        ),
        (
            '{"epoch": $epoch, "phase": 0, "acc": 0.9}\n{"epoch": $epoch, "phase": 1, "acc": $score}',
            "acc",
            "phase (0 and 1)",
            "phase=1",
        ),
        (  # training rows have a key more than those of an evaluation
            '{"step": $epoch, "acc": 0.9, "grad_norm": 1.0}\n{"step": $epoch, "acc": $score}',
            "acc",
            "grad_norm",
            "acc:!grad_norm",
        ),
    ],
)
def test_a_metric_in_rows_of_two_kinds_is_asked_about(load: Loader, template, metric, kinds, where):
    runs = load(template)
    with pytest.raises(MissingInput) as caught:
        analyse_runs(runs, metric=f"{metric}:max:fraction")
    (question,) = caught.value.questions
    assert f"{metric} stands in rows of several kinds" in question
    assert kinds in question
    assert caught.value.arguments[0] == "--where"
    analysis = analyse_runs(runs, metric=f"{metric}:max:fraction", where=[where])
    assert quality(analysis) == results(100)
    assert any(where in note for note in analysis.notes)


def test_a_time_in_rows_of_training_and_evaluation_is_asked_about(load: Loader):
    runs = load(MMENGINE)  # the evaluation has a time of its own, which no precision changes
    metric = "accuracy/top1:max:percent"
    with pytest.raises(MissingInput) as caught:
        analyse_runs(runs, metric=metric, **TIMED)
    (question,) = caught.value.questions
    assert "time stands in rows of several kinds" in question
    assert caught.value.arguments[:2] == ("--where", "time:lr")
    analysis = analyse_runs(runs, metric=metric, **TIMED, where=["time:loss"])
    assert analysis.comparison("amp").estimates["speed"].value == pytest.approx(4 / 3)
    assert quality(analysis) == results(100)
    analyse_runs(runs, metric=metric)  # without the time there is nothing to ask


def test_the_suggested_command_chooses_evaluation_and_training(load: Loader):
    runs = load(MODE)
    asked = AnalysisOptions(metric="acc:max:fraction", **TIMED)
    with pytest.raises(UserError) as caught:
        ReportOptions(ARMS, analysis=asked).analyse()
    words = shlex.split(caught.value.lines[-1].removeprefix("for example: "))
    where = [words[index + 1] for index, word in enumerate(words) if word == "--where"]
    assert where == ["acc:mode=val", "time:mode=train"]
    analysis = ReportOptions(ARMS, analysis=replace(asked, where=where)).analyse()
    assert quality(analysis) == results(100)
    assert analysis.comparison("amp").estimates["speed"].value == pytest.approx(4 / 3)
    with pytest.raises(MissingInput) as again:  # a choice for the metric is none for the time
        analyse_runs(runs, metric="acc:max:fraction", **TIMED, where=["mode=val"])
    assert again.value.arguments == ("--where", "time:mode=train")


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("mode=vall", "--where 'mode=vall': no row has this value; mode has train and val"),
        ("mod=val", "--where 'mod=val': no run has the column 'mod'; did you mean mode?"),
        ("ac:mode=val", "no run has the column"),
    ],
)
def test_a_condition_that_no_row_meets_is_refused(load: Loader, where, message):
    with pytest.raises(UserError) as caught:
        analyse_runs(load(MODE), metric="acc:max:fraction", where=[where])
    assert message in caught.value.lines[0]


def test_rows_of_batches_are_counted_by_the_column_that_the_user_names(load: Loader):
    batches = "\n".join(
        f'{{"epoch": $epoch, "batch": {batch}, "acc": {score}, "time": $seconds}}'
        for batch, score in ((10, 0.1), (20, 0.2), (30, "$score"))
    )
    options = {"metric": "acc:max:fraction"} | TIMED
    with pytest.raises(MissingInput, match="--step COLUMN"):
        analyse_runs(load(batches), **options)
    assert quality(analyse_runs(load_runs(ARMS, step="batch"), **options)) == results(100)


ROW = '"acc": $score, "time": $seconds'


@pytest.mark.parametrize(
    "template",
    [
        # Further values now and then.
        '{"step": ${epoch}1, "time": $seconds, "grad_norm": 1.0}\n{"step": ${epoch}2, "time": $seconds}\n'
        f'{{"step": ${{epoch}}3, "grad_norm": 1.0, {ROW}}}',
        # Hugging Face's Trainer, with an evaluation of the best model at the end.
        '{"step": $step, "loss": $loss, "time": $seconds}\n'
        '{"step": $step, "acc": $score, "eval_runtime": 2.$epoch}\n'
        '{"step": 30, "train_runtime": 5$seed.0}\n{"step": 30, "acc": $result, "eval_runtime": 2.1}',
        # A run that was resumed, so that rows were logged twice.
        f'{{"step": $epoch, "loss": $loss, {ROW}}}\n{{"step": 2, {ROW}}}\n{{"step": 3, {ROW}}}',
        # The step restarts in each epoch; a further value stands in some of the rows.
        '{"epoch": $epoch, "step": 0, "time": $seconds, "acc": 0.1}\n'
        f'{{"epoch": $epoch, "step": 1, "grad_norm": 1.0, {ROW}}}',
        # A text column that names no kind of row.
        '{"step": 1, "stage": "warmup", "acc": 0.1, "time": $seconds}\n'
        f'{{"step": $step, "stage": "main", {ROW}}}',
    ],
)
def test_rows_of_one_kind_are_not_asked_about(load: Loader, template: str):
    resumed = '{"step": 2, ' in template
    runs = load(template, starts="joined" if resumed else None)
    analysis = analyse_runs(runs, metric="acc:max", margin=0.1, **TIMED)
    assert analysis.comparison("amp").estimates["speed"].value == pytest.approx(4 / 3)
