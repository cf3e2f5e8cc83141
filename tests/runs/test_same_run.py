"""Which files are one run: equal bytes in one folder, Keras' folders, exports of charts. Else it is asked."""

from pathlib import Path

import pytest
from support.log_templates import write
from support.logs import logged

from ampcompare import load_runs
from ampcompare.errors import UserError
from ampcompare.runs import RunRecord
from ampcompare.runs.missing_input import MissingInput

TABLE = "step,loss\n1,0.5\n2,0.25\n3,0.125\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def table(steps: range, shift: float = 0.0) -> str:
    """Return a CSV file."""
    return "\n".join(["step,loss", *(f"{step},{1 / step + shift}" for step in steps), ""])


# Equal files


@pytest.mark.parametrize(
    "files",
    [
        ("vis_data/20260105_101010.json", "vis_data/scalars.json"),  # mmengine
        ("log.csv", "backup_of_log.csv"),
        ("train.log", "stdout.log"),
        ("metrics.csv", "metrics (1).csv"),
    ],
)
def test_equal_bytes_in_one_folder_are_one_run(files):
    for seed in (1, 2, 3):
        rows = f'{{"step": 1, "loss": 2.{seed}}}\n{{"step": 2, "loss": 1.5}}\n'
        for file in files:
            write(f"run{seed}/{file}", table(range(1, 4), seed) if file.endswith("csv") else rows)
    with logged() as messages:
        runs = load_runs(["amp=."])
    assert len(runs) == 3
    assert sum("has the bytes of" in message for message in messages) == 3


@pytest.mark.parametrize(
    "files",
    [
        ("seed1.csv", "seed2.csv"),
        ("run.csv", "run2.csv"),
        ("fold_3/log.csv", "fold_4/log.csv"),
        ("log.csv", "backup/log.csv"),
    ],
)
def test_equal_bytes_elsewhere_are_asked_about(files):
    for file in files:
        write(f"logs/{file}", TABLE)
    write("logs/other.csv", table(range(1, 4), 1))
    with pytest.raises(MissingInput, match="have the same bytes; leave out one of them") as caught:
        load_runs(["fp32=logs", "amp=logs/other.csv"])
    assert "amp=logs/other.csv" in caught.value.arms  # the other arm stays in the command
    of_arm = [arm for arm in caught.value.arms if arm.startswith("fp32=")]
    assert len(load_runs(of_arm)) == 3
    assert len(load_runs([arm for arm in of_arm if not arm.endswith(files[1])])) == 2


def test_equal_bytes_in_two_arms_or_with_other_settings_are_two_runs():
    for name in ("a/1", "a/2", "b/1", "b/2"):
        write(f"{name}/log.csv", TABLE)
        write(f"{name}/hparams.yaml", f"seed: {name[-1]}\n")
    assert len(load_runs(["a=a", "b=b"])) == 4


# Parts of a run


@pytest.mark.parametrize(
    ("first", "second"),
    [(range(1, 9), range(8, 15)), (range(1, 9), range(9, 15)), (range(1, 5), range(2, 9))],
)
def test_a_file_that_may_continue_another_is_asked_about(first, second):
    write("logs/a.csv", table(first))
    write("logs/b.csv", table(second, 0.5))
    with pytest.raises(MissingInput, match=rf"b\.csv begins at step {second.start}, after the beginning of"):
        load_runs(["fp32=logs"])
    assert len(load_runs(["fp32=logs/a.csv", "fp32=logs/b.csv"])) == 2


def test_a_file_with_every_row_of_another_is_asked_about():
    write("log.csv", table(range(1, 20)))
    write("old/copy.csv", table(range(1, 8)))
    with pytest.raises(MissingInput, match=r"log\.csv has every row of .*copy\.csv"):
        load_runs(["fp32=."])
    write("old/copy.csv", table(range(1, 8), 0.25))  # another run, which ended early
    assert len(load_runs(["fp32=."])) == 2


def test_keras_folders_of_event_files_are_parts_of_one_run():
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    for part, score in (("train", 0.6), ("validation", 0.8)):
        with SummaryWriter(f"run1/{part}") as writer:
            writer.add_scalar("epoch_accuracy", score, 1, walltime=100.0)
            writer.add_scalar(f"only_{part}", 1.0, 1, walltime=100.0)
        write(f"other/{part}/log.csv", table(range(1, 4), score))  # not Keras'
    (run,) = load_runs(["run1"])
    assert run.values("validation/epoch_accuracy") == pytest.approx([0.8])
    assert {"train/epoch_accuracy", "only_train", "only_validation"} <= {*run.logged}
    assert len(load_runs(["other"])) == 2


# Exports with one file per tag, or one column per run


def test_tensorboards_downloads_are_one_run_with_a_column_per_tag():
    """And so are those of the folders of Keras' callback."""
    for name in ("fp32_seed1", "fp32_2_train", "fp32_2_validation"):
        rows = ["Wall time,Step,Value", *(f"{1700000000.5 + step},{step},0.{step}" for step in (1, 2, 3))]
        rows.append(f"1700000009.5,9,{len(name)}")
        write(f"run-{name}-tag-loss.csv", "\n".join(rows))
        write(f"run-{name}-tag-val_acc.csv", "\n".join([*rows[:1], *rows[2:]]))
    runs = {Path(run.name).name: run for run in load_runs(["."])}
    assert {*runs} == {"fp32_seed1", "fp32_2"}
    run = runs["fp32_seed1"]
    assert (run.rows, run.values("val_acc").tolist()) == (4, [0.2, 0.3, 10])
    assert run.values("_timestamp")[0] == 1700000001.5
    assert runs["fp32_2"].values("validation/val_acc").tolist() == [0.2, 0.3, 17]


