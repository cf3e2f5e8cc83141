"""Speed, memory, energy and metric of other programs' runs: under any name, or from W&B's samples."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from support.fakes import with_history
from support.foreign import FULL, MEMORY, MIXED, foreign, sampled, several

from ampcompare.errors import UserError
from ampcompare.records.machine import Machine
from ampcompare.report import analyse_runs
from ampcompare.report.as_json import to_json
from ampcompare.report.markdown import to_markdown
from ampcompare.report.page.render import render_page

ASKED = {"metric": "val_acc", "throughput": "samples_per_sec", "memory": "gpu_mem"}


def test_asked_or_guessed_the_figures_are_the_same():
    asked = analyse_runs(several(), "32-true", group_by=["trainer.precision"], **ASKED)
    guessed = analyse_runs(several())
    ours, theirs = asked.comparison(MIXED), guessed.comparison(MIXED)
    assert ours.speed == theirs.speed
    assert ours.speedup == pytest.approx(1.8, rel=0.02)
    assert ours.memory.value == pytest.approx(MEMORY[MIXED] / MEMORY[FULL])
    assert ours.quality == theirs.quality
    assert ours.is_equivalent
    took = next(note for note in guessed.verdict.notes if note.startswith("Took "))
    for what in ("trainer.precision", "32-true", "val_acc as the metric", "samples_per_sec", "gpu_mem"):
        assert what in took
    assert not any(note.startswith("Took ") for note in asked.verdict.notes)


@pytest.mark.slow
def test_every_output_counts_in_what_was_logged():
    analysis = analyse_runs(several())
    page, table = render_page(analysis).decode(), to_markdown(analysis)
    assert "samples/s" in table
    for text in (page.partition("<script")[0], table, to_json(analysis)):
        assert "images/s" not in text
        assert "MiB" not in text  # `gpu_mem` says no unit
    units = {"throughput": "samples/s", "memory": None, "energy": "J per sample"}
    assert json.loads(to_json(analysis))["units"] == units


@pytest.mark.parametrize(
    ("name", "value", "mib"),
    [("mem_bytes", 2**30, 1024), ("peak_mem_mib", 512, 512), ("gpu_memory_gib", 2, 2048), ("mem", 77, 77)],
)
def test_memory_is_in_mib_where_its_name_says_a_unit(name, value, mib):
    analysis = analyse_runs(several(logs={name: value}, without=("gpu_mem",)), memory=name)
    assert analysis.groups[0].means["peak_mib"].value == pytest.approx(mib)
    assert analysis.quantities.memory == ("" if name == "mem" else "MiB")


def test_a_duration_of_a_step_is_turned_into_steps_a_second():
    runs = several(logs={"step_time_ms": 20.0}, without=("samples_per_sec",))
    analysis = analyse_runs(runs, throughput="step_time_ms")
    assert analysis.groups[0].means["images_per_second"].value == pytest.approx(50)
    assert analysis.quantities.speed == "steps/s"


def test_without_a_throughput_speed_is_taken_from_the_moments_of_steps_without_the_evaluations():
    analysis = analyse_runs(several(without=("samples_per_sec",)))
    speed = {g.label: g.means["images_per_second"].value for g in analysis.groups}
    assert speed == {FULL: pytest.approx(20.0), MIXED: pytest.approx(36.0)}  # 10 steps in 0.5 s
    assert analysis.quantities.speed == "steps/s"
    assert analysis.comparison(MIXED).speedup == pytest.approx(1.8)
    assert any("speed is taken from the moments" in c for c in analysis.verdict.cautions)


@pytest.mark.parametrize(
    ("config", "samples"), [({"batch_size": 32}, 32), ({"batch_size": 8, "grad_accum_steps": 4}, 32)]
)
def test_samples_a_second_need_a_batch_size(config, samples):
    analysis = analyse_runs(several(without=("samples_per_sec",), config=config))
    assert analysis.groups[0].means["images_per_second"].value == pytest.approx(20.0 * samples)
    assert analysis.quantities.speed == "samples/s"


def rows_alone(run, every=1):
    """The run with one row of training in so many, and no step but W&B's own."""
    rows = run.history[run.history["train_loss"].notna()].iloc[::every].reset_index(drop=True)
    rows = rows.assign(_step=np.arange(float(len(rows))), val_acc=0.9)
    return with_history(run, rows.drop(columns=["step", "samples_per_sec"]), summary={})


