"""Cells of other people's tables: steps, numbers as text, durations, rows without an evaluation."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ampcompare import load_runs
from ampcompare.errors import UserError
from ampcompare.runs import RunRecord
from ampcompare.runs.missing_input import MissingInput


def table(folder: Path, text: str, name: str = "log.csv", **options: str | None) -> RunRecord:
    """Return the run in a CSV file with this text."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    (run,) = load_runs([folder / name], **options)
    return run


def in_both_forms(folder: Path, column: str, cells: Sequence[str]) -> list[RunRecord]:
    """Return the runs in a CSV file and in JSON lines that have these cells in a column."""
    rows = [{"step": number, column: cell} for number, cell in enumerate(cells)]
    if column == "step":
        rows = [{"step": cell, "acc": number} for number, cell in enumerate(cells)]
    lines = [",".join(f'"{cell}"' for cell in row.values()) for row in rows]
    return [
        table(folder, "\n".join([",".join(rows[0]), *lines])),
        table(folder, "\n".join(map(json.dumps, rows)), "log.jsonl"),
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1,0.5\n2,0.25\n", "it has no header: its first line is all numbers"),
        ("epoch,acc,loss\n1,5,6\nepoch,loss,acc\n2,6,5\n", r"another header follows \(epoch, loss, acc\)"),
        ("epoch,acc\n1,5\nepoch,lr,acc\n2,6,5\n", r"another header follows \(epoch, lr, acc\)"),
    ],
)
def test_a_table_whose_columns_are_not_known_is_refused(tmp_path, text, problem):
    with pytest.raises(UserError, match=problem):
        table(tmp_path, text)


def test_values_in_rows_without_a_step_are_not_read_beside_others(tmp_path):
    run = table(tmp_path, "epoch,acc,test\n1,0.5,\n2,0.6,\n,0.9,0.8\n")
    assert run.values("acc").tolist() == [0.5, 0.6]
    assert run.values("test").tolist() == [0.8]  # never with a step
    assert run.problems == ["Column acc has values in rows without a step; these are not read."]


def test_percentages_are_numbers_in_percent(tmp_path):
    for text in ("epoch,acc,loss\n1,85.3%,1\n2,86 %,2\n", "epoch;acc\n1;85,3%\n2;86,0 %\n"):
        run = table(tmp_path, text)
        assert run.values("acc").tolist() == [85.3, 86.0]
        assert run.units == {"acc": "percent"}


@pytest.mark.parametrize("cells", [("85.3%", "0.5"), ("0.5", "85,3"), ("85.3%", "n/a")])
def test_cells_that_are_no_numbers_are_named(tmp_path, cells):
    run = table(tmp_path, "epoch,acc\n" + "".join(f'{n},"{cell}"\n' for n, cell in enumerate(cells)))
    (problem,) = run.problems
    assert "Column acc has cells that are no numbers, such as" in problem


@pytest.mark.parametrize(
    "text",
    [
        "step;acc;note\n1;0,5;a\n2;0,75;b\n",
        "step\tacc\tnote\n1\t0.5\ta\n2\t0.75\tb\n",
        "# my log\n# lr=0.1, epochs=3\nstep,acc,note\n1,0.5,a\n2,0.75,b\n",
        "\n# my log\nstep;acc;note\n1;0.5;a\n2;0.75;b\n",
        "sep=;\nstep;acc;note\n1;0,5;a\n2;0,75;b\n",
        "step,acc,note\n1,0.5,a\nstep,acc,note\n2,0.75,b\n",  # continued, with its header again
        "step , acc, note\n1 ,0.5, a\n2 ,0.75, b\n",
        "step,acc,note\n1,0.5,a\n# resumed\n2,0.75,b\n",
    ],
)
def test_separators_comments_and_repeated_headers(tmp_path, text):
    run = table(tmp_path, text)
    assert run.values("step").tolist() == [1, 2]
    assert run.values("acc").tolist() == [0.5, 0.75]
    assert run.logged["note"][1].tolist() == ["a", "b"]
    assert run.problems == []


def test_a_comment_that_names_the_columns_of_numbers_is_the_header(tmp_path):
    run = table(tmp_path, "# written by numpy.savetxt\n# step,acc\n1,0.5\n2,0.75\n")
    assert run.values("acc").tolist() == [0.5, 0.75]


@pytest.mark.parametrize(
    ("cells", "seconds"),
    [
        (("0:00:12", "0:21:12"), (12.0, 1272.0)),
        (("00:00:01.5", "1 day, 2:03:04"), (1.5, 93784.0)),
        (("00:55", "12:07"), (55.0, 727.0)),  # fastai
        (("59:59", "1:02:03"), (3599.0, 3723.0)),
        (("55s", "1m 3s"), (55.0, 63.0)),
        (("1m05.5s", "1h 2m"), (65.5, 3720.0)),
        (("250 ms", "2 sec"), (0.25, 2.0)),
        (("2026-01-01 00:00:00", "2026-01-01T00:01:00"), (1767225600.0, 1767225660.0)),
        (("2026-01-01 00:00:00+00:00", "2026-01-01 01:01:00+01:00"), (1767225600.0, 1767225660.0)),
    ],
)
def test_durations_and_dates_are_seconds(tmp_path, cells, seconds):
    for run in in_both_forms(tmp_path, "elapsed", cells):
        assert run.values("elapsed").tolist() == list(seconds)


