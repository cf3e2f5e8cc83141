"""Each question about logs of other programs has a command that works when copied, up to a right answer."""

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.log_templates import (
    OPTUNA,
    PROGRAMS,
    RUNS,
    SEEDS,
    WANDB_RUNS,
    results,
    values,
    write,
    write_logs,
)
from support.quick import ROOT

from ampcompare.cli import main

Report = Mapping[str, Any]
ARMS = ["fp32=fp32", "amp=amp"]


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


def answer(words: list[str], capsys: pytest.CaptureFixture[str]) -> Report:
    """Return the report of a command that asks nothing."""
    proposed, report = ask(words, capsys)
    assert report is not None, proposed
    return report


def follow(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[list[str], Report]:
    """Give each command that a question prints; return what each added, and the report of the last one."""
    added = []
    for _ in range(5):
        proposed, report = ask(words, capsys)
        if report is not None:
            return added, report
        added.append(shlex.join(word for word in proposed if word not in words))
        words = proposed
    raise AssertionError(f"no command ends the questions: {words}")


def quality(report: Report) -> dict[str, tuple[int, float]]:
    """Return how many runs each group has, and its quality."""
    return {
        group["label"]: (
            group["figures"]["quality"]["n"],
            pytest.approx(group["figures"]["quality"]["value"]),
        )
        for group in report["groups"]
    }


def write_chart() -> None:
    """Write W&B's export of a chart: three columns for each run."""
    names = [f"{arm}-{seed} - val/acc{end}" for arm, seed in RUNS for end in ("", "__MIN", "__MAX")]
    rows = [[values(arm, seed, n)["score"] for arm, seed in RUNS for _ in range(3)] for n in (1, 2, 3)]
    lines = [["Step", *names], *([n, *row] for n, row in enumerate(rows, 1))]
    write("chart.csv", "\n".join(",".join(map(str, line)) for line in lines))


PAGE = (ROOT / "docs" / "reports.md").read_text().partition("### One command per program")[2]
COMMANDS = re.findall(r"^\| ([\w& ]+),.*\| `ampcompare report (.+)` \|$", PAGE.partition("\n### ")[0], re.M)


def test_each_program_has_a_command():
    programs = "Ultralytics,Keras,fastai,mmengine,fairseq,Lightning,Hugging Face,timm,W&B,W&B,Optuna"
    assert [name for name, _ in COMMANDS] == programs.split(",")


@pytest.mark.parametrize(("program", "command"), COMMANDS)
def test_the_command_of_a_program_compares_its_logs(tmp_path, monkeypatch, capsys, program, command):
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command)
    write_chart()
    write_logs({"runs.csv": WANDB_RUNS, "trials.csv": OPTUNA}, folder="")
    write_logs(PROGRAMS.get(program, {}), "logs/$arm/$seed")
    report = answer(words, capsys)
    assert quality(report) == results(1 if program == "fairseq" else 100)  # a loss is no percentage
    (amp,) = (group for group in report["groups"] if group["label"] == "amp")
    if "--ignore" in words:
        assert amp["compared"]["speedup"]["value"] == pytest.approx(4 / 3)


GROUPED = "--group-by precision --baseline fp32 --metric"
IN_ORDER = ["--step none", "--metric val_acc:max"]
LAST = "--starts last"
KERAS = PROGRAMS["Keras"]["training.csv"]


