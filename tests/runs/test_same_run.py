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
    write("whole.csv", Path("logs/a.csv").read_text() + Path("logs/b.csv").read_text())
    (run,) = load_runs(["fp32=whole.csv"], starts="joined")
    assert run.values("step").tolist() == [*range(1, second.start), *second]


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

    for seed in (1, 2, 3):
        for part, score in (("train", 0.6), ("validation", 0.8)):
            with SummaryWriter(f"run{seed}/{part}") as writer:
                for epoch in range(3):
                    writer.add_scalar("epoch_accuracy", score + seed / 100, epoch, walltime=100.0 + epoch)
                    writer.add_scalar(f"only_{part}", 1.0, epoch, walltime=100.0 + epoch)
    runs = load_runs(["."])
    last = sorted(run.values("validation/epoch_accuracy")[-1] for run in runs)
    assert last == pytest.approx([0.81, 0.82, 0.83])
    assert all({"train/epoch_accuracy", "only_train", "only_validation"} <= {*run.logged} for run in runs)


def test_files_called_train_and_test_are_runs_of_their_own():
    for name in ("train", "validation"):
        write(f"{name}/log.csv", table(range(1, 4), len(name)))
    assert sorted(run.name for run in load_runs(["."])) == ["train/log", "validation/log"]


# Exports with one file per tag, or one column per run


def test_tensorboards_downloads_are_one_run_with_a_column_per_tag():
    for name, second in (("fp32_seed1", 0), ("fp32_seed2", 90)):
        times = [f"{1700000000.5 + step + second},{step}" for step in (1, 2, 3)]
        rows = [f"{time},0.{step}" for step, time in enumerate(times)]
        write(f"run-{name}-tag-train_loss.csv", "\n".join(["Wall time,Step,Value", *rows]))
        write(f"run-{name}-tag-val_acc.csv", "\n".join(["Wall time,Step,Value", *rows[1:]]))
    runs = load_runs(["."])
    assert sorted(Path(run.name).name for run in runs) == ["fp32_seed1", "fp32_seed2"]
    assert all(run.values("val_acc").tolist() == [0.1, 0.2] for run in runs)
    assert [run.rows for run in runs] == [3, 3]
    assert sorted(run.values("_timestamp")[0] for run in runs) == [1700000001.5, 1700000091.5]


def test_tensorboards_downloads_of_keras_folders_are_one_run():
    for part in ("train", "validation"):
        for tag in ("epoch_loss", "epoch_accuracy"):
            text = f"Wall time,Step,Value\n1.5,0,0.5\n2.5,1,0.{len(part)}{len(tag)}\n"
            write(f"run-fp32_1_{part}-tag-{tag}.csv", text)
    (run,) = load_runs(["."])
    assert run.values("validation/epoch_accuracy").tolist() == [0.5, 0.1014]
    assert run.values("train/epoch_loss").tolist() == [0.5, 0.51]


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
    assert runs["fp32-1"].config == {"arm": "fp32", "seed": 1}
    assert len(load_runs(["all=."])) == 2  # the source names the arm


@pytest.mark.parametrize(
    ("names", "pattern", "settings"),
    [
        (
            ("adam_lr_0.1", "adam_lr_0.01"),
            "{arm}_lr_{lr}",
            [{"arm": "adam", "lr": 0.1}, {"arm": "adam", "lr": 0.01}],
        ),
        (
            ("resnet18/bf16 seed 3", "resnet50/bf16 seed 3"),
            "{model}/{arm} seed {seed}",
            [{"model": f"resnet{depth}", "arm": "bf16", "seed": 3} for depth in (18, 50)],
        ),
        (
            ("sunny-cloud-17 (fp16)", "wild-fog-18 (tf32)"),
            "*({arm})",
            [{"arm": "fp16"}, {"arm": "tf32"}],
        ),
    ],
)
def test_a_run_of_a_chart_is_its_whole_name_and_only_a_pattern_reads_settings_from_it(
    names, pattern, settings
):
    path = write_chart("chart.csv", {name: [1, 2] for name in names})
    with pytest.raises(MissingInput, match="has 2 runs") as caught:
        load_runs([path])
    assert caught.value.arguments == ("--run-name", "{arm}")
    assert {run.config["arm"] for run in load_runs([path], run_name="{arm}")} == {*names}
    runs = by_name(path, run_name=pattern)
    assert [runs[name].config for name in names] == settings
    for other in ("{arm}--{seed}", f"{names[0][1:-1]}{{seed}}"):  # the second fits a part of the name
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


# Names of files


@pytest.mark.parametrize(
    ("files", "pattern", "settings"),
    [
        (("a/x_seed7.csv", "a/y_seed8.csv"), "*_seed{seed}.csv", [{"seed": 7}, {"seed": 8}]),
        (
            ("bf16/s1/metrics.csv", "fp32/s1/metrics.csv"),
            "*/{arm}/s{seed}/metrics.csv",
            [{"arm": "bf16", "seed": 1}, {"arm": "fp32", "seed": 1}],
        ),
        (
            ("amp-lr1e-3.log", "fp32-lr1e-4.log"),
            "{arm}-lr{lr}.log",
            [{"arm": "amp", "lr": "1e-3"}, {"arm": "fp32", "lr": "1e-4"}],
        ),
    ],
)
def test_a_pattern_reads_settings_from_the_names_of_files(tmp_path, files, pattern, settings):
    for number, file in enumerate(files):
        write(file, table(range(1, 4), number))
    assert [run.config for run in load_runs([tmp_path], run_name=pattern)] == settings


@pytest.mark.parametrize(
    ("source", "pattern", "message"),
    [
        *((".", pattern, r"with each \{key\} once") for pattern in ("fp32", "{arm}_{arm}", "*.csv")),
        ("fp32=.", "{arm}_{seed}.csv", "the sources have names, too"),
    ],
)
def test_a_pattern_without_a_key_or_with_one_twice_is_refused(source, pattern, message):
    write("amp_1.csv", TABLE)
    with pytest.raises(UserError, match=message):
        load_runs([source], run_name=pattern)
    (run,) = load_runs(["fp32=."], run_name="*_{seed}.csv")
    assert run.config == {"arm": "fp32", "seed": 1}
