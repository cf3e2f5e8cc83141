"""Each question about logs of other programs has a command that works when copied, up to a right answer."""

import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.quick import ROOT

from ampcompare.cli import main

Row = dict[str, Any]
Report = Mapping[str, Any]
GAIN = {"fp32": 0.0, "amp": 0.05}
SEEDS = (1, 2, 3)


def write(path: str, text: str) -> None:
    """Write a file and its folder."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)


def table(path: str, rows: Iterable[Row], separator: str = ",") -> None:
    """Write a CSV file whose columns are those of all rows."""
    rows = [*rows]
    names = list(dict.fromkeys(key for row in rows for key in row))
    lines = [separator.join(str(row.get(name, "")) for name in names) for row in rows]
    write(path, "\n".join([separator.join(names), *lines]) + "\n")


def lines(path: str, rows: Iterable[Row], before: str = "") -> None:
    """Write JSON lines, each after a text."""
    write(path, "".join(f"{before}{json.dumps(row)}\n" for row in rows))


def result(arm: str, seed: int) -> float:
    """Return the last value of a run."""
    return round(0.6 + GAIN[arm] + seed / 50, 4)


def score(arm: str, seed: int, epoch: int, epochs: int = 3) -> float:
    """Return the value of an epoch, which ends with the result of the run."""
    return round(result(arm, seed) - (epochs - epoch) / 10, 4)


def each_run() -> list[tuple[str, int]]:
    """Return arm and seed of each run."""
    return [(arm, seed) for arm in GAIN for seed in SEEDS]


def ask(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[list[str], Report | None]:
    """Give a command; return the words of the command that it prints, or the report that it wrote."""
    try:
        code = main(["report", *words, "--format", "json"])
    except SystemExit as ended:
        code = int(ended.code or 0)
    error = capsys.readouterr().err
    if code == 0:
        return [], json.loads(Path("report/comparison.json").read_text())
    assert code == 2, error
    (example,) = (line for line in error.splitlines() if line.strip().startswith("for example: "))
    proposed = shlex.split(example.partition("for example: ")[2])
    proposed = proposed[proposed.index("report") + 1 :]
    at = proposed.index("--format")
    return proposed[:at] + proposed[at + 2 :], None


def follow(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[list[list[str]], Report]:
    """Give each command that a question prints; return what each added, and the report of the last one."""
    added = []
    for _ in range(5):
        proposed, report = ask(words, capsys)
        if report is not None:
            return added, report
        added.append([word for word in proposed if word not in words])
        words = proposed
    raise AssertionError(f"no command ends the questions: {words}")


def quality(report: Report) -> dict[str, tuple[int, float]]:
    """Return how many runs each group has, and its quality."""
    return {
        group["label"]: (group["figures"]["quality"]["n"], group["figures"]["quality"]["value"])
        for group in report["groups"]
    }


def of_arms(of: Callable[[str, int], float] = result) -> dict[str, tuple[int, float]]:
    """Return the number and the mean of the results of each arm."""
    return {arm: (3, float(np.mean([of(arm, seed) for seed in SEEDS]))) for arm in GAIN}


# The writers return the sources, what the first questions add, and the truth.

Case = tuple[list[str], list[list[str]], dict[str, tuple[int, float]]]


def folds_of_a_search() -> Case:
    table(
        "all.csv",
        (
            {"optimizer": name, "fold": fold, "epoch": epoch, "val_acc": shift + fold / 100 + epoch / 10}
            for name, shift in (("adam", 0.3), ("lion", 0.2), ("sgd", 0.1))
            for fold in range(1, 11)
            for epoch in (1, 2, 3)
        ),
    )
    truth = {name: (10, shift + 0.055 + 0.3) for name, shift in (("adam", 0.3), ("lion", 0.2), ("sgd", 0.1))}
    return (
        ["all.csv"],
        [
            ["--run-by", "optimizer,fold"],
            ["--group-by", "optimizer", "--baseline", "adam", "--metric", "val_acc:max"],
        ],
        truth,
    )


def alternating_runs() -> Case:
    """Return a table whose rows alternate between the runs, so that the step never goes back."""
    rows = (
        {"epoch": epoch, "precision": arm, "acc": score(arm, 1, epoch)} for epoch in (1, 2, 3) for arm in GAIN
    )
    table("all.csv", rows)
    return (
        ["all.csv"],
        [["--run-by", "precision", "--metric", "acc:max"], ["--group-by", "--baseline", "fp32"]],
        {arm: (1, result(arm, 1)) for arm in GAIN},
    )


def wandbs_table_of_runs() -> Case:
    table(
        "wandb_export.csv",
        (
            {
                "Name": f"run-{arm}-{seed}",
                "State": "finished",
                "Created": "2026-01-01T00:00:00.000Z",
                "Runtime": 3600 + seed,
                "precision": arm,
                "seed": seed,
                "epoch": 10,
                "val_acc": result(arm, seed),
            }
            for arm, seed in each_run()
        ),
    )
    return (
        ["wandb_export.csv"],
        [["--rows", "runs"], ["--group-by", "precision", "--baseline", "fp32", "--metric", "val_acc:max"]],
        of_arms(),
    )


def optunas_trials() -> Case:
    table(
        "trials.csv",
        (
            {
                "": number,
                "number": number,
                "value": result(arm, seed),
                "datetime_start": "2026-01-01 10:00:00.123",
                "duration": "0 days 00:05:00.1",
                "params_precision": arm,
                "state": "COMPLETE",
            }
            for number, (arm, seed) in enumerate(each_run())
        ),
    )
    return (
        ["trials.csv"],
        [
            ["--rows", "runs"],
            ["--group-by", "params_precision", "--baseline", "fp32", "--metric", "value:max"],
        ],
        of_arms(),
    )


def table_of_seeds() -> Case:
    rows = ({"model": arm, "seed": seed, "epochs": 90, "acc": result(arm, seed)} for arm, seed in each_run())
    table("results.csv", rows, ";")
    return (
        ["results.csv"],
        [["--rows", "runs"], ["--group-by", "model", "--baseline", "fp32", "--metric", "acc:max"]],
        of_arms(),
    )


def results_of_epochs_that_fall() -> Case:
    rows = (
        {
            "precision": arm,
            "epoch": 90 - 3 * (arm == "amp") - 3 * (arm == "amp" and seed > 1),
            "acc": seed / 4,
        }
        for arm, seed in each_run()
    )
    table("results.csv", rows)
    return (
        ["results.csv"],
        [["--rows", "runs"], ["--group-by", "precision", "--baseline", "fp32", "--metric", "acc:max"]],
        dict.fromkeys(GAIN, (3, 0.5)),
    )


def appended_starts_of_keras() -> Case:
    for arm, seed in each_run():
        rows = [f"{epoch},{0.9},{2 / epoch},{score(arm, seed, epoch)},{3 / epoch}" for epoch in (1, 2, 3)]
        header = "epoch,accuracy,loss,val_accuracy,val_loss"
        write(f"{arm}/{seed}/training.log", "\n".join([header, *rows[: seed - 1], header, *rows, ""]))
    return (
        ["fp32=fp32", "amp=amp"],
        [["--starts", "last"], ["--metric", "val_accuracy:max"]],
        of_arms(),
    )


def appended_starts_of_json_lines() -> Case:
    """Return a log of nohup, to which a second start was appended after a crash."""
    for arm, seed in each_run():
        rows = [
            {"step": 100 * epoch, "train": {"loss": 1 / epoch}, "val": {"acc": score(arm, seed, epoch)}}
            for epoch in (1, 2, 3)
        ]
        lines(f"{arm}/{seed}/nohup.out.log", [*rows[:2], *rows], before="INFO:root:")
    return ["fp32=fp32", "amp=amp"], [["--starts", "last"], ["--metric", "val.acc:max"]], of_arms()


def history_without_a_step() -> Case:
    for arm, seed in each_run():
        rows = ({"loss": 1 / epoch, "val_acc": score(arm, seed, epoch)} for epoch in (1, 2, 3))
        table(f"{arm}/{seed}.csv", rows)
    return ["fp32=fp32", "amp=amp"], [["--step", "none"], ["--metric", "val_acc:max"]], of_arms()


def text_table_without_a_step() -> Case:
    for arm, seed in each_run():
        rows = ({"loss": 1 / epoch, "val_acc": score(arm, seed, epoch)} for epoch in (1, 2, 3))
        table(f"{arm}/{seed}/log.txt", rows, "\t")
    return ["fp32=fp32", "amp=amp"], [["--step", "none"], ["--metric", "val_acc:max"]], of_arms()


def json_lines_without_a_step() -> Case:
    for arm, seed in each_run():
        rows = ({"loss": 1 / epoch, "val_acc": score(arm, seed, epoch)} for epoch in (1, 2, 3))
        lines(f"{arm}/{seed}.jsonl", rows)
    return ["fp32=fp32", "amp=amp"], [["--step", "none"], ["--metric", "val_acc:max"]], of_arms()


def steps_in_words() -> Case:
    for arm, seed in each_run():
        rows = ({"epoch": f"Epoch {epoch}", "acc": score(arm, seed, epoch)} for epoch in (1, 2, 3))
        table(f"{arm}/{seed}.csv", rows)
    return ["fp32=fp32", "amp=amp"], [["--step", "none"], ["--metric", "acc:max"]], of_arms()


def fairseq() -> Case:
    for arm, seed in each_run():
        fairseq_log(f"{arm}/{seed}", arm, seed)
    return ["fp32=fp32", "amp=amp"], [["--metric", "valid_loss:min"]], of_arms()


def mmcv() -> Case:
    for arm, seed in each_run():
        rows: list[Row] = [{"env_info": "Linux", "seed": seed}]
        for epoch in (1, 2, 3):
            train = {"mode": "train", "epoch": epoch, "lr": 0.1, "memory": 4000, "data_time": 0.01}
            rows += [train | {"iter": 50 * part, "loss": 1 / epoch, "time": 0.4} for part in (1, 2)]
            rows.append({"mode": "val", "epoch": epoch, "iter": 25, "bbox_mAP": score(arm, seed, epoch)})
        lines(f"{arm}/{seed}/20260101_101010.log.json", rows)
    return ["fp32=fp32", "amp=amp"], [["--metric", "bbox_mAP:max"]], of_arms()


def many_files() -> Case:
    truth = {}
    for number in range(9):
        table(f"logs/m{number}.csv", ({"epoch": n, "acc": n / 10 + number / 100} for n in (1, 2)))
        truth[f"m{number}"] = (1, 0.2 + number / 100)
    return ["logs"], [["--run-name", "{arm}", "--metric", "acc:max"], ["--baseline", "m0"]], truth


def many_folders() -> Case:
    truth = {}
    for number in range(9):
        table(f"logs/m{number}/log.csv", ({"epoch": n, "acc": n / 10 + number / 100} for n in (1, 2)))
        truth[f"m{number}"] = (1, 0.2 + number / 100)
    return ["logs"], [["--run-name", "*/{arm}/*", "--metric", "acc:max"], ["--baseline", "m0"]], truth


# Writers of the log of one run by the programs of docs/reports.md. An epoch of amp takes 3 s instead of 4 s.

SECONDS = {"fp32": 4.0, "amp": 3.0}


def ultralytics(folder: str, arm: str, seed: int) -> None:
    head = {"fp32": 5.0, "amp": 12.0}[arm]  # the first epoch
    table(
        f"{folder}/results.csv",
        (
            {
                "epoch": n,
                "time": head + SECONDS[arm] * (n - 1),
                "train/box_loss": 1 / n,
                "metrics/mAP50(B)": score(arm, seed, n),
                "lr/pg0": 0.1,
            }
            for n in (1, 2, 3)
        ),
    )


def keras(folder: str, arm: str, seed: int) -> None:
    table(
        f"{folder}/training.csv",
        (
            {"epoch": n, "accuracy": 0.9, "loss": 1 / n, "val_accuracy": score(arm, seed, n), "val_loss": n}
            for n in (1, 2, 3)
        ),
    )


def fastai(folder: str, arm: str, seed: int) -> None:
    own = {"train_loss": 1.5, "valid_loss": 1.25}
    table(
        f"{folder}/history.csv",
        (
            {"epoch": n} | own | {"accuracy": score(arm, seed, n), "time": f"00:0{SECONDS[arm]:.0f}"}
            for n in (1, 2, 3)
        ),
    )


def mmengine(folder: str, arm: str, seed: int) -> None:
    rows: list[Row] = []
    for n in (1, 2, 3):
        rows.append({"lr": 0.1, "data_time": 0.01, "loss": 1 / n, "time": SECONDS[arm], "step": 10 * n})
        rows.append({"accuracy/top1": 100 * score(arm, seed, n), "data_time": 0.01, "time": 9.0, "step": n})
    for name in ("scalars", "20260101_101010"):
        lines(f"{folder}/20260101_101010/vis_data/{name}.json", rows)


def fairseq_log(folder: str, arm: str, seed: int) -> None:
    rows: list[Row] = []
    for n in (1, 2, 3):
        rows.append({"epoch": n, "update": n - 0.5, "loss": "2.5", "wps": str(12 / SECONDS[arm])})
        rows.append({"epoch": n, "valid_loss": str(score(arm, seed, n)), "valid_num_updates": "9"})
    lines(f"{folder}/train.log", rows, before="2026-01-01 | INFO | train | ")


def lightning(folder: str, arm: str, seed: int) -> None:
    rows: list[Row] = []
    for n in (1, 2, 3):
        rows.append({"epoch": n, "step": 50 * n, "train_loss": 1 / n})
        rows.append({"epoch": n, "step": 50 * n, "val_acc": score(arm, seed, n)})
    table(f"{folder}/metrics.csv", rows)
    write(f"{folder}/hparams.yaml", "lr: 0.1\n")


def hugging_face(folder: str, arm: str, seed: int) -> None:
    history: list[Row] = []
    for n in (1, 2, 3):
        history.append({"epoch": n, "step": 10 * n, "loss": 1 / n, "learning_rate": 1e-5})
        history.append({"epoch": n, "step": 10 * n, "eval_accuracy": score(arm, seed, n)})
    history.append({"epoch": 3, "step": 30, "train_runtime": 3 * SECONDS[arm]})
    state = {"global_step": 30, "log_history": history}
    write(f"{folder}/checkpoint-30/trainer_state.json", json.dumps(state))


def timm(folder: str, arm: str, seed: int) -> None:
    rows = (
        {"epoch": n, "train_loss": 1 / n, "eval_loss": 1 / n, "eval_top1": 100 * score(arm, seed, n)}
        for n in (1, 2, 3)
    )
    table(f"{folder}/summary.csv", rows)
    write(f"{folder}/args.yaml", f"seed: {seed}\n")


def wandb_chart() -> None:
    table(
        "chart.csv",
        (
            {"Step": n}
            | {
                f"{arm}-{seed} - val/acc{bound}": score(arm, seed, n)
                for arm, seed in each_run()
                for bound in ("", "__MIN", "__MAX")
            }
            for n in (1, 2, 3)
        ),
    )


def wandb_runs() -> None:
    wandbs_table_of_runs()
    Path("wandb_export.csv").rename("runs.csv")


WRITERS: dict[str, Callable[[str, str, int], None]] = {
    "Ultralytics": ultralytics,
    "Keras": keras,
    "fastai": fastai,
    "mmengine": mmengine,
    "fairseq": fairseq_log,
    "Lightning": lightning,
    "Hugging Face": hugging_face,
    "timm": timm,
}
EXPORTS = {"chart.csv": wandb_chart, "runs.csv": wandb_runs, "trials.csv": optunas_trials}
PAGE = (ROOT / "docs" / "reports.md").read_text().partition("### One command per program")[2]
COMMANDS = re.findall(r"^\| ([\w& ]+),.*\| `ampcompare report (.+)` \|$", PAGE.partition("\n### ")[0], re.M)


def test_each_program_has_a_command():
    assert [name for name, _ in COMMANDS] == [*WRITERS, "W&B", "W&B", "Optuna"]


@pytest.mark.parametrize(("program", "command"), COMMANDS)
def test_the_command_of_a_program_compares_its_logs(tmp_path, monkeypatch, capsys, program, command):
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command)
    if program in WRITERS:
        for arm, seed in each_run():
            WRITERS[program](f"logs/{arm}/{seed}", arm, seed)
    else:
        EXPORTS[words[0]]()
    _, report = ask(words, capsys)
    assert report is not None
    factor = 1 if program == "fairseq" else 100  # a loss is no percentage
    expected = {arm: (count, pytest.approx(factor * value)) for arm, (count, value) in of_arms().items()}
    assert quality(report) == expected
    (amp,) = (group for group in report["groups"] if group["label"] == "amp")
    if "--ignore" in words:
        assert amp["compared"]["speedup"]["value"] == pytest.approx(4 / 3)


CASES = [
    folds_of_a_search,
    alternating_runs,
    wandbs_table_of_runs,
    optunas_trials,
    table_of_seeds,
    results_of_epochs_that_fall,
    appended_starts_of_keras,
    appended_starts_of_json_lines,
    history_without_a_step,
    text_table_without_a_step,
    json_lines_without_a_step,
    steps_in_words,
    fairseq,
    mmcv,
    many_files,
    many_folders,
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_printed_commands_lead_to_a_right_comparison(tmp_path, monkeypatch, capsys, case):
    monkeypatch.chdir(tmp_path)
    sources, questions, truth = case()
    added, report = follow(sources, capsys)
    assert added == questions
    assert quality(report) == {name: (count, pytest.approx(value)) for name, (count, value) in truth.items()}


def test_a_time_to_the_target_that_is_shorter_speaks_against_staying_with_the_baseline(
    tmp_path, monkeypatch, capsys
):
    """caspr needs 11 s for an epoch instead of 10, and reaches 0.8 in 3 epochs instead of 6."""
    monkeypatch.chdir(tmp_path)
    rows = (
        {
            "optimizer": name,
            "seed": seed,
            "epoch": n,
            "acc": min(0.9 + seed / 1e4, 0.5 + n * gain),
            "secs": n * own,
        }
        for name, gain, own in (("amos", 0.05, 10.0), ("caspr", 0.1, 11.0))
        for seed in SEEDS
        for n in range(1, 10)
        for own in [own + seed / 1000 + n / 1e4]
    )
    table("all.csv", rows)
    words = ["all.csv", "--run-by", "optimizer,seed", "--group-by", "optimizer", "--baseline", "amos"]
    options = ["--metric", "acc:max:fraction", "--time", "secs:seconds:cumulative", "--target", "0.8"]
    _, report = ask([*words, *options, "--ignore", "device"], capsys)
    assert report is not None
    caspr = next(group for group in report["groups"] if group["label"] == "caspr")
    assert caspr["compared"]["time_ratio"]["value"] == pytest.approx(33 / 60, abs=1e-3)
    text = report["recommendation"]["text"]
    assert text == "No recommendation yet: caspr is slower, but takes 45% less time to the target."


def test_groups_of_one_arm_are_no_single_group(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for arm, seed in each_run():
        row = {"amp": arm == "amp", "seed": seed}
        lines(f"logs/{arm}{seed}.jsonl", (row | {"step": n, "acc": score(arm, seed, n)} for n in (1, 2, 3)))
    _, report = ask(["all=logs", "--split-by", "amp", "--metric", "acc:max"], capsys)
    assert report is not None
    assert len(report["groups"]) == 2
    assert report["verdict"] == "All 2 groups are of all: compare them by another setting with --group-by KEY"
    _, report = ask(["all=logs", "--group-by", "amp", "--baseline", "false", "--metric", "acc:max"], capsys)
    assert report is not None
    assert quality(report)["True"] == (3, pytest.approx(of_arms()["amp"][1]))


def test_one_run_without_a_column_that_tells_runs_apart_has_nothing_to_be_compared_with(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    table("log.csv", ({"epoch": n, "acc": n / 10} for n in (1, 2)))
    with pytest.raises(SystemExit) as ended:
        main(["report", "log.csv"])
    assert ended.value.code == 2
    assert "log is one run, so there is nothing to compare; name a source for each" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "lacks"),
    [
        ("log.txt", "Epoch 1 acc 0.5\nEpoch 2 acc 0.6\n", "nor a table, whose rows have as many cells"),
        ("train.log", "Loading, please wait\nepoch 1\n", "nor a table, whose rows have as many cells"),
        ("history.json", '{"loss": [1, 0.5], "acc": [0.5, 0.6]}', "write one JSON object per line"),
        ("log.json", '[\n{\n"epoch": 1, "acc": 0.5\n}\n]', "one JSON object per line"),
        ("log.jsonl", "epoch 1: 0.5\n", "none of its lines is a JSON object"),
        ("log.csv", "1,0.5\n2,0.6\n", "write the names of the columns above them"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_what_is_missing(
    tmp_path, monkeypatch, capsys, name, text, lacks
):
    monkeypatch.chdir(tmp_path)
    write(f"logs/{name}", text)
    for source in ("logs", f"logs/{name}"):
        with pytest.raises(SystemExit):
            main(["report", f"a={source}"])
        error = capsys.readouterr().err
        assert lacks in error
        assert "not read" not in error
