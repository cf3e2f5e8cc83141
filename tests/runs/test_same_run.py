"""A run counts once, in however many files, folders or columns its rows stand."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from support.logs import logged

from ampcompare import load_runs
from ampcompare.errors import UserError
from ampcompare.runs import RunRecord


def write(path: Path, text: str) -> Path:
    """Write a file and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def rows_of(seed: int, steps: range, *, digits: int = 17, clock: int | None = None) -> list[dict[str, Any]]:
    """Return rows of a run whose values depend on the seed and the step, and whose times on the clock."""
    rows = []
    for step in steps:
        chance = random.Random(f"{seed} {step}")
        row: dict[str, Any] = {"step": step, "loss": round(2 / step + chance.random() / 10, digits)}
        if clock is not None:
            row["time"] = round(0.2 + random.Random(f"{clock} {step}").random() / 100, 6)
        rows.append(row)
    return rows


def lines(rows: list[dict[str, Any]]) -> str:
    """Return rows as JSON lines."""
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def table(rows: list[dict[str, Any]]) -> str:
    """Return rows as a CSV file."""
    names = list(rows[0])
    return "\n".join([",".join(names), *(",".join(str(row[name]) for name in names) for row in rows), ""])


def names(folder: Path, **options: Any) -> list[str]:
    """Return the names of the runs below a folder, sorted."""
    return sorted(run.name.removeprefix(f"{folder.as_posix()}/") for run in load_runs([folder], **options))


# One run in several files


def test_equal_files_with_other_names_are_one_run(tmp_path):
    for seed in (1, 2):
        text = lines(rows_of(seed, range(1, 6), clock=seed))
        folder = tmp_path / f"run{seed}" / "2026" / "vis_data"
        write(folder / "scalars.json", text)
        write(folder / f"2026010{seed}_101010.json", text)
    with logged() as messages:
        runs = load_runs([tmp_path])
    assert [run.rows for run in runs] == [5, 5]
    assert any("are one run" in message and "scalars" in message for message in messages)


@pytest.mark.parametrize("write_rows", [lines, table])
def test_the_concatenation_of_two_parts_counts_and_its_parts_do_not(tmp_path, write_rows):
    suffix = "jsonl" if write_rows is lines else "csv"
    first, second = rows_of(1, range(1, 6), clock=1), rows_of(1, range(4, 9), clock=2)  # resumed at step 4
    write(tmp_path / f"part_a.{suffix}", write_rows(first))
    write(tmp_path / f"part_b.{suffix}", write_rows(second))
    write(tmp_path / f"whole.{suffix}", write_rows(first + second))
    (run,) = load_runs([tmp_path])
    assert run.name.endswith("whole")
    assert run.rows == 10


def test_a_file_that_concatenates_whole_runs_is_left_out(tmp_path):
    parts = [rows_of(seed, range(1, 6), clock=seed) for seed in (1, 2, 3)]
    for number, part in enumerate(parts):
        write(tmp_path / f"{number}.csv", table(part))
    write(tmp_path / "all.csv", table([row for part in parts for row in part]))
    assert names(tmp_path) == ["0", "1", "2"]


def test_lists_and_texts_are_compared_as_they_are(tmp_path):
    rows = [row | {"shape": [8, row["step"]], "note": "a"} for row in rows_of(1, range(1, 6), clock=1)]
    for name in ("a", "b"):
        write(tmp_path / f"{name}.jsonl", lines(rows))
    other = [row | {"shape": [9, row["step"]]} for row in rows]
    write(tmp_path / "c.jsonl", lines(other))
    assert names(tmp_path) == ["a", "c"]


def test_an_early_copy_of_a_log_is_the_same_run(tmp_path):
    rows = rows_of(1, range(1, 20), clock=1)
    write(tmp_path / "backup" / "log.csv", table(rows[:7]))
    write(tmp_path / "log.csv", table(rows))
    assert names(tmp_path) == ["log"]


@pytest.mark.parametrize(
    ("digits", "clocks"),
    [
        (17, (1, 2)),  # two bit-identical runs: their times differ
        (2, (None, None)),  # short coarse logs
        (1, (None, None)),
    ],
)
def test_runs_that_agree_without_evidence_are_two(tmp_path, digits, clocks):
    for number, clock in enumerate(clocks):
        rows = rows_of(1, range(1, 4), digits=digits, clock=clock)
        write(tmp_path / f"seed{number}.csv", table(rows))
    assert names(tmp_path) == ["seed0", "seed1"]
    assert len(load_runs([f"fp32={tmp_path}"])) == 2