def test_without_a_step_speed_is_in_rows_whatever_the_batch_size():
    analysis = analyse_runs([rows_alone(run) for run in several(config={"batch_size": 32})])
    assert analysis.quantities.speed == "rows/s"
    assert analysis.comparison(MIXED).speedup == pytest.approx(1.15, rel=0.05)  # evaluations are in it
    assert any("a row is as many steps in each" in c for c in analysis.verdict.cautions)


def test_without_a_step_no_speed_is_given_where_runs_log_more_or_less_often():
    analysis = analyse_runs([rows_alone(r, 1 if "bf16" in r.name else 4) for r in several()])
    assert analysis.comparison(MIXED).speed is None
    assert any("10 to 40 rows, so that no speed is given" in c for c in analysis.verdict.cautions)


def test_a_pause_before_a_run_was_resumed_is_no_training_time():
    def resumed(run):
        half, seconds = run.rows // 2, run.numbers("_runtime")
        seconds[half:] -= seconds[half - 1]
        stamps = run.numbers("_timestamp")
        stamps[half:] += 86_400
        return run.adding({"_runtime": seconds, "_timestamp": stamps})

    before, after = analyse_runs(several()), analyse_runs([resumed(run) for run in several()])
    for was, group in zip(before.groups, after.groups, strict=True):
        for one, other in zip(was.runs, group.runs, strict=True):
            assert other.train_seconds == pytest.approx(one.train_seconds)
            assert not other.clock_jumps


@pytest.mark.parametrize(("name", "is_said"), [("step_time", True), ("step_time_s", False)])
def test_a_duration_without_a_unit_is_said_to_be_taken_as_seconds(name, is_said):
    analysis = analyse_runs(several(logs={name: 0.02}, without=("samples_per_sec",)))
    assert any("taken as seconds" in note for note in analysis.verdict.notes) is is_said


@pytest.mark.parametrize(
    ("column", "value", "mib"),
    [
        ("gpu.process.0.memoryAllocatedBytes", 3 * 2**30, 3072),
        ("gpu.0.memoryAllocatedBytes", 3 * 2**30, 3072),
        ("proc.memory.rssMB", 700.0, 700),
    ],
)
def test_memory_that_nobody_logged_is_from_the_samples_of_wandb(column, value, mib):
    machine = sampled(**{column: [0.0, value, value / 2]})
    analysis = analyse_runs(several(without=("gpu_mem",), machine=machine))
    assert analysis.groups[0].means["peak_mib"].value == pytest.approx(mib)
    assert any("W&B's own samples" in c for c in analysis.verdict.cautions)
    logged = analyse_runs(several(machine=machine))
    assert logged.groups[0].means["peak_mib"].value == pytest.approx(MEMORY[FULL])


def test_somebody_elses_backend_of_the_same_name_is_read_as_theirs():
    runs = several(config={"trainer": None})
    words = {FULL: "none", MIXED: "bf16"}
    runs = [replace(r, config=r.config | {"backend": words[r.name.rpartition("-")[0]]}) for r in runs]
    early = replace(runs[-1], id="early", rows=0, logged={}, summary={}, state="crashed", exit_code=1)
    analysis = analyse_runs([*runs, early])
    assert (analysis.metric.key, analysis.keys, analysis.baseline_value) == ("val_acc", ("backend",), "none")
    assert analysis.comparison("bf16").speedup == pytest.approx(1.8, rel=0.02)


def test_energy_is_the_power_that_wandb_sampled_over_the_throughput():
    machine = sampled(**{"gpu.0.powerWatts": [200.0, 300.0], "gpu.1.powerWatts": [50.0, 50.0]})
    analysis = analyse_runs(several(machine=machine))
    full = analysis.groups[0].means
    assert full["joules_per_image"].value == pytest.approx(300 / full["images_per_second"].value, rel=0.01)
    assert analysis.quantities.energy == "J per sample"
    assert analysis.comparison(MIXED).energy is not None


