"""Runs of TensorBoard event files, CSV files and trainer_state.json, written by the libraries themselves."""

import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.fakes import plan
from support.log_templates import write
from support.logs import logged
from support.outside import Outside
from support.wandb_files import write_runs

from ampcompare import load_runs
from ampcompare.errors import UserError
from ampcompare.runs import RunRecord

tensorboard = pytest.importorskip("tensorboard")
from torch.utils.tensorboard import SummaryWriter  # noqa: E402 - it needs tensorboard


def _load(folder: Path, **options: Any) -> tuple[list[RunRecord], list[str]]:
    with logged() as messages:
        return load_runs([folder], **options), messages


def _write(folder: Path, values: dict[str, dict[int, float]], begin: float = 1000.0, name: str = "") -> None:
    """Write an event file with values one second apart, in the order of their steps."""
    pairs = sorted((step, tag, number) for tag, own in values.items() for step, number in own.items())
    with SummaryWriter(str(folder), filename_suffix=name) as writer:
        for second, (step, tag, number) in enumerate(pairs):
            writer.add_scalar(tag, number, step, walltime=begin + second)


# TensorBoard


def test_each_folder_of_pytorchs_writer_is_a_run(tmp_path):
    for seed in (0, 1):
        _write(tmp_path / f"seed{seed}", {"acc": {0: 0.5, 1: seed, 2: 0.25}})
    _write(tmp_path / "seed1", {"loss": {1: 2.0}}, begin=1001.0, name=".2")
    runs, messages = _load(tmp_path)
    assert sorted(run.name for run in runs) == [f"{tmp_path.as_posix()}/seed{seed}" for seed in (0, 1)]
    (run,) = (run for run in runs if run.name.endswith("seed1"))
    assert (run.state, run.started_at.timestamp()) == ("finished", 1000)
    assert run.values("acc").tolist() == [0.5, 1.0, 0.25]
    assert run.values("loss").tolist() == [2.0]
    assert [message.partition(";")[0] for message in messages] == ["read 2 runs from TensorBoard event files"]


def test_scalars_of_both_writers_are_columns_and_other_values_are_ignored(tmp_path):
    with SummaryWriter(str(tmp_path)) as writer:
        for step, loss in enumerate((1.0, math.nan, math.inf)):
            writer.add_scalar("loss", loss, step)
            writer.add_scalar(
                "score", step / 2, step, new_style=True, double_precision=True
            )  # TensorFlow 2's
            writer.add_scalar("anew", step)  # at one step, each in a row of its own
        writer.add_histogram("weights", np.arange(10.0), 0)
        writer.add_image("picture", np.zeros((3, 4, 4)), 0)
        writer.add_text("note", "words", 0)
        writer.add_scalars("of", {"a": 1.0, "b": 2.0}, 0)
        writer.add_hparams({"lr": 0.1, "bf16": True, "name": "x"}, {"hparam/acc": 0.9})
    (run,), _ = _load(tmp_path)
    assert {*run.history} == {"global_step", "_timestamp", "loss", "score", "anew", "of/a", "of/b"}
    assert run.values("score").tolist() == [0.0, 0.5, 1.0]
    assert run.values("anew").tolist() == [0, 1, 2]
    assert math.inf in run.values("loss").tolist()
    assert len(run.nonfinite("loss")) == 2
    assert run.config == {"lr": 0.1, "bf16": True, "name": "x"}
    assert run.summary_number("hparam/acc") == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("first", "later", "expected"),
    [
        (range(3), (2, 3), [9.0, 9.0, 1.0, 1.0]),
        (range(1, 7), (4, 5), [9.0, 9.0, 9.0, 1.0, 1.0]),  # from a checkpoint
    ],
)
def test_a_later_file_of_a_folder_continues_and_replaces_repeated_steps(tmp_path, first, later, expected):
    _write(tmp_path, {"loss": dict.fromkeys(first, 9.0)})
    (file,) = tmp_path.iterdir()
    file.rename(file.with_name("events.out.tfevents.9999999999.z"))  # names are no order
    _write(tmp_path, {"loss": dict.fromkeys(later, 1.0)}, begin=2000.0)
    (run,), _ = _load(tmp_path)
    assert run.values("loss").tolist() == expected


def test_settings_in_event_files_are_read_or_named_and_stop_nothing(tmp_path):
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata

    damaged = SummaryMetadata(plugin_data={"plugin_name": "hparams", "content": b"\xff"})
    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_text("args", '{"seed": 3, "optim": "adamw"}')  # as Hugging Face's callback does
        writer.file_writer.add_summary(Summary(value=[Summary.Value(tag="settings", metadata=damaged)]))
        writer.add_scalar("acc", 0.5, 1)
    (run,), _ = _load(tmp_path)
    assert run.values("acc").tolist() == [0.5]
    assert (run.option("seed"), run.option("optim")) == (3, "adamw")
    assert "hyperparameters" in " ".join(run.problems)


def test_without_tensorboard_the_error_says_how_to_install_it(tmp_path, outside: Outside):
    _write(tmp_path, {"acc": {0: 0.5}})
    outside.uninstall("tensorboard")
    with pytest.raises(UserError, match=r'pip install "ampcompare\[tensorboard\]"'):
        load_runs([tmp_path])


