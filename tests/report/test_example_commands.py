"""The command that a report proposes has the user's options and what is missing, and never the step."""

import shlex
from pathlib import Path

import pytest

from ampcompare.cli import main

EPOCHS = (1, 2, 3)


def write(folder: Path, shift: float, step: str = "step", **columns: str) -> None:
    """Write a log with a step column and a score; further columns have a value for each epoch."""
    folder.mkdir(parents=True)
    names = [step, "val_acc", "train_loss", *columns]
    rows = [
        [f"{epoch}", f"{0.7 + epoch / 100 + shift}", f"{2 / epoch}"]
        + [str(values.split()[index]) for values in columns.values()]
        for index, epoch in enumerate(EPOCHS)
    ]
    (folder / "log.csv").write_text("\n".join(",".join(row) for row in [names, *rows]))


@pytest.fixture
def proposed(tmp_path, monkeypatch, capsys):
    """Run `ampcompare report`, which must ask for something; return the words that it proposes."""
    monkeypatch.chdir(tmp_path)

    def ask(*words: str) -> list[str]:
        with pytest.raises(SystemExit) as ended:
            main(["report", *words])
        assert ended.value.code == 2
        lines = capsys.readouterr().err.splitlines()
        return shlex.split(lines[-1].strip().removeprefix("for example: "))[2:]

    return ask


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (
            ["--margin", "1", "fp32=logs/a", "bf16=logs/b", "--best"],
            ["fp32=logs/a", "bf16=logs/b", "--best", "--margin", "1.0", "--metric", "val_acc:max"],
        ),
        (
            ["bf16=logs/b", "--out", "mine", "fp32=logs/a", "--margin=1", "--baseline", "fp32"],
            [
                *("bf16=logs/b", "fp32=logs/a", "--baseline", "fp32", "--margin", "1.0", "--out", "mine"),
                *("--metric", "val_acc:max"),
            ],
        ),
        (
            ["--metric", "other", "fp32=logs/a", "--format", "md", "bf16=logs/b"],
            # Of an option that stands twice the last counts.
            [
                *("fp32=logs/a", "bf16=logs/b", "--metric", "other", "--format", "md"),
                *("--metric", "other:max"),
            ],
        ),
        (
            ["logs/b", "logs/a", "--ignore", "device", "--margin", "1"],
            ["a=logs/a", "b=logs/b", "--margin", "1.0", "--ignore", "device", "--metric", "val_acc:max"],
        ),
        (
            ["logs/bf16", "logs/fp32"],
            # The first source is the baseline.
            ["fp32=logs/fp32", "bf16=logs/bf16", "--metric", "val_acc:max"],
        ),
        (["logs/fp32", "logs/bf16"], ["fp32=logs/fp32", "bf16=logs/bf16", "--metric", "val_acc:max"]),
    ],
)
def test_the_users_options_come_first(tmp_path, proposed, typed, expected):
    for name, shift in {"a": 0.0, "b": 0.05, "fp32": 0.01, "bf16": 0.06}.items():
        write(tmp_path / "logs" / name, shift, other="5 7 6")
    assert proposed(*typed) == expected


@pytest.mark.parametrize(
    ("step", "options"),
    [
        ("step", []),
        ("global_step", []),
        ("Epoch", []),
        ("position", ["--step", "position"]),
        ("score_index", ["--step", "score_index"]),
        ("Iteration", []),
    ],
)
def test_the_step_column_is_never_proposed(tmp_path, proposed, step, options):
    for name in ("a", "b"):
        folder = tmp_path / "logs" / name
        folder.mkdir(parents=True)
        rows = [f"{epoch},{100 * epoch},{3 - epoch / 10},{7 * epoch}" for epoch in EPOCHS]
        (folder / "log.csv").write_text("\n".join([f"{step},seen,perplexity,other_counter", *rows]))
    words = proposed("a=logs/a", "b=logs/b", *options)
    assert words[-2:] == ["--metric", "seen:max"]


def test_a_score_that_rises_evenly_is_still_a_candidate(tmp_path, proposed):
    for name in ("a", "b"):
        folder = tmp_path / "logs" / name
        folder.mkdir(parents=True)
        (folder / "log.csv").write_text("\n".join(["step,val_acc", *(f"{e},{10 * e}" for e in EPOCHS)]))
    assert proposed("a=logs/a", "b=logs/b")[-2:] == ["--metric", "val_acc:max"]
