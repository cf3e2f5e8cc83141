"""Which files are one run: equal bytes in one folder, Keras' folders, exports of charts. Else it is asked."""

from pathlib import Path

import pytest
from support.logs import logged

from ampcompare import load_runs
from ampcompare.errors import UserError
from ampcompare.runs import RunRecord
from ampcompare.runs.missing_input import MissingInput

ROWS = '{"step": 1, "loss": 2.5, "time": 0.21}\n{"step": 2, "loss": 1.5, "time": 0.22}\n'


def write(path: Path, text: str) -> Path:
    """Write a file and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def table(steps: range, shift: float = 0.0) -> str:
    """Return a CSV file."""
    return "\n".join(["step,loss", *(f"{step},{1 / step + shift}" for step in steps), ""])


def names(folder: Path) -> list[str]:
    """Return the names of the runs below a folder, sorted."""
    return sorted(run.name.removeprefix(f"{folder.as_posix()}/") for run in load_runs([folder]))


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
def test_equal_bytes_in_one_folder_are_one_run(tmp_path, files):
    for seed in (1, 2, 3):
        for file in files:
            text = table(range(1, 4), seed) if file.endswith("csv") else ROWS.replace("2.5", f"2.{seed}")
            write(tmp_path / f"run{seed}" / file, text)
    with logged() as messages:
        runs = load_runs([f"amp={tmp_path}"])
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
def test_equal_bytes_elsewhere_are_asked_about(tmp_path, files):
    for file in files:
        write(tmp_path / file, table(range(1, 4)))
    write(tmp_path / "other.csv", table(range(1, 4), 1))
    with pytest.raises(MissingInput, match="have the same bytes; leave out one of them") as caught:
        load_runs([f"fp32={tmp_path}", f"amp={tmp_path / 'other.csv'}"])
    assert f"amp={tmp_path / 'other.csv'}" in caught.value.arms  # the other arm stays in the command
    of_arm = [arm for arm in caught.value.arms if arm.startswith("fp32=")]
    assert len(load_runs(of_arm)) == 3
    assert len(load_runs([arm for arm in of_arm if not arm.endswith(files[1])])) == 2


def test_equal_bytes_in_two_arms_or_with_other_settings_are_two_runs(tmp_path):
    for arm in ("a", "b"):
        write(tmp_path / arm / "1" / "log.csv", table(range(1, 4)))
        write(tmp_path / arm / "2" / "log.csv", table(range(1, 4)))
        for seed in (1, 2):
            write(tmp_path / arm / str(seed) / "hparams.yaml", f"seed: {seed}\n")
    assert len(load_runs([f"{arm}={tmp_path / arm}" for arm in ("a", "b")])) == 4


# Parts of a run


@pytest.mark.parametrize(
    ("first", "second"),
    [(range(1, 9), range(8, 15)), (range(1, 9), range(9, 15)), (range(1, 5), range(2, 9))],
)
def test_a_file_that_may_continue_another_is_asked_about(tmp_path, first, second):
    write(tmp_path / "logs" / "a.csv", table(first))
    write(tmp_path / "logs" / "b.csv", table(second, 0.5))
    with pytest.raises(MissingInput, match=rf"b\.csv begins at step {second.start}, after the beginning of"):
        load_runs([f"fp32={tmp_path / 'logs'}"])
    named = [f"fp32={tmp_path / 'logs' / name}" for name in ("a.csv", "b.csv")]
    assert len(load_runs(named)) == 2
    text = "".join((tmp_path / "logs" / name).read_text() for name in ("a.csv", "b.csv"))
    (run,) = load_runs([f"fp32={write(tmp_path / 'whole.csv', text)}"], starts="joined")
    assert run.values("step").tolist() == [*range(1, second.start), *second]


def test_a_file_with_every_row_of_another_is_asked_about(tmp_path):
    write(tmp_path / "log.csv", table(range(1, 20)))
    write(tmp_path / "old" / "copy.csv", table(range(1, 8)))
    with pytest.raises(MissingInput, match=r"log\.csv has every row of .*copy\.csv"):
        load_runs([f"fp32={tmp_path}"])
    write(tmp_path / "old" / "copy.csv", table(range(1, 8), 0.25))  # another run, which ended early
    assert len(load_runs([f"fp32={tmp_path}"])) == 2


def test_keras_folders_of_event_files_are_parts_of_one_run(tmp_path):
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    for seed in (1, 2, 3):
        for part, score in (("train", 0.6), ("validation", 0.8)):
            with SummaryWriter(str(tmp_path / f"run{seed}" / part)) as writer:
                for epoch in range(3):
                    writer.add_scalar("epoch_accuracy", score + seed / 100, epoch, walltime=100.0 + epoch)
                    writer.add_scalar(f"only_{part}", 1.0, epoch, walltime=100.0 + epoch)
    runs = load_runs([tmp_path])
    assert len(runs) == 3
    last = sorted(run.values("validation/epoch_accuracy")[-1] for run in runs)
    assert last == pytest.approx([0.81, 0.82, 0.83])
    assert all({"train/epoch_accuracy", "only_train", "only_validation"} <= {*run.logged} for run in runs)


def test_files_called_train_and_test_are_runs_of_their_own(tmp_path):
    for name in ("train", "validation"):
        write(tmp_path / name / "log.csv", table(range(1, 4), len(name)))
    assert names(tmp_path) == ["train/log", "validation/log"]


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
                f"Wall time,Step,Value\n1.5,0,0.5\n2.5,1,0.{len(part)}{len(tag)}\n",
            )
    (run,) = load_runs([tmp_path])
    assert run.values("validation/epoch_accuracy").tolist() == [0.5, 0.1014]
    assert run.values("train/epoch_loss").tolist() == [0.5, 0.51]


def chart(
    path: Path, names: dict[str, list[float | None]], *, axis: str = "Step", key: str = "val/acc"
) -> Path:
    """Write W&B's export of a chart: for each run its value at the steps 10, 20, ..."""
    columns = [f"{name} - {key}{bound}" for name in names for bound in ("", "__MIN", "__MAX")]
    lines = [[axis, *columns]]
    for row, values in enumerate(zip(*names.values(), strict=True), 1):
        cells = ["" if value is None else str(value) for value in values for _ in range(3)]
        lines.append([str(10 * row), *cells])
    return write(path, "\n".join(",".join(f'"{cell}"' for cell in line) for line in lines))


