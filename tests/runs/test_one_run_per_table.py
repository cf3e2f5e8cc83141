"""A table has one run. Several runs, several starts and tables of results are read as the user says."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ampcompare import load_runs
from ampcompare.errors import UserError
from ampcompare.runs import RunRecord
from ampcompare.runs.missing_input import MissingInput

Row = dict[str, Any]
Load = Callable[..., list[RunRecord]]


def as_csv(rows: list[Row]) -> str:
    """Return rows as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_lines(rows: list[Row]) -> str:
    """Return rows as JSON lines."""
    return "".join(f"{json.dumps(row)}\n" for row in rows)


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Return what loads a file with this text, and with `asked` expects the question and its arguments."""

    def load(text: str, asked: str = "", says: str = "", **options: Any) -> list[RunRecord]:
        path = tmp_path / ("all.jsonl" if text.startswith("{") else "all.csv")
        path.write_text(text)
        if not asked:
            return load_runs([path], **options)
        with pytest.raises(MissingInput, match=says or None) as caught:
            load_runs([path], **options)
        assert " ".join(caught.value.arguments) == asked
        return []

    return load


def epochs(count: int, **settings: Any) -> list[Row]:
    """Return rows of one run: its values follow from its settings and the epoch."""
    shift = 0.01 + sum(map(ord, "".join(map(str, settings.values())))) / 10_000
    rows = [{"epoch": n, "val_acc": 0.5 + shift + n / 50, "secs": 3 + shift / n} for n in range(1, count + 1)]
    return [settings | row for row in rows]


SWEEP = [
    row for name in ("adam", "sgd", "lamb") for fold in range(1, 11) for row in epochs(3, opt=name, fold=fold)
]
SEEDS = [row for seed in (11, 12, 13) for row in epochs(4, seed=seed)]
MODELS = [row for depth in (18, 50) for row in epochs(2, host="a", model=f"resnet{depth}")]


# Several runs in a file


@pytest.mark.parametrize("form", [as_csv, as_lines])
@pytest.mark.parametrize(
    ("rows", "run_by", "count"), [(SWEEP, "opt,fold", 30), (SEEDS, "seed", 3), (MODELS, "model", 2)]
)
def test_several_runs_in_a_file_are_asked_about_and_read_one_by_one(load, form, rows, run_by, count):
    load(form(rows), f"--run-by {run_by}", r"begins again at 1 in row \d")
    runs = load(form(rows), run_by=run_by)
    assert len(runs) == count
    columns = run_by.split(",")
    for run in runs:
        own = [row for row in rows if all(row[column] == run.config[column] for column in columns)]
        assert run.values("val_acc").tolist() == [row["val_acc"] for row in own]
        assert run.values("global_step").tolist() == [row["epoch"] for row in own]
        text = ",".join(f"{column}={run.config[column]}" for column in columns)
        assert run.name.endswith(f"all[{text}]")
        assert not {*columns} & {*run.logged}


def test_a_value_of_a_column_is_read_alone(load):
    load(as_csv(SWEEP), "--run-by fold", where=["opt=sgd"])  # the folds of one optimizer are several runs
    (run,) = load(as_csv(SEEDS), where=["seed=12"])
    assert run.values("val_acc").tolist() == [row["val_acc"] for row in SEEDS[4:8]]
    assert run.rows == 4


def test_runs_whose_rows_alternate_are_told_apart_by_their_seed(load):
    seeds, names = (11, 12, 13), ("sgd", "adam")
    rows = [row for seed in seeds for name in names for row in epochs(4, seed=seed, opt=name)]
    text = as_csv(sorted(rows, key=lambda row: row["epoch"]))
    load(text, "--run-by opt,seed", r"several seeds \(11, 12 and 13\)")
    runs = load(text, run_by="opt,seed")
    assert {run.config["seed"] for run in runs} == {*seeds}
    assert {run.rows for run in runs} == {4}


def test_the_order_of_the_rows_counts_in_each_run(load):
    runs = load(as_csv(SEEDS), run_by="seed", step="none")
    assert [run.values("global_step").tolist() for run in runs] == [[1, 2, 3, 4]] * 3


@pytest.mark.parametrize(
    "rows",
    [
        # Lightning: rows of training and of evaluation at the same step.
        [{"epoch": 0, "step": n, key: n} for n in (1, 2, 3) for key in ("loss", "acc")],
        # mmengine: the step of the evaluation is the epoch.
        [{"step": n, "time": 1, "acc" if n < 10 else "loss": n} for n in (10, 1, 20, 2)],
        # The step counts anew in each epoch.
        [{"epoch": epoch, "iter": n, "loss": 1 / n} for epoch in (1, 2, 3) for n in (1, 2)],
        # Several rows of an epoch, and a value now and then.
        [{"epoch": n // 2, "loss": 1.0} | ({"acc": n} if n % 3 else {}) for n in range(9)],
    ],
)
def test_rows_of_one_run_are_not_asked_about(load, rows):
    (run,) = load(as_lines(rows))
    assert run.rows == len(rows)


# Several starts of a run

FIRST = epochs(5)
SECOND = [row | {"val_acc": row["val_acc"] + 0.1, "secs": row["secs"] + 1} for row in epochs(7)]
RESUMED = [*FIRST, *SECOND[3:]]


@pytest.mark.parametrize("text", [as_csv(FIRST) + as_csv(SECOND[3:]), as_lines(RESUMED)])
def test_several_starts_are_asked_about(load, text):
    """With the header again, and without."""
    load(text, "--starts last", "the step begins again at 4 in row 6")
    for starts, rows in (("last", SECOND[3:]), ("joined", [*FIRST[:3], *SECOND[3:]])):
        (run,) = load(text, starts=starts)
        assert run.values("val_acc").tolist() == [row["val_acc"] for row in rows]


def test_the_starts_of_each_run_are_asked_about_and_never_mixed(load):
    text = as_csv([*epochs(3, seed=1), *epochs(5, seed=1), *epochs(5, seed=2)])
    load(text, "--run-by seed")
    load(text, "--starts last", run_by="seed")
    assert [run.rows for run in load(text, run_by="seed", starts="last")] == [5, 5]


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("starts", "first", "expected "),
        ("rows", "steps", "expected "),
        ("run_by", "sed", r".* has no such column; did you mean seed\?"),
    ],
)
def test_an_unknown_value_is_refused(load, option, value, says):
    with pytest.raises(UserError, match=f"--{option.replace('_', '-')} '{value}': {says}"):
        load(as_csv(SEEDS), **{option: value})


# Tables of results

SEED_TABLE = "seed,precision,test_acc\n1,fp32,71.4\n2,fp32,72.4\n1,bf16x,71.5\n2,bf16x,72.5\n"
WANDB = """\
Name,State,precision,lr,seed,epoch,acc
run-1,finished,16-mixed,0.1,1,9,1
run-2,crashed,16-mixed,0.1,2,10,2
run-3,finished,16-mixed,0.1,3,11,3
"""
OPTUNA = """\
,number,value,params_lr,params_opt,state
0,0,0.0,0.5,adam,FAIL
1,1,0.125,0.75,adam,COMPLETE
2,2,0.25,1.5,adam,COMPLETE
"""
MLFLOW = """\
run_id,status,metrics.acc,metrics.epoch,params.lr
1f,FAILED,0.125,1,0.1
2f,FINISHED,0.25,2,0.2
3f,KILLED,0.375,3,0.3
"""


@pytest.mark.parametrize(
    ("text", "value", "settings", "states"),
    [
        (SEED_TABLE, "test_acc", "precision seed", "finished " * 4),
        (WANDB, "acc", "precision seed", "finished failed finished"),
        (OPTUNA, "value", "params_lr params_opt", "failed finished finished"),
        (MLFLOW, "metrics.acc", "params.lr", "failed finished stopped"),
        ("epoch,seed,acc\n20,4,0.4\n20,5,0.5\n", "acc", "seed", "finished finished"),
        ("epoch,acc\n20,0.4\n20,0.5\n20,0.6\n", "acc", "", "finished " * 3),
    ],
)
def test_a_table_of_results_is_refused_as_that_and_read_when_asked_for(load, text, value, settings, states):
    load(text, "--rows runs", "--rows runs")
    runs = load(text, rows="runs")
    rows = [*csv.DictReader(io.StringIO(text))]
    assert [run.summary_number(value) for run in runs] == [float(row[value]) for row in rows]
    expected = [{key: row[key] for key in settings.split()} for row in rows]
    assert [{key: str(of) for key, of in run.config.items()} for run in runs] == expected
    assert [str(run.state) for run in runs] == states.split()
    assert len({run.name for run in runs}) == len(rows)


def test_a_column_of_numbers_is_a_setting_where_the_user_says_so(load):
    assert [run.config["lr"] for run in load(WANDB, rows="runs", run_by="lr")] == [0.1, 0.1, 0.1]


def test_a_start_of_one_row_is_seen_by_its_header_and_a_log_that_goes_on_has_none(load):
    text = as_csv(FIRST[:1]) + as_csv(SECOND)
    load(text, "--starts last", "begins again at 1 in row 2")
    (run,) = load(text, starts="last")
    assert run.rows == 7
    (run,) = load(as_csv(FIRST[:3]) + as_csv(SECOND[3:]))
    assert run.values("epoch").tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert run.problems == []
