"""A newcomer's first call on logs of other programs ends with a right page, or with a command to copy."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from ampcompare import analyse_runs, load_runs
from ampcompare.analysis.options import AnalysisOptions
from ampcompare.errors import UserError
from ampcompare.report.options import ReportOptions

GAIN = {"fp32": 0.0, "bf16": 0.05}
EPOCHS = (1, 2, 3)
Writer = Callable[[Path, float], None]


def accuracy(epoch: int, shift: float) -> float:
    """Return the accuracy of an evaluation."""
    return round(0.7 + epoch / 100 + shift, 4)


def write(path: Path, text: str) -> None:
    """Write a file and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def csv_file(folder: Path, shift: float) -> None:
    """Write a CSV file with a learning rate."""
    rows = [f"{epoch},{0.1 / epoch},{2 / epoch},{accuracy(epoch, shift)}" for epoch in EPOCHS]
    write(folder / "log.csv", "\n".join(["step,lr,train_loss,val_acc", *rows]))


def json_lines(folder: Path, shift: float) -> None:
    """Write JSON lines, and beside them the summary of the run."""
    rows = [{"step": epoch, "lr": 0.1, "val": {"acc": accuracy(epoch, shift)}} for epoch in EPOCHS]
    write(folder / "log.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))
    write(folder / "summary.json", json.dumps(rows[-1]))


def mmengine(folder: Path, shift: float) -> None:
    """Write mmengine's two files with the same rows."""
    rows = []
    for epoch in EPOCHS:
        rows.append({"lr": 0.01, "loss": 2 / epoch + shift / 7, "time": 0.2123 + shift, "step": 10 * epoch})
        rows.append({"accuracy/top1": 100 * accuracy(epoch, shift), "time": 0.1 + shift / 9, "step": epoch})
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    write(folder / "20260101_101010" / "vis_data" / "scalars.json", text)
    write(folder / "20260101_101010" / "vis_data" / "20260101_101010.json", text)


def keras(folder: Path, shift: float) -> None:
    """Write the file of Keras' CSVLogger."""
    rows = [f"{epoch},{0.9},{2 / epoch},{accuracy(epoch, shift)},{3 / epoch}" for epoch in EPOCHS]
    write(folder / "training.csv", "\n".join(["epoch,accuracy,loss,val_accuracy,val_loss", *rows]))


def tensorboard_downloads(folder: Path, shift: float) -> None:
    """Write one file for each tag, as TensorBoard's page downloads them."""
    for tag, score in (("val_acc", 0.0), ("train_acc", 0.2)):
        rows = [f"{1e9 + epoch + shift},{epoch},{accuracy(epoch, shift) + score}" for epoch in EPOCHS]
        write(folder.parent / f"run-{folder.name}-tag-{tag}.csv", "\n".join(["Wall time,Step,Value", *rows]))


def event_files(folder: Path, shift: float) -> None:
    """Write Keras' event files in the folders train and validation."""
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    for part, score in (("train", 0.2), ("validation", 0.0)):
        with SummaryWriter(str(folder / part)) as writer:
            for epoch in EPOCHS:
                writer.add_scalar("epoch_accuracy", accuracy(epoch, shift) + score, epoch)


def lightning(folder: Path, shift: float) -> None:
    """Write the files of Lightning's CSVLogger."""
    rows = [
        f"{epoch},{10 * epoch},{2 / epoch},\n{epoch},{10 * epoch},,{accuracy(epoch, shift)}"
        for epoch in EPOCHS
    ]
    write(folder / "metrics.csv", "\n".join(["epoch,step,train_loss,val_acc", *rows]))
    write(folder / "hparams.yaml", "lr: 0.1\n")


def hugging_face(folder: Path, shift: float) -> None:
    """Write the state of Hugging Face's Trainer."""
    history = []
    for epoch in EPOCHS:
        step = {"step": 10 * epoch, "epoch": float(epoch)}
        history.append(step | {"loss": 2 / epoch, "learning_rate": 0.1 / epoch, "grad_norm": 1.0})
        history.append(step | {"eval_accuracy": accuracy(epoch, shift), "eval_runtime": 2.0})
    write(folder / "trainer_state.json", json.dumps({"global_step": 30, "log_history": history}))
    write(folder / "all_results.json", json.dumps({"epoch": 3.0, "step": 30, "eval_accuracy": 0.5}))


def text_log(folder: Path, shift: float) -> None:
    """Write a log with lines of text, and JSON after time and level."""
    rows = [{"step": epoch, "lr": 0.1, "val_acc": accuracy(epoch, shift)} for epoch in EPOCHS]
    lines = [f"2026-01-01 10:00:0{number} INFO {json.dumps(row)}" for number, row in enumerate(rows)]
    write(folder / "train.log", "\n".join(["Loading the data, please wait", "model: {resnet}", *lines]))


def table_log(folder: Path, shift: float) -> None:
    """Write a table with tabs in a file of text."""
    rows = [f"{epoch}\t{accuracy(epoch, shift)}" for epoch in EPOCHS]
    write(folder / "log.txt", "\n".join(["# my log", "step\tval_acc", *rows]))


FORMATS = [
    (csv_file, "val_acc"),
    (json_lines, "val.acc"),
    (mmengine, "accuracy/top1"),
    (keras, "val_accuracy"),
    (tensorboard_downloads, "val_acc"),
    (event_files, "validation/epoch_accuracy"),
    (lightning, "val_acc"),
    (hugging_face, "eval_accuracy"),
    (text_log, "val_acc"),
    (table_log, "val_acc"),
]


def arguments_of(error: UserError) -> list[str]:
    """Return the arguments of the command that an error proposes."""
    words = shlex.split(error.lines[-1].removeprefix("for example: "))
    return words[words.index("report") + 1 :]


@pytest.mark.parametrize(("writer", "metric"), FORMATS, ids=lambda value: getattr(value, "__name__", value))
def test_the_first_call_gives_a_command_that_compares(tmp_path, monkeypatch, writer, metric):
    monkeypatch.chdir(tmp_path)
    for arm, gain in GAIN.items():
        for seed in (1, 2, 3):
            writer(Path("logs", arm, str(seed)), gain + seed / 1000)
    arms = [f"{arm}=logs/{arm}" for arm in GAIN]
    with pytest.raises(UserError) as caught:
        ReportOptions(["logs"]).analyse()
    assert arguments_of(caught.value) == [*arms, "--metric", f"{metric}:max"]
    with pytest.raises(UserError) as caught:
        ReportOptions(arms).analyse()
    arguments = arguments_of(caught.value)
    assert arguments[:2] == arms
    assert arguments[2:] == ["--metric", f"{metric}:max"]
    analysis = ReportOptions(arms, analysis=AnalysisOptions(metric=f"{metric}:max")).analyse()
    assert {group.label: group.n for group in analysis.groups} == dict.fromkeys(GAIN, 3)
    factor = 100 if "top1" in metric else 1
    difference = analysis.comparison("bf16").estimates["quality"].value
    assert difference == pytest.approx(0.05 * factor, abs=1e-5 * factor)


@pytest.mark.parametrize(
    ("writer", "metric"),
    [
        (csv_file, "val_acc"),
        (tensorboard_downloads, "val_acc"),
        (lightning, "val_acc"),
        (keras, "val_accuracy"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_the_first_call_on_one_folder_with_all_runs_names_repeats(tmp_path, monkeypatch, writer, metric):
    monkeypatch.chdir(tmp_path)
    for arm, gain in GAIN.items():
        for seed in (1, 2, 3):
            writer(Path("logs", f"{arm}_seed{seed}"), gain + seed / 1000)
    with pytest.raises(UserError) as caught:
        ReportOptions(["logs"]).analyse()
    *arms, option, value = arguments_of(caught.value)
    assert (option, value) == ("--metric", f"{metric}:max")
    analysis = ReportOptions(arms, analysis=AnalysisOptions(metric=value)).analyse()
    assert {group.label: group.n for group in analysis.groups} == dict.fromkeys(GAIN, 3)
    assert analysis.baseline_value == "fp32"


@pytest.mark.parametrize("source", ["mlruns", "mlruns/0", "mlruns/0/abc", "mlruns/0/abc/metrics"])
def test_mlflows_folder_is_refused_by_name(tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    write(Path("mlruns/0/meta.yaml"), "experiment_id: '0'\n")
    write(Path("mlruns/0/abc/meta.yaml"), "run_id: abc\n")
    write(Path("mlruns/0/abc/metrics/val_acc"), "1700000000000 0.5 1\n1700000001000 0.6 2\n")
    write(Path("mlruns/0/abc/params/lr"), "0.1")
    for named in (source, "mlruns/0/abc/metrics/val_acc"):
        with pytest.raises(UserError, match=r"a folder of MLflow \(mlruns\).*write one CSV file per run"):
            load_runs([named])


def test_sacreds_folder_is_refused_by_name(tmp_path):
    write(tmp_path / "1" / "run.json", json.dumps({"status": "COMPLETED"}, indent=2))
    write(tmp_path / "1" / "config.json", json.dumps({"lr": 0.1, "seed": 1}, indent=2))
    write(tmp_path / "1" / "metrics.json", json.dumps({"acc": {"steps": [1], "values": [0.5]}}, indent=2))
    write(tmp_path / "1" / "cout.txt", "training, step 1\n")
    for source in (tmp_path, tmp_path / "1"):
        with pytest.raises(UserError, match=r"a folder of Sacred .*write one CSV file per run"):
            load_runs([source])


@pytest.mark.parametrize(
    ("value", "sample"), [([0.5, 0.6], "[0.5, 0.6]"), ("0.5/1", "'0.5/1'"), ({"a": []}, "[]")]
)
def test_a_key_without_numbers_is_named_with_its_values(tmp_path, value, sample):
    rows = [{"step": step, "acc": value, "loss": 0.5} for step in (1, 2)]
    write(tmp_path / "log.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))
    runs = load_runs([f"a={tmp_path / 'log.jsonl'}"])
    key = "acc.a" if isinstance(value, dict) else "acc"
    for options in ({"metric": f"{key}:max"}, {"metric": "loss:min", "time": f"{key}:seconds"}):
        with pytest.raises(UserError) as caught:
            analyse_runs(runs, **options)
        assert f"its values are no numbers, such as {sample}" in str(caught.value)
        assert "did you mean" not in str(caught.value)