def by_name(source: Path | str, **options: str) -> dict[str, RunRecord]:
    """Return the runs of a source by their names."""
    return {run.name: run for run in load_runs([source], **options)}


TWO = {"fp32-1": [0.5, 0.6], "bf16-1": [None, 0.7]}


@pytest.mark.parametrize("axis", ["Step", "trainer/global_step", "epoch"])
def test_wandbs_chart_export_has_a_column_per_run(tmp_path, axis):
    runs = by_name(chart(tmp_path / "wandb_export_2026.csv", TWO, axis=axis), run_name="{arm}-{seed}")
    assert runs["fp32-1"].values("val/acc").tolist() == [0.5, 0.6]
    assert runs["bf16-1"].values("val/acc").tolist() == [0.7]
    assert runs["bf16-1"].values("global_step").tolist() == [20]
    assert runs["fp32-1"].config == {"arm": "fp32", "seed": 1}
    assert len(load_runs([f"all={tmp_path}"])) == 2  # the source names the arm


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
    tmp_path, names, pattern, settings
):
    path = chart(tmp_path / "chart.csv", {name: [number, number + 1.0] for number, name in enumerate(names)})
    with pytest.raises(MissingInput, match="has 2 runs") as caught:
        load_runs([path])
    option, value = caught.value.arguments
    assert (option, value) == ("--run-name", "{arm}")
    assert [run.config["arm"] for run in by_name(path, run_name=value).values()] == sorted(names)
    runs = by_name(path, run_name=pattern)
    assert [runs[name].config for name in names] == settings
    for other in ("{arm}--{seed}", f"{names[0][1:-1]}{{seed}}"):  # the second fits a part of the name
        with pytest.raises(UserError, match="does not match"):
            load_runs([path], run_name=other)


def test_two_charts_of_the_same_runs_are_joined(tmp_path):
    chart(tmp_path / "loss.csv", TWO, key="loss")
    chart(tmp_path / "acc.csv", TWO)
    run = by_name(tmp_path, run_name="{arm}-{seed}")["fp32-1"]
    assert run.values("loss").tolist() == run.values("val/acc").tolist() == [0.5, 0.6]
    assert run.rows == 2


def test_a_chart_of_group_means_is_refused(tmp_path):
    with pytest.raises(UserError, match="means over groups"):
        load_runs([chart(tmp_path / "chart.csv", {"precision: 32": [1.0], "precision: bf16": [2.0]})])


@pytest.mark.parametrize("axis", ["Relative Time (Process)", "Wall Time"])
def test_a_chart_over_time_is_refused_with_what_to_do(tmp_path, axis):
    with pytest.raises(UserError, match=r"a chart of W&B over .* set the x axis to Step"):
        load_runs([chart(tmp_path / "chart.csv", TWO, axis=axis)])


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
        write(tmp_path / file, table(range(1, 4), number))
    assert [run.config for run in load_runs([tmp_path], run_name=pattern)] == settings


@pytest.mark.parametrize("pattern", ["fp32", "{arm}_{arm}", "*.csv"])
def test_a_pattern_without_a_key_or_with_one_twice_is_refused(tmp_path, pattern):
    write(tmp_path / "a.csv", table(range(1, 4)))
    with pytest.raises(UserError, match=r"expected a pattern with each \{key\} once"):
        load_runs([tmp_path], run_name=pattern)


def test_sources_and_a_pattern_do_not_both_name_the_arm(tmp_path):
    write(tmp_path / "amp_1.csv", table(range(1, 4)))
    with pytest.raises(UserError, match="the sources have names, too"):
        load_runs([f"fp32={tmp_path}"], run_name="{arm}_{seed}.csv")
    (run,) = load_runs([f"fp32={tmp_path}"], run_name="*_{seed}.csv")
    assert run.config == {"arm": "fp32", "seed": 1}
