"""A table has one run. Several runs, several starts and tables of results are read as the user says."""

import csv
import io
import json
from typing import Any

import pytest

from ampcompare import load_runs
from ampcompare.errors import UserError
from ampcompare.runs.missing_input import MissingInput

Row = dict[str, Any]


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


def epochs(count: int, **settings: Any) -> list[Row]:
    """Return rows of one run: its values follow from its settings and the epoch."""
    shift = sum(map(ord, "".join(map(str, settings.values())))) / 10_000
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
def test_several_runs_in_a_file_are_asked_about_and_read_one_by_one(tmp_path, form, rows, run_by, count):
    path = tmp_path / ("all.csv" if form is as_csv else "all.jsonl")
    path.write_text(form(rows))
    with pytest.raises(MissingInput, match=r"begins again at 1 in row \d") as caught:
        load_runs([path])
    assert caught.value.arguments == ("--run-by", run_by)
    runs = load_runs([path], run_by=run_by)
    assert len(runs) == count
    columns = run_by.split(",")
    for run in runs:
        own = [row for row in rows if all(row[column] == run.config[column] for column in columns)]
        assert run.values("val_acc").tolist() == [row["val_acc"] for row in own]
        assert run.values("secs").tolist() == [row["secs"] for row in own]
        assert run.values("global_step").tolist() == [row["epoch"] for row in own]
        text = ",".join(f"{column}={run.config[column]}" for column in columns)
        assert run.name.endswith(f"all[{text}]")
        assert not {*columns} & {*run.logged}


def test_a_value_of_a_column_is_read_alone(tmp_path):
    (tmp_path / "all.csv").write_text(as_csv(SWEEP))
    with pytest.raises(MissingInput) as caught:  # the folds of one optimizer are still several runs
        load_runs([tmp_path / "all.csv"], where=["opt=sgd"])
    assert caught.value.arguments == ("--run-by", "fold")
    (tmp_path / "all.csv").write_text(as_csv(SEEDS))
    (run,) = load_runs([tmp_path / "all.csv"], where=["seed=12"])
    assert run.values("val_acc").tolist() == [row["val_acc"] for row in SEEDS if row["seed"] == 12]
    assert run.rows == 4


@pytest.mark.parametrize(
    ("rows", "run_by"),
    [
        (SEEDS, "seed"),
        (
            [
                row
                for seed in (11, 12, 13)
                for opt in ("sgd", "adam")
                for row in epochs(4, seed=seed, opt=opt)
            ],
            "opt,seed",
        ),
    ],
)
def test_runs_whose_rows_alternate_are_told_apart_by_their_seed(tmp_path, rows, run_by):
    rows = sorted(rows, key=lambda row: row["epoch"])
    (tmp_path / "all.csv").write_text(as_csv(rows))
    with pytest.raises(MissingInput, match=r"several seeds \(11, 12 and 13\)") as caught:
        load_runs([tmp_path])
    assert caught.value.arguments == ("--run-by", run_by)
    runs = load_runs([tmp_path], run_by=run_by)
    assert {run.config["seed"] for run in runs} == {11, 12, 13}
    assert {run.rows for run in runs} == {4}


def test_the_order_of_the_rows_counts_in_each_run(tmp_path):
    (tmp_path / "all.csv").write_text(as_csv(SEEDS))
    runs = load_runs([tmp_path], run_by="seed", step="none")
    assert [run.values("global_step").tolist() for run in runs] == [[1, 2, 3, 4]] * 3


def test_an_unknown_column_is_refused(tmp_path):
    (tmp_path / "all.csv").write_text(as_csv(SEEDS))
    with pytest.raises(UserError, match=r"--run-by 'sed': .* has no such column; did you mean seed\?"):
        load_runs([tmp_path], run_by="sed")


