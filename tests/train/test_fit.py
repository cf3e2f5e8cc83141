"""Rows that are read one interval late say the same as rows read at once, and none is lost."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.properties import backends

from ampcompare.config.load import load_config
from ampcompare.data.dataset import build_dataset
from ampcompare.machine.world import World
from ampcompare.precision import REGISTRY
from ampcompare.train.build import build_trainer
from ampcompare.train.errors import TrainingError
from ampcompare.train.loaders import make_loader
from ampcompare.train.loop import Fit


class Stopped(Exception):
    """An end from outside."""


def make_fit(
    quick: tuple[str, ...], *words: str, lag: bool, stop_at: int | None = None, **on: Any
) -> tuple[Fit, list]:
    """A Fit and the list that its rows come to, each with the step at which it came."""
    config = load_config(None, [*quick, *words])
    device = torch.device("cuda" if torch.cuda.is_available() and config.device == "cuda" else "cpu")
    data = build_dataset(source="synthetic", root=None, train_limit=config.data.train_limit, test_limit=16)
    train, test = (
        make_loader(config, part, device, training=part is data.train) for part in (data.train, data.test)
    )
    came: list[tuple[int, dict[str, Any]]] = []

    def on_step(step: int) -> None:
        if step == stop_at:
            raise Stopped

    fit = Fit(
        build_trainer(config, data, train, device),
        train,
        test,
        config,
        on_row=lambda row: came.append((fit.step, row)),
        lag=lag,
        **({"on_step": on_step} | on),
    )
    return fit, came


def measured(rows: list) -> list[dict[str, Any]]:
    """Rows without what the clock says."""
    return [
        {k: v for k, v in row.items() if not k.startswith(("time/", "throughput/", "memory/"))}
        for _, row in rows
    ]


@backends(REGISTRY)
def test_late_rows_are_the_same_rows_in_the_same_order(quick_overrides: tuple[str, ...], backend: str):
    words = (f"backend={backend}", "log.every=3", "diagnostics.every=2", "training.clip_norm=1", "epochs=3")
    found = {}
    for lag in (False, True):
        fit, came = make_fit(quick_overrides, *words, lag=lag)
        summary = fit.run()
        found[lag] = measured(came), summary["best/eval_accuracy"]
    assert found[True] == found[False]


def test_a_late_row_still_names_the_step_whose_loss_is_not_finite(quick_overrides: tuple[str, ...]):
    words = ("optimizer.lr=1e30", "log.every=4", "data.train_limit=128")
    problems = []
    for lag in (False, True):
        fit, came = make_fit(quick_overrides, *words, lag=lag)
        with pytest.raises(TrainingError) as caught:
            fit.run()
        problems.append(str(caught.value))
        assert fit.step == (8 if lag else 4)  # one interval later
        # The row that shows it is kept, and with lag that of the interval after.
        assert [row["global_step"] for _, row in came if "train/loss" in row] == ([4, 8] if lag else [4])
    assert problems[0] == problems[1]


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("data.std=[1e-40,1e-40,1e-40]", "look at inputs, targets and initial weights, or go on"),
        ("optimizer.lr=1e30", "try a smaller optimizer.lr or training.clip_norm, or go on"),
    ],
)
def test_what_to_do_of_a_loss_that_is_not_finite_depends_on_whether_it_ever_was(
    quick_overrides: tuple[str, ...], words: str, advice: str
):
    fit, _ = make_fit(quick_overrides, words, "log.every=4", lag=False)
    with pytest.raises(TrainingError, match=advice):
        fit.run()


def test_a_run_that_is_stopped_hands_out_the_row_that_waits(quick_overrides: tuple[str, ...]):
    for lag in (False, True):
        fit, came = make_fit(quick_overrides, "log.every=3", "data.train_limit=128", lag=lag, stop_at=7)
        with pytest.raises(Stopped):
            fit.run()
        assert [row["global_step"] for _, row in came if "train/loss" in row] == [3, 6]


class AsTwo(World):
    """As if another process had the same numbers."""

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.mul_(2)

    def share_buffers(self, model: torch.nn.Module) -> None: ...


@pytest.mark.parametrize("world", [World(), AsTwo(size=2)])
def test_a_request_in_an_evaluation_ends_it_and_is_told_once_to_all(
    quick_overrides: tuple[str, ...], world: World
):
    told: list[int] = []
    fit, came = make_fit(
        quick_overrides,
        "log.every=1000",  # longer than the run
        lag=False,
        world=world,
        should_stop=lambda: not fit.trainer.model.training,
        on_stop=lambda: told.append(fit.step),
    )
    fit.run()
    assert (fit.stopped, fit.evaluated, fit.step, told) == (True, False, 4, [4])
    assert [row["global_step"] for _, row in came if "train/loss" in row] == [4]
    assert not any("eval/loss" in row for _, row in came)


def test_milestones_are_in_epochs_whatever_the_number_of_steps(quick_overrides: tuple[str, ...]):
    words = (
        "schedule.name=multistep",
        "schedule.milestones=[1,2.5]",
        "schedule.gamma=0.5",
        "optimizer.lr=0.08",
    )
    fit, came = make_fit(quick_overrides, *words, "epochs=4", "log.every=1", lag=False)
    fit.run()
    rows = [row for _, row in came if "train/learning_rate" in row]
    per_epoch = len(rows) // 4
    assert per_epoch > 1
    # The rate of a row is the one that its last step was taken with.
    begun = [step / per_epoch for step in range(len(rows))]
    expected = [0.08 * 0.5 ** ((at >= 1) + (at >= 2.5)) for at in begun]
    assert [row["train/learning_rate"] for row in rows] == pytest.approx(expected)
