"""Speed, memory, energy and metric of other programs' runs: under any name, or from W&B's samples."""

from dataclasses import replace

import numpy as np
import pytest
from support.foreign import FULL, MEMORY, MIXED, foreign, sampled, several

from ampcompare import analyse_runs
from ampcompare.errors import UserError
from ampcompare.records.machine import Machine
from ampcompare.report.text import to_markdown

RATE = "samples_per_sec"
ASKED = {"metric": "val_acc", "throughput": "samples_per_sec", "memory": "gpu_mem"}


def figure(analysis, name: str, place: int = 0) -> float:
    return analysis.groups[place].figures[name].value


def speedup(analysis) -> float:
    return analysis.comparison(MIXED).estimates["speed"].value


def test_asked_or_guessed_the_figures_are_the_same():
    asked = analyse_runs(several(), "32-true", group_by=["trainer.precision"], **ASKED)
    guessed = analyse_runs(several())
    ours, theirs = asked.comparison(MIXED), guessed.comparison(MIXED)
    assert ours.estimates == theirs.estimates
    assert speedup(asked) == pytest.approx(1.8, rel=0.02)
    assert ours.estimates["memory"].value == pytest.approx(MEMORY[MIXED] / MEMORY[FULL])
    took = next(note for note in guessed.notes if note.startswith("Took "))
    for what in ("trainer.precision", "32-true", "val_acc as the metric", "samples_per_sec", "gpu_mem"):
        assert what in took
    assert not any(note.startswith("Took ") for note in asked.notes)


@pytest.mark.parametrize(
    ("what", "name", "value", "shown", "unit"),
    [
        ("memory", "mem_bytes", 2**30, 1024, "MiB"),
        ("memory", "peak_mem_mib", 512, 512, "MiB"),
        ("memory", "gpu_memory_gib", 2, 2048, "MiB"),
        ("memory", "gpu_memory_gb", 1.048576, 1000, "MiB"),
        ("memory", "odd", 77, 77, ""),
        ("throughput", "step_time_ms", 20.0, 50, "steps/s"),  # a duration is turned round
        ("throughput", "step_time", 0.02, 50, "steps/s"),
        ("throughput", "odd", 77, 77, "odd"),
    ],
)
def test_a_figure_is_in_the_unit_that_its_name_says(what, name, value, shown, unit):
    own, figure_name = {"memory": ("gpu_mem", "peak_mib"), "throughput": (RATE, "images_per_second")}[what]
    for asked in (None, name) if name != "odd" else (name,):
        analysis = analyse_runs(several(logs={name: value}, without=(own,)), **{what: asked})
        assert figure(analysis, figure_name) == pytest.approx(shown)
        said = {"memory": analysis.quantities.memory, "throughput": analysis.quantities.speed}[what]
        assert (said, unit in to_markdown(analysis)) == (unit, True)


def test_without_a_throughput_speed_is_taken_from_the_moments_of_steps_without_the_evaluations():
    runs = [foreign(p, s, without=("samples_per_sec",)) for p in (FULL, MIXED) for s in (1, 2, 3)]
    analysis = analyse_runs(runs)
    speeds = [figure(analysis, "images_per_second", n) for n in (0, 1)]
    assert speeds == pytest.approx([20.0, 36.0])  # 10 steps in 0.5 s, 3 s of evaluation left out
    for run in runs:  # the step behind the last batch is counted with the evaluation: 3.5 s for its steps
        run.logged["step"][1][np.isfinite(run.numbers("val_acc"))] += 2
    assert figure(analyse_runs(runs), "images_per_second") == pytest.approx(18.0)
    assert (analysis.quantities.speed, speedup(analysis)) == ("steps/s", pytest.approx(1.8))
    assert any("is taken from the moments of rows" in c for c in analysis.remarks)


def test_a_row_an_epoch_is_counted_in_epochs_and_without_either_no_speed_is_given():
    rows = several(without=("samples_per_sec", "step"))
    epochs = [run.adding({"epoch": np.arange(float(run.rows))}) for run in rows]
    analysis = analyse_runs(epochs)
    assert (analysis.quantities.speed, analysis.quantities.step) == ("epochs/s", "epoch")
    assert "speed" in analysis.comparison(MIXED).estimates
    without = analyse_runs(rows)
    assert "speed" not in without.comparison(MIXED).estimates
    assert any("--throughput KEY takes one of those logged: gpu_mem, " in said for said in without.remarks)


def test_a_pause_before_a_run_was_resumed_is_no_training_time():
    def resumed(run):
        half, seconds = run.rows // 2, run.numbers("_runtime")
        seconds[half:] -= seconds[half - 1]
        return run.adding({"_runtime": seconds})

    before, after = analyse_runs(several()), analyse_runs([resumed(run) for run in several()])
    for old, new in zip(before.table["train_seconds"], after.table["train_seconds"], strict=True):
        assert 0 <= old - new <= 0.5  # but for the first interval behind the pause
    assert not after.table["clock_jumps"].any()