def test_a_run_that_died_before_it_said_its_machine_stays_with_its_fellows():
    machine = Machine({}, {"device_name": "NVIDIA A100", "device_type": "cuda"})
    early = foreign(MIXED, 4, steps=2, state="crashed", exit_code=None)
    analysis = analyse_runs([*several(machine=machine), early])
    assert {g.label: len(g.runs) for g in analysis.groups} == {FULL: 3, MIXED: 4}
    assert len(analysis.groups[1].outcomes.failed) == 1


def test_on_two_devices_no_speed_is_compared():
    def on(name: str) -> Machine:
        return Machine({}, {"device_name": name, "device_type": "cuda"})

    runs = [foreign(p, s, machine=on("A" if p == FULL else "B")) for p in (FULL, MIXED) for s in (1, 2)]
    analysis = analyse_runs(runs)
    assert analysis.comparison(MIXED).speed is None
    assert any("Values of trainer.precision ran on different devices" in c for c in analysis.verdict.cautions)


def test_a_training_loss_that_is_nan_at_last_is_a_failure_under_any_name():
    runs = several()
    runs[1].logged["train_loss"] = np.array([runs[1].rows - 2]), np.array([np.nan])
    analysis = analyse_runs(runs)
    assert [len(g.outcomes.failed) for g in analysis.groups] == [0, 1]
    assert not analysis.comparison(MIXED).is_equivalent


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        ({"throughput": "nothing"}, "--throughput 'nothing': no run has it as a number"),
        ({"memory": "gpu_men"}, "--memory 'gpu_men': no run has it as a number; did you mean gpu_mem"),
        ({"metric": "val_ac"}, "--metric 'val_ac': no run has it; did you mean val_acc"),
        ({"unit": "percents"}, "--unit 'percents': expected percent"),
        ({"goal": "up"}, "--goal 'up': expected maximize or minimize"),
        ({"metric": "gpu_mem", "unit": "percent"}, "--unit percent: gpu_mem is logged as"),
        ({"metric": "val_acc:min", "goal": "maximize"}, "say it once"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_there_is(asked, word):
    with pytest.raises(UserError) as caught:
        analyse_runs(several(), **asked)
    assert word in caught.value.lines[0]
    assert "throughput/" not in caught.value.lines[0]  # only what they logged themselves
    assert len(caught.value.lines) == 1


def test_runs_without_any_score_name_what_they_logged():
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


def test_a_metric_of_unknown_direction_is_said_and_can_be_turned_round():
    runs = several(logs={"foo": 1.0})
    said = "Whether more or less foo is better is not known"
    assert any(c.startswith(said) for c in analyse_runs(runs, metric="foo").verdict.cautions)
    for asked in ({"metric": "foo", "goal": "minimize"}, {"metric": "foo:min"}):
        analysis = analyse_runs(runs, **asked)
        assert analysis.metric.falls
        assert not any(c.startswith(said) for c in analysis.verdict.cautions)


def test_percent_is_read_as_asked_and_the_margin_is_in_the_shown_unit():
    def in_percent(run):
        return replace(run.adding({"score": run.numbers("val_acc") * 100}), summary={})

    runs = [in_percent(run) for run in several()]
    analysis = analyse_runs(runs, metric="score", unit="percent", margin=1.0, goal="maximize")
    assert (analysis.metric.unit, analysis.metric.tolerance) == ("points", "1 point")
    fraction = analyse_runs(runs, metric="val_acc", margin=1.0)
    assert analysis.comparison(MIXED).quality.value == pytest.approx(fraction.comparison(MIXED).quality.value)


def test_of_runs_in_other_units_of_one_metric_nothing_is_said_until_somebody_says_the_unit():
    def in_percent(run):
        return replace(run.adding({"val_acc": run.numbers("val_acc") * 100}), summary={})

    runs = [in_percent(run) if "bf16" in run.name else run for run in several()]
    analysis = analyse_runs(runs)
    assert (analysis.comparison(MIXED).quality, analysis.target) == (None, None)
    (said,) = [c for c in analysis.verdict.cautions if "nothing is said of theirs" in c]
    assert said.startswith("val_acc is in percent in some runs and lies in 0 to 1 in 32-true-1, ")
    assert analyse_runs(runs, unit="percent").comparison(MIXED).quality.value > 80
    assert analyse_runs([in_percent(run) for run in several()]).comparison(MIXED).quality is not None