def write_chart(path: str, rows: dict[str, list[object]], *, axis: str = "Step", key: str = "val/acc") -> str:
    """Write W&B's export of a chart: for each run its value at the steps 10 and 20."""
    head = [axis, *(f"{name} - {key}{bound}" for name in rows for bound in ("", "__MIN", "__MAX"))]
    lines = [
        [10 * n, *(value for values in rows.values() for value in 3 * values[n - 1 : n])] for n in (1, 2)
    ]
    write(path, "\n".join(",".join(f'"{cell}"' for cell in line) for line in (head, *lines)))
    return path


def by_name(source: str, **options: str) -> dict[str, RunRecord]:
    """Return the runs of a source by their names."""
    return {run.name: run for run in load_runs([source], **options)}


TWO = {"fp32-1": [0.5, 0.6], "bf16-1": ["", 0.7]}


@pytest.mark.parametrize("has_bounds", [True, False])
@pytest.mark.parametrize("axis", ["Step", "trainer/global_step", "epoch"])
def test_wandbs_chart_export_has_a_column_per_run(axis, has_bounds):
    path = write_chart("wandb_export_2026.csv", TWO, axis=axis)
    if not has_bounds:  # somebody removed these columns
        lines = [line.split(",") for line in Path(path).read_text().split("\n")]
        write(path, "\n".join(",".join([line[0], *line[1::3]]) for line in lines))
    runs = by_name(path, run_name="{arm}-{seed}")
    assert runs["fp32-1"].values("val/acc").tolist() == [0.5, 0.6]
    assert runs["bf16-1"].values("val/acc").tolist() == [0.7]
    assert runs["bf16-1"].values("global_step").tolist() == [20]
    assert len(load_runs(["all=."])) == 2  # the source names the arm


NAMES = {
    "{arm}_lr_{lr}": {"adam_lr_0.1": {"arm": "adam", "lr": 0.1}, "adam_lr_0.01": {"arm": "adam", "lr": 0.01}},
    "{model}/{arm} seed {seed}": {
        f"resnet{n}/bf16 seed 3": {"model": f"resnet{n}", "arm": "bf16", "seed": 3} for n in (18, 50)
    },
    "*({arm})": {"sunny-cloud-17 (fp16)": {"arm": "fp16"}, "wild-fog-18 (tf32)": {"arm": "tf32"}},
}


@pytest.mark.parametrize("pattern", NAMES)
def test_a_run_of_a_chart_is_its_whole_name_and_only_a_pattern_reads_settings_from_it(pattern):
    names = NAMES[pattern]
    path = write_chart("chart.csv", {name: [1, 2] for name in names})
    with pytest.raises(MissingInput, match="has 2 runs") as caught:
        load_runs([path])
    assert caught.value.arguments == ("--run-name", "{arm}")
    assert {run.config["arm"] for run in load_runs([path], run_name="{arm}")} == {*names}
    assert {name: run.config for name, run in by_name(path, run_name=pattern).items()} == names
    for other in (
        "{arm}--{seed}",
        f"{next(iter(names))[1:-1]}{{seed}}",
    ):  # the second fits a part of the name
        with pytest.raises(UserError, match="does not match"):
            load_runs([path], run_name=other)


def test_two_charts_of_the_same_runs_are_joined():
    write_chart("loss.csv", TWO, key="loss")
    write_chart("acc.csv", TWO)
    run = by_name(".", run_name="{arm}-{seed}")["fp32-1"]
    assert run.values("loss").tolist() == run.values("val/acc").tolist() == [0.5, 0.6]
    assert run.rows == 2


@pytest.mark.parametrize(
    ("rows", "axis", "message"),
    [
        ({"precision: 32": [1, 2], "precision: bf16": [2, 3]}, "Step", "means over groups"),
        (TWO, "Relative Time (Process)", r"a chart of W&B over .* set the x axis to Step"),
        (TWO, "Wall Time", r"a chart of W&B over .* set the x axis to Step"),
    ],
)
def test_a_chart_of_means_or_over_time_is_refused_with_what_to_do(rows, axis, message):
    with pytest.raises(UserError, match=message):
        load_runs([write_chart("chart.csv", rows, axis=axis)])


FILES = {
    "*_seed{seed}.csv": {"a/x_seed7.csv": {"seed": 7}, "a/y_seed8.csv": {"seed": 8}},
    "*/{arm}/s{seed}/metrics.csv": {
        f"{arm}/s1/metrics.csv": {"arm": arm, "seed": 1} for arm in ("bf16", "fp32")
    },
    "{arm}-lr{lr}.log": {
        "amp-lr1e-3.log": {"arm": "amp", "lr": "1e-3"},
        "fp32-lr1e-4.log": {"arm": "fp32", "lr": "1e-4"},
    },
}


# Names of files


@pytest.mark.parametrize("pattern", FILES)
def test_a_pattern_reads_settings_from_the_names_of_files(tmp_path, pattern):
    for number, file in enumerate(FILES[pattern]):
        write(file, table(range(1, 4), number))
    runs = load_runs([tmp_path], run_name=pattern)
    assert [run.config for run in runs] == [*FILES[pattern].values()]


@pytest.mark.parametrize("pattern", ["fp32", "{arm}_{arm}", "*.csv"])
def test_a_pattern_without_a_key_or_with_one_twice_is_refused(pattern):
    write("amp_1.csv", TABLE)
    with pytest.raises(UserError, match=r"with each \{key\} once"):
        load_runs(["."], run_name=pattern)
    with pytest.raises(UserError, match="the sources have names, too"):
        load_runs(["fp32=."], run_name="{arm}_{seed}.csv")
