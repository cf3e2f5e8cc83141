"""`wandb sweep` and `wandb agent`, the real ones, against the stand-in server."""

from __future__ import annotations

import pytest

from ampcompare import metrics

pytestmark = pytest.mark.slow


def test_each_run_of_the_comparison_has_its_backend_and_the_sweep_as_group(sweeps):
    scene = sweeps["compare"]
    assert scene.exit_code == 0, scene.output
    assert [run.state for run in scene.runs] == ["finished"] * 3
    assert [run.config["backend"] for run in scene.runs] == ["none", "native", "apex_o1"]
    assert {run.config["seed"] for run in scene.runs} == {223}
    assert {(run.group, run.sweep.id) for run in scene.runs} == {(scene.sweep.id, scene.sweep.id)}
    assert {run.job_type for run in scene.runs} == {"train"}
    assert all("eval/accuracy" in run.summary for run in scene.runs)
    assert scene.sweep.state == "FINISHED"
    assert "WARNING" not in scene.output


def test_booleans_none_floats_lists_and_nested_parameters_reach_the_config_intact(sweeps):
    scene = sweeps["values"]
    (run,) = scene.runs
    assert run.state == "finished", scene.output
    config = run.config
    assert config["deterministic"] is True
    assert config["max_steps"] is None
    assert config["data"]["augment"] is False
    assert config["data"]["train_limit"] == 32  # what the sweep says nothing of stays
    given = {"lr": 1.5e-05, "momentum": 0.9, "nesterov": True}
    assert config["optimizer"].items() >= given.items()
    assert config["optimizer"]["name"] == "sgd"
    assert config["precision"]["loss_scale"] == 1e-05
    assert config["wandb"]["tags"] == ["a", "b c"]
    plan = {"margin": 0.5, "target": 0.93, "looks": [3, 6, 10], "max_seeds": 10, "control": "bookends"}
    assert config["plan"] == plan


def test_a_failing_run_ends_as_failed_and_the_agent_goes_on(sweeps):
    scene = sweeps["failing"]
    diverged, refused, sound = scene.runs
    assert (diverged.state, diverged.exit_code) == ("failed", 1)
    assert "the training loss is not finite" in scene.output
    assert diverged.summary["global_step"] == diverged.history[-1]["global_step"]
    assert (refused.state, refused.exit_code, refused.group) == ("failed", 2, scene.sweep.id)
    assert "optimizer.name='nope': expected one of" in refused.notes
    assert refused.summary[metrics.REFUSED] == refused.notes
    assert "optimizer.name='nope': expected one of" in scene.output
    assert "Traceback" not in scene.output
    assert sound.state == "finished"
    assert scene.exit_code == 0


def test_a_stopped_run_ends_within_a_step_with_its_record_and_counts_as_no_failure(sweeps):
    scene = sweeps["stopped"]
    stopped, after = scene.runs
    step = stopped.summary["global_step"]
    assert f"interrupted at step {step} (" in scene.output
    assert stopped.history[-1]["global_step"] == step
    assert "train/loss" in stopped.history[-1]
    assert "throughput/images_per_second_median" in stopped.summary
    assert (stopped.exit_code, stopped.preempting) == (255, False)
    # The agent of this scene gives up at the first failure.
    assert after.state == "finished"
    assert scene.exit_code == 0
