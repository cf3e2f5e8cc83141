"""A sweep over another key is answered by the best of each; a grid by like with like as well."""

from __future__ import annotations

from support.known_runs import FAST, SLOW, runs

from ampcompare.report import analyse_runs


def searched(n: int = 20):
    """A Bayesian search: no two runs have a learning rate in common."""
    accuracies = [0.90 + 0.001 * (number % 13) for number in range(n)]
    rates = [0.01 + 0.003 * number for number in range(n)]
    slow, fast = [40.0] * n, [76.0] * n
    records = runs("none", accuracies, slow, lr=rates)
    return records + runs("native", [a + 0.002 for a in accuracies], fast, lr=[r + 0.001 for r in rates])


def test_a_search_is_answered_by_the_best_of_each_and_not_by_refusals():
    analysis = analyse_runs(searched())
    (said,) = (note for note in analysis.notes if note.startswith("Best of"))
    assert said.startswith(
        "Best of 20 values of lr each: none reaches eval accuracy 91.20 % (lr 0.046); native reaches eval "
        "accuracy 91.40 % (lr 0.047), +0.20 points, 1.90× as fast."
    )
    assert "which flatters it" in said
    assert "not compared" not in " ".join(analysis.remarks).lower()
    assert analysis.headline == "Best of 20 values of lr each: native 91.40 %, none 91.20 %"
    assert analysis.accent.startswith("native")


def test_the_best_of_a_metric_that_falls_is_the_lowest():
    analysis = analyse_runs(searched(), metric="eval/loss")
    for value in ("none", "native"):
        every = [g.figures["quality"].value for g in analysis.groups if g.value == value]
        assert f"{value} reaches eval loss {min(every):.3g} " in analysis.best.sentence


def test_a_failed_run_is_tried_and_is_never_the_best():
    records = runs("none", (0.90, 0.93), lr=(0.1, 0.2))
    records += runs("native", (0.91, 0.95, 0.92), FAST, lr=(0.11, 0.21, 0.31), failed=(1,))
    said = analyse_runs(records).best.sentence
    assert said.startswith("Best of 2 to 3 values of lr each: none reaches eval accuracy 93.00 % (lr 0.2); ")
    assert "native reaches eval accuracy 92.00 % (lr 0.31)" in said


def test_in_a_grid_equal_settings_are_compared_and_the_best_is_a_note():
    records = []
    for rate, accuracy in ((0.1, 0.90), (0.2, 0.93)):
        for backend, speeds, more in (("none", SLOW, 0.0), ("native", FAST, 0.001)):
            values = [accuracy + more + seed / 1000 + (seed == 1) * more / 9 for seed in range(3)]
            records += runs(backend, values, speeds, lr=[rate] * 3)
    for number, record in enumerate(records):
        record.id = f"r{number}"
    analysis = analyse_runs(records)
    assert [c.baseline.label for c in analysis.comparisons] == ["none · lr 0.1", "none · lr 0.2"]
    assert analysis.headline.startswith("native · lr 0.")
    assert any(note.startswith("Best of 2 values of lr each:") for note in analysis.notes)