@pytest.mark.parametrize(
    "rows",
    [
        # Lightning: rows of training and of evaluation at the same step.
        [
            row
            for n in (1, 2, 3)
            for row in ({"epoch": 0, "step": n, "loss": 1 / n}, {"epoch": 0, "step": n, "acc": n})
        ],
        # mmengine: the step of the evaluation is the epoch.
        [
            row
            for n in (1, 2)
            for row in ({"step": 10 * n, "loss": 1 / n, "time": 1}, {"step": n, "acc": n, "time": 2})
        ],
        # The step counts anew in each epoch.
        [{"epoch": epoch, "iter": n, "loss": 1 / n} for epoch in (1, 2, 3) for n in (1, 2)],
        # Several rows of an epoch, and a value now and then.
        [{"epoch": n // 2, "loss": 1.0} | ({"acc": n} if n % 3 else {}) for n in range(9)],
    ],
)
def test_rows_of_one_run_are_not_asked_about(tmp_path, rows):
    (tmp_path / "log.jsonl").write_text(as_lines(rows))
    (run,) = load_runs([tmp_path])
    assert run.rows == len(rows)


# Several starts of a run

FIRST, SECOND = epochs(5, try_="one"), epochs(7, try_="two")
for one in (*FIRST, *SECOND):
    del one["try_"]


@pytest.mark.parametrize(
    ("text", "suffix"),
    [
        (as_csv(FIRST) + as_csv(SECOND[3:]), "csv"),  # resumed, with the header again
        (as_csv([*FIRST, *SECOND[3:]]), "csv"),
        (as_lines([*FIRST, *SECOND[3:]]), "jsonl"),
    ],
)
def test_several_starts_are_asked_about(tmp_path, text, suffix):
    path = tmp_path / f"log.{suffix}"
    path.write_text(text)
    with pytest.raises(MissingInput, match="the step begins again at 4 in row 6") as caught:
        load_runs([path])
    assert caught.value.arguments == ("--starts", "last")
    (last,) = load_runs([path], starts="last")
    assert last.values("val_acc").tolist() == [row["val_acc"] for row in SECOND[3:]]
    (joined,) = load_runs([path], starts="joined")
    assert joined.values("val_acc").tolist() == [row["val_acc"] for row in [*FIRST[:3], *SECOND[3:]]]
    assert joined.values("secs").tolist() == [row["secs"] for row in [*FIRST[:3], *SECOND[3:]]]


def test_a_start_of_one_row_is_seen_by_its_header(tmp_path):
    (tmp_path / "log.csv").write_text(as_csv(FIRST[:1]) + as_csv(SECOND))
    with pytest.raises(MissingInput, match="begins again at 1 in row 2"):
        load_runs([tmp_path])
    (run,) = load_runs([tmp_path], starts="last")
    assert run.rows == 7


def test_a_header_in_a_log_that_goes_on_is_no_start(tmp_path):
    (tmp_path / "log.csv").write_text(as_csv(FIRST[:3]) + as_csv(SECOND[3:]))
    (run,) = load_runs([tmp_path])
    assert run.values("epoch").tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert run.problems == []


def test_the_starts_of_each_run_are_asked_about_and_never_mixed(tmp_path):
    rows = [*epochs(3, seed=1), *epochs(5, seed=1), *epochs(5, seed=2)]
    (tmp_path / "all.csv").write_text(as_csv(rows))
    with pytest.raises(MissingInput) as caught:
        load_runs([tmp_path])
    assert caught.value.arguments == ("--run-by", "seed")
    with pytest.raises(MissingInput) as caught:
        load_runs([tmp_path], run_by="seed")
    assert caught.value.arguments == ("--starts", "last")
    assert [run.rows for run in load_runs([tmp_path], run_by="seed", starts="last")] == [5, 5]


@pytest.mark.parametrize(("option", "value"), [("starts", "first"), ("rows", "steps")])
def test_an_unknown_value_is_refused(tmp_path, option, value):
    with pytest.raises(UserError, match=f"--{option} '{value}': expected "):
        load_runs([tmp_path], **{option: value})


# Tables of results

SEED_TABLE = [
    {"seed": n, "precision": p, "test_acc": 70 + n + len(p) / 10}
    for p in ("fp32", "bf16x")
    for n in (1, 2, 3)
]
WANDB = [
    {
        "Name": f"run-{n}",
        "State": state,
        "precision": "16-mixed",
        "lr": 0.1,
        "seed": n,
        "epoch": 8 + n,
        "acc": n,
    }
    for n, state in enumerate(("finished", "crashed", "finished"), 1)
]
OPTUNA = [
    {"": n, "number": n, "value": n / 8, "params_lr": 0.1 * n, "params_opt": "adam", "state": state}
    for n, state in enumerate(("FAIL", "COMPLETE", "COMPLETE"))
]

MLFLOW = [
    {"run_id": f"{n}f", "status": state, "metrics.acc": n / 8, "metrics.epoch": n, "params.lr": 0.1 * n}
    for n, state in enumerate(("FAILED", "FINISHED", "KILLED"), 1)
]


@pytest.mark.parametrize(
    ("rows", "value", "settings", "states"),
    [
        (SEED_TABLE, "test_acc", ("precision", "seed"), "finished " * 6),
        (WANDB, "acc", ("precision", "seed"), "finished failed finished"),
        (OPTUNA, "value", ("params_lr", "params_opt"), "failed finished finished"),
        (MLFLOW, "metrics.acc", ("params.lr",), "failed finished stopped"),
        ([{"epoch": 20, "seed": n, "acc": n / 10} for n in (4, 5)], "acc", ("seed",), "finished finished"),
        ([{"epoch": 20, "acc": n / 10} for n in (4, 5, 6)], "acc", (), "finished " * 3),
    ],
)
def test_a_table_of_results_is_refused_as_that_and_read_when_asked_for(
    tmp_path, rows, value, settings, states
):
    path = tmp_path / "results.csv"
    path.write_text(as_csv(rows))
    with pytest.raises(MissingInput, match="--rows runs") as caught:
        load_runs([path])
    assert caught.value.arguments == ("--rows", "runs")
    runs = load_runs([path], rows="runs")
    assert [run.summary_number(value) for run in runs] == [row[value] for row in rows]
    assert [run.config for run in runs] == [{key: row[key] for key in settings} for row in rows]
    assert [str(run.state) for run in runs] == states.split()
    assert len({run.name for run in runs}) == len(rows)


def test_a_column_of_numbers_is_a_setting_where_the_user_says_so(tmp_path):
    (tmp_path / "results.csv").write_text(as_csv(WANDB))
    runs = load_runs([tmp_path], rows="runs", run_by="lr")
    assert [run.config["lr"] for run in runs] == [0.1, 0.1, 0.1]
