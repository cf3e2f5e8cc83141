from __future__ import annotations

import math

import pytest
from support.fakes import make

from ampcompare.report import analyse_runs
from ampcompare.report.runs.figures import figures_of, label_of


def test_figures_come_from_the_summary():
    figures = figures_of(make("native", 3))
    assert figures.images_per_second == 76.0 * 0.99
    assert figures.peak_mib == 5400.0
    assert figures.skipped_steps == 3
    assert figures.best_epoch == 5
    assert figures.epochs == 5
    assert (figures.device, figures.device_type, figures.seed) == ("Test Device 9000", "cuda", 3)


def test_crashed_run_falls_back_on_its_history():
    def crash(plan):
        plan["rows"] = plan["rows"][:20]

    run = make("native", edit=crash, summary=False, state="crashed")
    figures = figures_of(run)
    assert figures.images_per_second == run.history["throughput/images_per_second"].median()
    assert figures.best_accuracy == figures.quality == run.values("eval/accuracy").max()
    assert figures.best_epoch == 2
    assert figures.skipped_steps == 3
    assert figures.step_time_ms_p95 is None


def test_rows_of_the_warm_up_are_in_no_throughput_and_no_step_time():
    """Of somebody's loop under the recorder, whose summary says neither."""

    def slow_until_150(plan):
        plan["config"] |= {"log": {"warmup_steps": 150}}
        for row in plan["rows"]:
            if "train/loss" in row and row["global_step"] <= 150:
                row |= {"throughput/images_per_second": 1.0, "throughput/step_time_ms": 128_000.0}

    (group,) = analyse_runs([make("native", edit=slow_until_150, summary=False)]).groups
    assert group.means["images_per_second"].value == pytest.approx(76, rel=0.05)
    assert group.step_times["intervals"] == 9  # at steps 155, 160, ..., 195
    assert group.step_times["p95"] < 2000


def test_summary_without_a_finite_number_falls_back_on_the_history():
    def spoil(plan):
        plan["summary"]["best/eval_accuracy"] = math.nan

    run = make("none", edit=spoil)
    assert figures_of(run).best_accuracy == run.values("eval/accuracy").max()


def test_losses_that_are_not_finite_are_counted_from_their_first_step():
    def spoil(plan):
        plan["rows"][4]["train/loss"] = "NaN"
        plan["rows"][6]["train/loss"] = math.inf

    figures = figures_of(make("native", edit=spoil))
    assert (figures.nan_losses, figures.nan_from) == (2, 20.0)


def test_environment_in_the_config_stands_in_for_a_killed_run():
    def kill(plan):
        plan["config"]["environment"] = plan["summary"].pop("environment")

    assert figures_of(make("none", edit=kill)).device == "Test Device 9000"


def test_label_names_what_is_compared(subtests: pytest.Subtests):
    for backend, precision, label in [
        ("native", {"dtype": "float16"}, "native"),
        ("native", {"dtype": "bfloat16"}, "native_bf16"),
        ("native_bf16", {"dtype": "bfloat16"}, "native_bf16"),
        ("native_bf16", {}, "native_bf16"),
        ("apex_o1", {"dtype": "bfloat16"}, "apex_o1_bf16"),
        ("bf16", {"dtype": "bfloat16"}, "bf16"),
        ("bf16_sr", {"dtype": "bfloat16"}, "bf16_sr"),
        ("native", {"dtype": ["bfloat16"]}, "native"),
        ("none", {"dtype": "bfloat16", "enabled": False}, "none"),
        ("apex_o1", {"enabled": False}, "none"),
        ("new", {}, "new"),
        (None, {}, "unknown"),
        (3, {}, "unknown"),
    ]:
        with subtests.test(backend=backend, precision=precision, label=label):
            run = make("none", config={"backend": backend, "precision": precision})
            assert label_of(run) == label


@pytest.mark.parametrize(
    ("recorded", "label"),
    [
        ({"backend_label": "mine", "backend_type": "bfloat16"}, "mine"),
        ({"backend_label": "mine", "backend_type": "float16"}, "mine"),
        ({}, "./mine.py:Mine"),  # a record from before plug-ins had a label
        ({"backend_label": ["mine"], "backend_type": 3, "backend_words": {}}, "./mine.py:Mine"),
        ({"backend_label": "\x1b[31mmine\n"}, "\ufffd[31mmine\ufffd"),
    ],
)
def test_a_plug_in_has_its_own_label_whatever_its_record_holds(recorded, label):
    def edit(plan):
        plan["config"] |= {"backend": "./mine.py:Mine", "precision": {"dtype": "bfloat16"}}
        plan["summary"]["environment"] |= recorded

    assert label_of(make("none", edit=edit)) == label