def test_a_learning_rate_with_all_digits_is_no_evidence(tmp_path):
    for number in (1, 2):
        rows = [row | {"lr": 0.1 / row["step"] ** 0.5} for row in rows_of(1, range(1, 6), digits=2)]
        write(tmp_path / f"seed{number}.csv", table(rows))
    assert names(tmp_path) == ["seed1", "seed2"]


@pytest.mark.parametrize("files", [("seed1.csv", "seed2.csv"), ("a/log.csv", "b/log.csv")])
def test_equal_digits_without_a_time_in_repeats_are_asked_about(tmp_path, files):
    for file in files:
        write(tmp_path / file, table(rows_of(1, range(1, 6))))
    with pytest.raises(UserError, match=rf"{files[0]} and .*{files[1]} have the same values in every row"):
        load_runs([f"fp32={tmp_path}"])
    named = [f"fp32={tmp_path / file}" for file in files]
    assert len(load_runs(named)) == 2  # the answer: each file that is named is a run
    assert len(load_runs(named[:1])) == 1


def test_a_log_that_may_continue_another_is_asked_about(tmp_path):
    for part, steps in (("first", range(1, 9)), ("second", range(8, 15))):  # resumed at step 8
        write(tmp_path / part / "scalars.json", lines(rows_of(1, steps, clock=steps.start)))
    with pytest.raises(UserError, match=r"second/scalars.json begins at step 8, .* of .*first/scalars.json"):
        load_runs([f"fp32={tmp_path}"])
    named = [f"fp32={tmp_path / part / 'scalars.json'}" for part in ("first", "second")]
    assert len(load_runs(named)) == 2
    text = "".join(Path(name.removeprefix("fp32=")).read_text() for name in named)
    (run,) = load_runs([f"fp32={write(tmp_path / 'whole.json', text)}"])
    assert run.values("step").max() == 14


def test_equal_digits_in_one_folder_under_other_names_are_one_run(tmp_path):
    for name in ("training.csv", "history.csv"):
        write(tmp_path / name, table(rows_of(1, range(1, 6))))
    assert len(load_runs([f"fp32={tmp_path}"])) == 1


def test_equal_files_of_two_arms_are_two_runs(tmp_path):
    for arm in ("a", "b"):
        write(tmp_path / arm / "log.csv", table(rows_of(1, range(1, 6), clock=1)))
    assert len(load_runs([f"{arm}={tmp_path / arm}" for arm in ("a", "b")])) == 2


# One run in several folders


@pytest.mark.parametrize(
    ("train", "evaluation"),
    [
        ("1/train/log.csv", "1/validation/log.csv"),
        ("train/1.csv", "val/1.csv"),
        ("1/train.csv", "1/valid.csv"),
        ("seed1_train.csv", "seed1_test.csv"),
        ("log-training-1.jsonl", "log-eval-1.jsonl"),
    ],
)
def test_train_and_validation_are_parts_of_one_run(tmp_path, train, evaluation):
    as_text = lines if train.endswith("jsonl") else table
    for seed in (1, 2):
        parts = {train: 0.9, evaluation: 0.7}
        for name, score in parts.items():
            rows = [{"epoch": epoch, "acc": score + seed / 100 + epoch / 1000} for epoch in (1, 2, 3)]
            write(tmp_path / name.replace("1", str(seed)), as_text(rows))
    runs = load_runs([tmp_path])
    assert len(runs) == 2
    for run in runs:
        keys = sorted(key for key in run.logged if key.endswith("/acc"))
        assert len(keys) == 2
        assert "acc" not in run.logged
        evaluated, trained = (run.values(key)[-1] for key in sorted(keys, key=lambda key: "train" in key))
        assert trained == pytest.approx(evaluated + 0.2)
        assert run.values("global_step").max() == 3


def test_a_key_of_one_part_keeps_its_name(tmp_path):
    write(tmp_path / "1" / "train.csv", "step,loss\n1,2\n2,1\n")
    write(tmp_path / "1" / "val.csv", "step,loss,acc\n2,1.5,0.5\n")
    (run,) = load_runs([tmp_path])
    assert {*run.logged} == {"global_step", "step", "train/loss", "val/loss", "acc"}
    assert run.values("val/loss").tolist() == [1.5]
    assert run.rows == 2  # the rows of one step are one row


def test_arms_that_are_called_train_and_test_stay_apart(tmp_path):
    for arm in ("train", "test"):
        write(tmp_path / arm / "log.csv", "step,loss\n1,2\n2,1\n")
    runs = load_runs([f"{arm}={tmp_path / arm}" for arm in ("train", "test")])
    assert [run.config["arm"] for run in runs] == ["train", "test"]
    assert all("loss" in run.logged for run in runs)