def test_numbers_as_text_are_numbers_in_tables_and_in_json_lines(tmp_path):
    expected = {"wps": [58056.1, 59000], "ppl": [np.inf, 12.5], "top1": [81.2, 82], "lr": [1e-5, 3e-4]}
    rows = "epoch,wps,ppl,top1,lr\n1,58056.1,inf,81.2%,1e-05\n2,59000,12.5,82%,3e-4\n"
    fairseq = """\
2026-01-01 | INFO | train | {"epoch": 1, "wps": "58056.1", "ppl": "inf", "top1": "81.2%", "lr": "1e-05"}
2026-01-01 | INFO | train | {"epoch": 2, "wps": "59000", "ppl": "12.5", "top1": "82%", "lr": "3e-4"}
"""
    for run in (table(tmp_path, rows), table(tmp_path, fairseq, "train.log")):
        assert {key: run.values(key).tolist() for key in expected} == expected
        assert run.units == {"top1": "percent"}
        assert run.problems == []


# Steps


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (("1/90", "2/90", "3/90", "4/90"), [1, 2, 3, 4]),
        (("0.5 / 3", "1.0 / 3", "1.5 / 3", "2.0 / 3"), [0.5, 1, 1.5, 2]),
        ((" 7/30", "14/30", "21/30", "28/30"), [7, 14, 21, 28]),
        (("[1, 20]", "[1, 40]", "[2, 20]", "[10, 20]"), [1, 2, 3, 4]),
        (("(0, 100)", "(1, 100)", "(2, 100)", "(3, 100)"), [1, 2, 3, 4]),
    ],
)
def test_a_step_whose_meaning_is_plain_is_read(tmp_path, steps, expected):
    for run in in_both_forms(tmp_path, "step", steps):
        assert run.values("global_step").tolist() == expected
        assert run.values("acc").tolist() == [0, 1, 2, 3]
        assert run.problems == []


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        (("Epoch 1", "Epoch 2", "Epoch 3"), "has values such as 'Epoch 1', which are no numbers"),
        (("1 of 3", "2 of 3", "3 of 3"), "has values such as '1 of 3', which are no numbers"),
        (("warm", "1", "2"), "has values such as 'warm', which are no numbers"),
        (("300", "200", "100"), "falls from row to row"),
        (("3/3", "2/3", "1/3"), "falls from row to row"),
    ],
)
@pytest.mark.parametrize("name", ["step", "position"])
def test_a_column_that_is_no_step_is_asked_about(tmp_path, name, steps, problem):
    text = f"{name},acc\n" + "".join(f"{step},{n / 10}\n" for n, step in enumerate(steps))
    with pytest.raises(MissingInput, match=problem) as caught:
        table(tmp_path, text, step="position" if name == "position" else None)
    assert caught.value.arguments == ("--step", "none")
    run = table(tmp_path, text, step="none")
    assert run.values("global_step").tolist() == [1, 2, 3]
    assert run.values("acc").tolist() == [0, 0.1, 0.2]


@pytest.mark.parametrize(
    ("column", "last"),
    [
        ("nan 0.5 nan 0.75", 0.75),
        ("nan nan 0.5 nan nan 0.75 nan", 0.75),  # an evaluation every third row
        ("nan nan 0.5 nan", 0.5),
        ("nan 0.5 nan 0.75 nan nan", np.nan),  # one was due, and was NaN
        ("0.5 0.75 nan", np.nan),
    ],
)
def test_nan_in_rows_without_an_evaluation_is_no_value(tmp_path, column, last):
    rows = [f"{step},{value}" for step, value in enumerate(column.split(), 1)]
    run = table(tmp_path, "\n".join(["step,acc", *rows]))
    assert run.logged_numbers("acc")[1][-1] == pytest.approx(last, nan_ok=True)


def test_a_list_and_log_lines_with_one_object_each_are_read(tmp_path):
    lines = '[\n{"epoch": 1, "acc": 0.5},\n{"epoch": 2, "acc": 0.75}\n]\n'
    nvidia = """\
DLLL {"type": "LOG", "step": "PARAMETER", "data": {"batch_size": 64}}
DLLL {"type": "LOG", "step": [1, 50], "acc": 0.5}
DLLL {"type": "LOG", "step": [2, 50], "acc": 0.75}
DLLL {"type": "LOG", "step": [], "data": {"train.best": 0.25}}
"""
    for text in (lines, nvidia):
        run = table(tmp_path, text, "log.json")
        assert run.values("global_step").tolist() == [1, 2]
        assert run.values("acc").tolist() == [0.5, 0.75]


def test_of_two_step_columns_the_one_that_does_not_fall_counts(tmp_path):
    run = table(tmp_path, "iter,epoch,acc\n30,1,0.5\n20,2,0.75\n")
    assert run.values("global_step").tolist() == [1, 2]


@pytest.mark.parametrize("index", ["", "Unnamed: 0"])
def test_the_unnamed_index_of_pandas_is_no_column_unless_it_is_the_step(tmp_path, index):
    run = table(tmp_path, f"{index},epoch,acc\n0,1,0.5\n1,2,0.75\n")
    assert {*run.logged} == {"epoch", "acc", "global_step"}
    assert run.problems == []
    text = f"{index},loss,acc\n0,2,0.5\n1,1,0.75\n"
    with pytest.raises(MissingInput, match=r"columns: .*Unnamed: 0.*--step none takes the order of the rows"):
        table(tmp_path, text)
    assert table(tmp_path, text, step="Unnamed: 0").values("global_step").tolist() == [0, 1]