# Other people's trainers


@pytest.mark.slow
def test_lightnings_loggers_give_the_same_run(tmp_path):
    loggers = pytest.importorskip("lightning.pytorch.loggers")
    for make in (loggers.TensorBoardLogger, loggers.CSVLogger):
        logger = make(str(tmp_path / make.__name__), name="mine")
        logger.log_hyperparams({"precision": "bf16-mixed", "lr": 0.5})
        for step in range(3):
            logger.log_metrics({"train_loss": 1.0 / (step + 1), "epoch": 0}, step)
        logger.log_metrics({"val_acc": 0.75, "epoch": 0}, 2)
        logger.save()
        logger.finalize("success")
    (of_events,), _ = _load(tmp_path / "TensorBoardLogger")
    (table,), messages = _load(tmp_path / "CSVLogger")
    for run in (of_events, table):
        assert run.config == {"precision": "bf16-mixed", "lr": 0.5}
        assert run.name.endswith("mine/version_0")
        assert run.values("train_loss").tolist() == pytest.approx([1.0, 0.5, 1 / 3])
        assert run.values("val_acc").tolist() == [0.75]
        assert run.history["global_step"].max() == 2
    assert messages[0].startswith("read 1 run from CSV files with a step column")


@pytest.mark.parametrize("place", ["", "checkpoint-9", "checkpoint-10"])
def test_a_hugging_face_run_has_the_state_of_its_latest_checkpoint_and_a_settings_file(place, tmp_path):
    """The settings file lies in the output folder or in a checkpoint, at `place`."""
    rows = [{"step": 9, "eval_loss": 0.5}, {"step": 10, "eval_loss": 0.25}]
    for step in (9, 10):
        state = {"global_step": step, "log_history": rows[: step - 8]}
        write(tmp_path / f"checkpoint-{step}" / "trainer_state.json", json.dumps(state))
        write(tmp_path / f"checkpoint-{step}" / "config.json", '{"model_type": "bert"}')
    write(tmp_path / place / "hparams.yaml", "seed: 3\nprecision: bf16\n")
    (run,), _ = _load(tmp_path)
    assert run.option("seed") == (None if place == "checkpoint-9" else 3)
    assert (run.name, run.values("global_step").tolist()) == (tmp_path.as_posix(), [9, 10])
    assert run.values("eval_loss").tolist() == [0.5, 0.25]


# CSV


@pytest.mark.parametrize("name", ["config.json", "config.yaml", "args.yaml", "params.json"])
@pytest.mark.parametrize("log", ["metrics.csv", "log.jsonl"])
def test_settings_that_a_users_loop_wrote_beside_its_only_log_are_read(log, name, tmp_path):
    rows = '{"step": 1, "loss": 2}' if log.endswith("l") else "step,loss\n1,2\n"
    write(tmp_path / log, rows)
    tab = "\t" if name.endswith("json") else ""  # not all JSON is YAML
    write(tmp_path / name, f'{{\n{tab}"seed": 3,\n{tab}"eps": 1.0e-05, "optimizer": {{"lr": 0.1}}\n}}\n')
    (run,), _ = _load(tmp_path)
    assert (run.option("seed"), run.option("eps"), run.option("optimizer.lr")) == (3, 1e-5, 0.1)


def test_settings_beside_several_logs_belong_to_none(tmp_path):
    for name in ("seed0.csv", "seed1.csv"):
        write(tmp_path / name, f"step,loss\n1,{name[4]}\n")
    write(tmp_path / "config.json", '{"seed": 0}')
    runs, _ = _load(tmp_path)
    assert [run.config for run in runs] == [{}, {}]


def test_a_pattern_names_all_paths_that_match_it(tmp_path):
    for name in ("fp32_0", "fp32_1", "fp32_2", "amp_0", "amp_1", "amp_2"):
        write(tmp_path / name / "metrics.csv", f"step,loss\n1,{name[-1]}.5\n")
    runs = load_runs([f"fp32={tmp_path}/fp32_*", f"amp={tmp_path}/amp_[01]"])
    assert [run.option("arm") for run in runs] == ["fp32"] * 3 + ["amp"] * 2
    with pytest.raises(UserError, match=r"other_\*: no such folder"):
        load_runs([f"{tmp_path}/other_*"])
    write(tmp_path / "amp_[0]" / "metrics.csv", "step,loss\n1,9.5\n")  # the name of a folder
    (run,), _ = _load(tmp_path / "amp_[0]")
    assert run.values("loss").tolist() == [9.5]


BOMB = [
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("a: !!python/object/apply:os.system ['touch hacked']\nlr: 1\n", ""),
        *((text, "cannot be read") for text in ("[1, 2]", "a: [", 'a: !!int ""', "&a\nself: *a\n")),
        ("\n".join(["a: &a [1,1,1,1,1,1,1,1,1]", *BOMB]), "values"),
    ],
)
def test_hostile_settings_execute_nothing_and_become_a_problem(content, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "metrics.csv", "step,loss\n1,2\n")
    (tmp_path / "hparams.yaml").write_text(content)
    (run,), _ = _load(tmp_path)
    assert run.values("loss").tolist() == [2.0]
    assert any(says in problem for problem in run.problems) if says else run.option("lr") == 1
    assert not (tmp_path / "hacked").exists()


