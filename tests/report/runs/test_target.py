"""The value up to which training is timed, and who reaches it."""

from __future__ import annotations

import pytest
from support.fakes import make

from ampcompare import metrics
from ampcompare.errors import UserError
from ampcompare.report import analyse_runs


def reaching(backend: str, seed: int, *accuracies: float, state: str = "finished"):
    """A run with these accuracies, at 100, 200, ... training seconds."""

    def edit(made):
        made["rows"] = [
            {"global_step": n, metrics.LOSS: 1.0, metrics.TRAIN_SECONDS: 100.0 * n, metrics.EVAL_ACCURACY: a}
            for n, a in enumerate(accuracies, 1)
        ]

    return make(backend, seed, edit=edit, state=state)


NONE = [reaching("none", 1, 0.5, 0.8, 0.935), reaching("none", 2, 0.5, 0.9, 0.942)]


def group(analysis, label):
    return next(g for g in analysis.groups if g.label == label)


def test_the_target_is_what_every_finished_run_of_the_baseline_reaches():
    assert analyse_runs(NONE).target == 93.0
    for state in ("failed", "running"):
        assert analyse_runs([*NONE, reaching("none", 3, 0.2, state=state)]).target == 93.0
    # At chance it sets none.
    assert analyse_runs([reaching("none", seed, 0.1, 0.1, 0.102) for seed in (1, 2)]).target is None


def test_who_does_not_reach_it_has_no_time_and_is_named():
    runs = [reaching("native", s, 0.5, top, top) for s, top in ((1, 0.94), (2, 0.7), (3, 0.95))]
    analysis = analyse_runs([*NONE, *runs])
    native = group(analysis, "native")
    assert native.figures["seconds_to_target"].n == 2
    assert native.figures["seconds_to_target"].value == pytest.approx(200.0)
    said = "The target of 93.00 % was reached by 2 of 3 of native: the time to it is that of these."
    assert said in analysis.remarks


def test_a_lower_metric_is_reached_from_above():
    def losses(*values):
        def edit(made):
            made["rows"] = [
                {"global_step": n, metrics.TRAIN_SECONDS: 10.0 * n, metrics.EVAL_LOSS: v}
                for n, v in enumerate(values, 1)
            ]

        return edit

    runs = [make("none", 1, edit=losses(2.0, 0.42)), make("none", 2, edit=losses(2.0, 0.3, 0.2))]
    analysis = analyse_runs(runs, metric=metrics.EVAL_LOSS)
    assert analysis.target == pytest.approx(0.42)
    assert list(analysis.table["seconds_to_target"]) == [20.0, 20.0]


@pytest.mark.parametrize("target", [500, 0])
def test_a_target_that_no_accuracy_can_have_is_refused(target: float):
    with pytest.raises(UserError, match=f"--target {target}: eval accuracy lies between 0 and 100 %"):
        analyse_runs(NONE, target=target)


def test_a_target_that_was_reached_without_a_time_is_not_said_to_be_missed():
    def untimed(made):
        made["rows"] = [{k: v for k, v in row.items() if k != metrics.TRAIN_SECONDS} for row in made["rows"]]

    runs = [*NONE, make("native", 1, edit=untimed)]
    runs[-1].logged[metrics.EVAL_ACCURACY] = NONE[0].logged[metrics.EVAL_ACCURACY]
    assert "was reached by no run" not in " ".join(analyse_runs(runs).remarks)