@pytest.mark.parametrize(
    ("name", "template", "questions"),
    [
        # Several runs in a file.
        (
            "all.csv",
            "precision,fold,epoch,val_acc\n$arm,$seed,$epoch,$score",
            ["--run-by precision,fold", f"{GROUPED} val_acc:max"],
        ),
        # Tables of results: of W&B, of Optuna, by hand.
        ("export.csv", WANDB_RUNS, ["--rows runs", f"{GROUPED} val_acc:max"]),
        (
            "trials.csv",
            OPTUNA,
            ["--rows runs", "--group-by params_precision --baseline fp32 --metric value:max"],
        ),
        (
            "results.csv",
            "model;seed;epochs;acc\n$arm;$seed;90;$result",
            ["--rows runs", "--group-by model --baseline fp32 --metric acc:max"],
        ),
        # Appended starts.
        (
            "$arm/$seed/training.log",
            f"{KERAS.split()[0]}\n1,0.9,2,0.1,3\n{KERAS}",
            [LAST, "--metric val_accuracy:max"],
        ),
        (
            "$arm/$seed/nohup.out.log",
            'INFO:root:{"step": 10, "val": {"acc": 0.1}}\nINFO:root:{"step": 20, "val": {"acc": 0.2}}\n'
            'INFO:root:{"step": $step, "train": {"loss": $loss}, "val": {"acc": $score}}',
            [LAST, "--metric val.acc:max"],
        ),
        # No step.
        ("$arm/$seed.csv", "loss,val_acc\n$loss,$score", IN_ORDER),
        ("$arm/$seed/log.txt", "loss\tval_acc\n$loss\t$score", IN_ORDER),
        ("$arm/$seed.jsonl", '{"loss": $loss, "val_acc": $score}', IN_ORDER),
        ("$arm/$seed.csv", "epoch,val_acc\nEpoch $epoch,$score", IN_ORDER),
        # Programs whose logs ask for a metric alone.
        ("$arm/$seed/train.log", PROGRAMS["fairseq"]["train.log"], ["--metric valid_loss:min"]),
    ],
)
def test_the_printed_commands_lead_to_a_right_comparison(
    tmp_path, monkeypatch, capsys, name, template, questions
):
    monkeypatch.chdir(tmp_path)
    write_logs({name: template}, "")
    added, report = follow(ARMS if "$" in name else [name], capsys)
    assert added == questions
    assert quality(report) == results()


@pytest.mark.parametrize(
    ("text", "questions", "truth"),
    [
        (  # the rows alternate between the runs, so the step never goes back
            "epoch,precision,acc\n1,fp32,0.4\n1,amp,0.5\n2,fp32,0.6\n2,amp,0.7\n",
            ["--run-by precision --metric acc:max", "--group-by --baseline fp32"],
            {"fp32": (1, 0.6), "amp": (1, 0.7)},
        ),
        (  # the column that looks like a step falls
            "precision,epoch,acc\nfp32,90,0.5\nfp32,90,0.25\namp,87,0.5\namp,84,0.75\n",
            ["--rows runs", f"{GROUPED} acc:max"],
            {"fp32": (2, 0.375), "amp": (2, 0.625)},
        ),
    ],
)
def test_the_printed_commands_tell_the_runs_of_a_table_apart(
    tmp_path, monkeypatch, capsys, text, questions, truth
):
    monkeypatch.chdir(tmp_path)
    write("all.csv", text)
    added, report = follow(["all.csv"], capsys)
    assert added == questions
    assert quality(report) == truth


@pytest.mark.parametrize(
    ("name", "pattern"), [("logs/m{}.csv", "{arm}"), ("logs/m{}/log.csv", "'*/{arm}/*'")]
)
def test_many_files_or_folders_are_arms_by_a_pattern(tmp_path, monkeypatch, capsys, name, pattern):
    monkeypatch.chdir(tmp_path)
    for number in range(9):
        write(name.format(number), f"epoch,acc\n1,0.1\n2,0.2{number}\n")
    added, report = follow(["logs"], capsys)
    first = f"--run-name {pattern} --metric acc:max".replace(" {arm} ", " '{arm}' ")
    assert added == [first, "--baseline m0"]
    assert quality(report) == {f"m{number}": (1, 0.2 + number / 100) for number in range(9)}


def test_a_time_to_the_target_that_is_shorter_speaks_against_staying_with_the_baseline(
    tmp_path, monkeypatch, capsys
):
    """caspr needs 11 s for an epoch instead of 10, and reaches 0.8 in 3 epochs instead of 6."""
    monkeypatch.chdir(tmp_path)
    rows = [
        f"{name},{seed},{n},{min(0.9 + seed / 1e4, 0.5 + n * gain)},{n * (own + seed / 1000 + n / 1e4)}"
        for name, gain, own in (("amos", 0.05, 10.0), ("caspr", 0.1, 11.0))
        for seed in SEEDS
        for n in range(1, 10)
    ]
    write("all.csv", "\n".join(["optimizer,seed,epoch,acc,secs", *rows]))
    command = (
        "all.csv --run-by optimizer,seed --group-by optimizer --baseline amos --metric acc:max:fraction "
        "--time secs:seconds:cumulative --target 0.8 --ignore device"
    )
    report = answer(command.split(), capsys)
    (caspr,) = (group for group in report["groups"] if group["label"] == "caspr")
    assert caspr["compared"]["time_ratio"]["value"] == pytest.approx(33 / 60, abs=1e-3)
    text = report["recommendation"]["text"]
    assert text == "No recommendation yet: caspr is slower, but takes 45% less time to the target."