def _no_protobuf() -> bytes:
    """Return a complete record of an event file, with its checksums and no content."""
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    parts = (struct.pack("<Q", 3), b"\xff\xff\xff")
    return b"".join(part + struct.pack("<I", masked_crc32c(part)) for part in parts)


NOISE = bytes(range(256)) * 50
HOSTILE = {
    "events.out.tfevents.1.host": [b"", b"step,loss\n1,2\n", NOISE, struct.pack("<Q", 2**60) + b"\0" * 12],
    "metrics.csv": [
        *(b"", b"step,loss\n", b"step,loss\n1\n2,3,4,5\n", b"step,loss,loss,\n1,2,3,4\n"),
        *(NOISE, b'step,loss\n1,"2\n' + b"x," * 100_000, b"step," + b"a," * 1_000_000 + b"\n1,2\n"),
    ],
    "trainer_state.json": [
        *(b"", b"[]", b"{", b'{"log_history": 3}', b'{"log_history": [1]}'),
        b'{"global_step": 1%b, "log_history": []}' % (b"0" * 400),
    ],
}


GOOD = {
    "events.out.tfevents.1.host": "",
    "metrics.csv": "step,loss\n1,2\n",
    "trainer_state.json": '{"log_history": [{"step": 1, "loss": 2.0}]}',
}


def test_a_hostile_file_is_named_and_hides_no_other(tmp_path, subtests):
    HOSTILE["events.out.tfevents.1.host"].append(_no_protobuf())
    files = [(name, content) for name, every in HOSTILE.items() for content in every]
    for number, (name, content) in enumerate(files):
        with subtests.test(name=name, content=content[:40]):
            folder = tmp_path / f"both{number}"
            file = write(folder / "bad" / name, content)
            if GOOD[name]:
                write(folder / "good" / name, GOOD[name])
            else:
                _write(folder / "good", {"acc": {0: 0.5}})
            if name == "trainer_state.json":  # of two states the one that got further is asked for
                write(file.parent / "checkpoint-1" / name, content)
            runs, messages = _load(folder)
            good = [run for run in runs if "/good" in run.name]
            assert [run.problems for run in good] == [[]]
            bad = [run for run in runs if run not in good]
            assert all(run.problems and run.rows for run in bad)
            assert bad or any("/bad" in line and "left out" in line for line in messages)
            assert all("\n" not in line for line in messages)
            if not bad:  # nor is it anything where it is all that was named
                with pytest.raises(UserError, match=r"^[^\n]*no run can be read from it[^\n]*$"):
                    load_runs([file])


def test_wandb_records_are_preferred_and_other_logs_are_named(tmp_path):
    write_runs(tmp_path, [plan("none", seed=0)])
    path = write(tmp_path / "logs" / "metrics.csv", "step,loss\n1,2\n")
    runs, (message,) = _load(tmp_path)
    assert [run.option("backend") for run in runs] == ["none"]
    assert "there is 1 file of CSV files with a step column too, not read" in message
    (run,) = load_runs([path])
    assert run.values("loss").tolist() == [2]


@pytest.mark.parametrize("test_step", [0, 3, 4])
def test_a_fit_and_a_later_test_are_one_run(tmp_path, test_step):
    _write(tmp_path, {"loss": {1: 1.0, 2: 0.5, 3: 0.25}, "acc": {2: 0.5, 3: 0.75}})
    _write(tmp_path, {"acc": {test_step: 0.625}}, 1060, name=".test")
    (run,), _ = _load(tmp_path)
    assert run.values("loss").tolist() == [1, 0.5, 0.25]
    assert run.values("acc").tolist()[-1] == 0.625
    assert (np.diff(run.values("_timestamp")) >= 0).all()
    assert run.problems == []


STEPS = {
    "iteration": 0,
    "Step": 0,
    "_step,iteration": 1,  # `_step` counts calls of W&B's log()
    "Iteration,_step": 0,
    "_step,epoch": 0,
    "epoch,step,_step": 1,
    "iteration,train/global_step": 1,
    "step,trainer/global_step": 1,
    "epoch,total_steps,current_steps": 2,  # LLaMA-Factory
    "timestamp,training_iteration": 1,  # Ray Tune
    "time/iterations,time/total_timesteps": 1,  # Stable-Baselines3
}


def test_the_surest_of_the_usual_step_columns_counts(tmp_path: Path, subtests: pytest.Subtests):
    for columns, expected in STEPS.items():
        with subtests.test(columns):
            rows = [",".join(str(row * (n + 1)) for n in range(columns.count(",") + 1)) for row in (1, 10)]
            write(tmp_path / "log.csv", f"{columns},loss\n{rows[0]},0.5\n{rows[1]},0.5\n")
            (run,), _ = _load(tmp_path)
            assert run.values("global_step").tolist() == [expected + 1, 10 * (expected + 1)]