@pytest.mark.parametrize(
    ("column", "value", "mib"),
    [
        ("gpu.process.0.memoryAllocatedBytes", 3 * 2**30, 3072),
        ("gpu.0.memoryAllocatedBytes", 3 * 2**30, 3072),
        ("proc.memory.rssMB", 700.0, 700),
    ],
)
def test_memory_that_nobody_logged_is_from_the_samples_of_wandb(column, value, mib):
    machine = sampled(**{column: value})
    analysis = analyse_runs(several(without=("gpu_mem",), machine=machine))
    assert figure(analysis, "peak_mib") == pytest.approx(mib)
    assert any("W&B's own samples" in c for c in analysis.remarks)
    assert figure(analyse_runs(several(machine=machine)), "peak_mib") == pytest.approx(MEMORY[FULL])


def test_somebody_elses_backend_of_the_same_name_is_read_as_theirs():
    runs = several(config={"trainer": None})
    words = {FULL: "none", MIXED: "bf16"}
    runs = [replace(r, config=r.config | {"backend": words[r.name.rpartition("-")[0]]}) for r in runs]
    early = replace(runs[-1], id="early", rows=0, logged={}, summary={}, state="crashed", exit_code=1)
    analysis = analyse_runs([*runs, early])
    assert (analysis.metric.key, analysis.keys, analysis.baseline_value) == ("val_acc", ("backend",), "none")
    assert analysis.comparison("bf16").estimates["speed"].value == pytest.approx(1.8, rel=0.02)


def test_the_machine_that_wandb_saw_sets_runs_apart_but_not_one_that_died_early():
    def on(name: str) -> Machine:
        return Machine({}, {"device_name": name, "device_type": "cuda"})

    early = replace(foreign(MIXED, 4, steps=2, state="crashed", exit_code=None), machine=Machine())
    analysis = analyse_runs([*several(machine=on("A100")), early])
    assert {g.label: len(g.all_rows) for g in analysis.groups} == {FULL: 3, MIXED: 4}
    assert analysis.groups[1].outcomes.failed == 1
    runs = [foreign(p, s, machine=on("A" if p == FULL else "B")) for p in (FULL, MIXED) for s in (1, 2)]
    assert "speed" not in analyse_runs(runs).comparison(MIXED).estimates


def test_a_training_loss_that_is_nan_at_last_is_a_failure_under_any_name():
    runs = several()
    runs[1].logged["train_loss"] = np.array([runs[1].rows - 2]), np.array([np.nan])
    assert [g.outcomes.failed for g in analyse_runs(runs).groups] == [0, 1]


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        ({"throughput": "nothing"}, "--throughput 'nothing': no run has it as a number"),
        ({"memory": "gpu_men"}, "--memory 'gpu_men': no run has it as a number; did you mean gpu_mem"),
        ({"metric": "val_ac"}, "--metric 'val_ac': no run has it; did you mean val_acc"),
        ({"metric": "gpu_mem:percent"}, "--metric gpu_mem:percent: it is logged as"),
        ({"metric": "train_loss:percent"}, "--metric train_loss:percent: a loss is no share"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_there_is(asked, word):
    with pytest.raises(UserError) as caught:
        analyse_runs(several(), **asked)
    assert word in caught.value.lines[0]
    assert "throughput/" not in caught.value.lines[0]  # only what they logged themselves
    assert len(caught.value.lines) == 1
    with pytest.raises(UserError, match=r"--metric: .* cannot be told; .*logged: .*gpu_mem"):
        analyse_runs(several(without=("val_acc", "train_loss")))


def test_the_metric_is_the_one_that_is_named_or_the_accuracy_of_an_evaluation(subtests: pytest.Subtests):
    best = {"metric_for_best_model": "f1"}
    for logs, config, taken in [
        ({"val_loss": 1.0}, None, "val_acc"),
        ({"eval/accuracy": 0.9}, None, "eval/accuracy"),
        ({"val_top5": 0.9, "val_acc_top1": 0.5}, None, "val_acc"),
        ({"eval/f1": 0.5}, best, "eval/f1"),  # by which a trainer picks its best model
    ]:
        with subtests.test(logs=logs):
            assert analyse_runs(several(logs=logs, config=config)).metric.key == taken
    swept = [replace(run, objective=("train_loss", "minimize")) for run in several()]
    metric = analyse_runs(swept).metric
    assert (metric.key, metric.falls) == ("train_loss", True)
    assert analyse_runs(swept, metric="val_acc").metric.key == "val_acc"


def test_goal_and_unit_are_said_behind_the_key_of_the_metric():
    runs = several(logs={"foo": 1.0, "a:max": 7.0})
    said = "Whether more or less foo is better is not known"
    assert any(c.startswith(said) for c in analyse_runs(runs, metric="foo").remarks)
    analysis = analyse_runs(runs, metric="foo:min")
    assert analysis.metric.falls
    assert not any(c.startswith(said) for c in analysis.remarks)
    assert analyse_runs(runs, metric="a:max").metric.key == "a:max"  # a key as it stands
    runs = [run.adding({"score": run.numbers("val_acc") * 100}) for run in several()]
    score = analyse_runs(runs, metric="score:max:percent", margin=1.0)
    assert (score.metric.unit, score.metric.tolerance) == ("points", "1 point")
    accuracy = analyse_runs(several(), metric="val_acc", margin=1.0)
    ours, theirs = (a.comparison(MIXED).estimates["quality"].value for a in (score, accuracy))
    assert ours == pytest.approx(theirs)