def test_keras_folders_of_event_files_are_parts_of_one_run(tmp_path):
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    for seed in (1, 2, 3):
        for part, score in (("train", 0.6), ("validation", 0.8)):
            with SummaryWriter(str(tmp_path / f"run{seed}" / part)) as writer:
                for epoch in range(3):
                    writer.add_scalar("epoch_accuracy", score + seed / 100, epoch, walltime=100.0 + epoch)
    runs = load_runs([tmp_path])
    assert len(runs) == 3
    assert sorted(run.values("validation/epoch_accuracy")[-1] for run in runs) == pytest.approx(
        [0.81, 0.82, 0.83]
    )


# Exports with one file per tag, or one column per run


def test_tensorboards_downloads_are_one_run_with_a_column_per_tag(tmp_path):
    for number, run_name in enumerate(("fp32_seed1", "fp32_seed2")):
        for tag in ("val_acc", "train_loss"):
            rows = [
                f"{1700000000.5 + step + 90 * number},{step},{step / 10 + len(tag)}"
                for step in (1, 2, 3)
                if step != 1 or tag == "train_loss"
            ]
            text = "\n".join(["Wall time,Step,Value", *rows])
            write(tmp_path / f"run-{run_name}-tag-{tag}.csv", text)
    runs = load_runs([tmp_path])
    assert sorted(Path(run.name).name for run in runs) == ["fp32_seed1", "fp32_seed2"]
    assert all(run.values("val_acc").tolist() == pytest.approx([7.2, 7.3]) for run in runs)
    assert [run.rows for run in runs] == [3, 3]
    assert sorted(run.values("_timestamp")[0] for run in runs) == [1700000001.5, 1700000091.5]


def test_tensorboards_downloads_of_keras_folders_are_one_run(tmp_path):
    for part in ("train", "validation"):
        for tag in ("epoch_loss", "epoch_accuracy"):
            write(
                tmp_path / f"run-fp32_1_{part}-tag-{tag}.csv",
                f"Wall time,Step,Value\n1.5,0,0.5\n2.5,1,0.{len(part)}\n",
            )
    (run,) = load_runs([tmp_path])
    assert run.values("validation/epoch_accuracy").tolist() == [0.5, 0.1]
    assert run.values("train/epoch_loss").tolist() == [0.5, 0.5]


CHART = (
    '"Step","fp32-1 - val/acc","fp32-1 - val/acc__MIN","fp32-1 - val/acc__MAX",'
    '"bf16-1 - val/acc","bf16-1 - val/acc__MIN","bf16-1 - val/acc__MAX"\n'
    '"10","0.5","0.5","0.5","","",""\n"20","0.6","0.6","0.6","0.7","0.7","0.7"\n'
)


def charted(path: Path, text: str) -> dict[str, RunRecord]:
    """Return the runs of a chart that was exported from W&B, by their names."""
    write(path, text)
    return {run.name: run for run in load_runs([path])}


@pytest.mark.parametrize("axis", ["Step", "trainer/global_step", "epoch"])
def test_wandbs_chart_export_has_a_column_per_run(tmp_path, axis):
    runs = charted(tmp_path / "wandb_export_2026.csv", CHART.replace("Step", axis))
    assert {*runs} == {"fp32-1", "bf16-1"}
    assert runs["fp32-1"].values("val/acc").tolist() == [0.5, 0.6]
    assert runs["bf16-1"].values("val/acc").tolist() == [0.7]
    assert runs["bf16-1"].values("global_step").tolist() == [20]
    assert runs["fp32-1"].config["run"] == "fp32"
    assert len(load_runs([f"all={tmp_path}"])) == 2


def test_two_charts_of_the_same_runs_are_joined(tmp_path):
    write(tmp_path / "loss.csv", CHART.replace("val/acc", "loss"))
    runs = charted(tmp_path / "acc.csv", CHART)
    assert len(runs) == 2
    by_name = {run.name: run for run in load_runs([tmp_path])}
    assert by_name["fp32-1"].values("loss").tolist() == [0.5, 0.6]
    assert by_name["fp32-1"].values("val/acc").tolist() == [0.5, 0.6]
    assert by_name["fp32-1"].rows == 2


def test_a_chart_of_group_means_is_refused(tmp_path):
    text = CHART.replace("fp32-1", "precision: 32").replace("bf16-1", "precision: bf16")
    with pytest.raises(UserError, match="means over groups"):
        charted(tmp_path / "chart.csv", text)


@pytest.mark.parametrize("axis", ["Relative Time (Process)", "Wall Time"])
def test_a_chart_over_time_is_refused_with_what_to_do(tmp_path, axis):
    with pytest.raises(UserError, match=r"a chart of W&B over .* set the x axis to Step"):
        charted(tmp_path / "chart.csv", CHART.replace("Step", axis))
