"""One's own runs beside a publication: which are evidence, and what they say of each of its figures."""

from __future__ import annotations

import math

import pytest
from support.fakes import make
from support.papers import CARD, SPEED, peaks, throughput, written

from ampcompare.errors import UserError
from ampcompare.report import analyse_runs
from ampcompare.report.analysis.judged import ELSEWHERE, OPEN, REFUTED, REPRODUCED
from ampcompare.report.runs.arms import is_same_card


def runs_of(backends=tuple(SPEED), seeds=(1, 2, 3), **options):
    return [make(b, seed, **options) for b in backends for seed in seeds]


def judged(path, runs=None, **more):
    return analyse_runs(runs_of() if runs is None else runs, reproduce=path, **more).published


def verdicts(found):
    return {(row.figure.name, row.arm): row.verdict for row in found.rows}


def test_an_exact_publication_is_reproduced_figure_by_figure(tmp_path):
    found = judged(written(tmp_path, {"speed": throughput(), "memory": peaks()}))
    assert set(verdicts(found).values()) == {REPRODUCED}
    assert list(verdicts(found)) == [(f, a) for f in ("speed", "memory") for a in ("amp", "O1")]
    assert not found.is_refuted
    assert "4 reproduced" in found.headline


@pytest.mark.parametrize("times", [0.8, 1.2])
def test_a_figure_off_by_a_fifth_is_refuted_with_its_side_and_size(tmp_path, times):
    found = judged(written(tmp_path, {"speed": throughput(times), "memory": peaks()}))
    assert verdicts(found)["speed", "amp"] == REFUTED
    assert verdicts(found)["memory", "amp"] == REPRODUCED
    assert found.is_refuted
    why = found.rows[0].why
    assert ("25 % above it" if times < 1 else "17 % below it") in why


def test_refutation_names_what_differs_in_setting_and_software(tmp_path):
    setting = {"model.name": "resnet50", "data.source": "cifar10", "batch_size": 256, "epochs": 5}
    path = written(tmp_path, {"speed": throughput(1.5)}, setting=setting, software="torch 1.6")
    (first, _) = judged(path).refuted
    assert "batch_size 128 (published 256)" in first
    assert "torch 2.14.1 (published torch 1.6)" in first


def test_ratio_carries_the_rounding_of_both_figures(tmp_path):
    figures = {"time": {"measured": "seconds", "values": {"fp32": "8.0", "amp": "4.0"}}}
    (row,) = judged(written(tmp_path, figures)).rows
    assert (row.theirs.low, row.theirs.value, row.theirs.high) == pytest.approx((7.95 / 4.05, 2, 8.05 / 3.95))


def test_time_on_another_card_is_another_question_and_memory_is_not(tmp_path):
    path = written(tmp_path, {"speed": throughput(2), "memory": peaks(2)}, hardware="NVIDIA A100")
    found = judged(path)
    assert verdicts(found)["speed", "amp"] == ELSEWHERE
    assert verdicts(found)["memory", "amp"] == REFUTED
    assert f"hardware {CARD} (CUDA) (published NVIDIA A100)" in found.differences


def test_a_card_is_known_under_either_name():
    for published, device in [
        ("Tesla V100", "Tesla V100-SXM2-16GB"),
        ("NVIDIA A100 80GB", "NVIDIA A100-SXM4-80GB"),
        ("RTX 2080 Ti", "NVIDIA GeForce RTX 2080 Ti"),
    ]:
        assert is_same_card(published, [device])
    assert not is_same_card("NVIDIA A100-SXM4-80GB", ["NVIDIA A100-SXM4-40GB"])
    assert not is_same_card("RTX 2080", ["NVIDIA GeForce RTX 2080 Ti"])
    assert not is_same_card("GPU", ["GPU"])
    assert not is_same_card("H100 PCIe", ["NVIDIA H100 SXM5 80GB"])


def test_runs_of_another_model_or_data_are_refused_in_one_line(tmp_path):
    config = {"model": {"name": "resnet20", "stem": "cifar"}}
    with pytest.raises(UserError, match=r"^[^\n]*none of 9 runs is of it: model.name resnet20 [^\n]*$"):
        judged(written(tmp_path), runs_of(config=config))
    with pytest.raises(UserError, match=r"data.source noise \(published cifar10\)"):
        judged(written(tmp_path), runs_of(source="noise"))


def test_runs_that_do_not_fit_are_left_out_with_a_line(tmp_path):
    others = [make("none", 9, config={"model": {"name": "resnet20", "stem": "cifar"}}), make("fp16", 1)]
    found = judged(written(tmp_path), [*runs_of(), *others])
    assert set(verdicts(found).values()) == {REPRODUCED}
    (model, arm) = found.matched.left_out
    assert "model.name resnet20 (published resnet50)" in model
    assert "backend fp16 is none of its arms (fp32, amp and O1)" in arm


def test_runs_of_two_settings_are_not_pooled(tmp_path):
    slow = runs_of(("native",), (4, 5, 6), config={"batch_size": 64})
    found = judged(written(tmp_path), [*runs_of(), *slow])
    assert found.matched.arms["amp"].n == 3
    assert "3 runs of amp: in another setting (batch_size 64 (published 128))" in found.matched.left_out


def test_an_arm_is_known_by_its_keys_and_not_by_its_backend_alone(tmp_path):
    arms = {"fp32": {"backend": "none"}, "TF32": {"backend": "none", "tf32": True}}
    figures = {"speed": {"measured": "images_per_second", "values": {"fp32": "40.0", "TF32": "76.0"}}}

    def faster(plan):
        plan["summary"]["throughput/images_per_second_median"] *= 1.9
        plan["summary"]["environment"]["tf32"] = True

    fast = [make("none", seed, edit=faster, config={"tf32": True}, id=f"tf{seed}") for seed in (1, 2, 3)]
    path = written(tmp_path, figures, arms=arms)
    found = judged(path, [*runs_of(("none",)), *fast])
    assert verdicts(found) == {("speed", "TF32"): REPRODUCED}


def test_one_run_of_each_cannot_tell_and_says_how_many_would(tmp_path):
    found = judged(written(tmp_path), runs_of(seeds=(1,)))
    assert set(verdicts(found).values()) == {OPEN}
    assert all(row.more_runs for row in found.rows)
    assert "three are the least" in found.rows[0].why


def test_shrunk_runs_are_no_evidence(tmp_path):
    config = {"published": {"name": "paper", "scale": 0.02, "network": "tiny"}, "epochs": 2}
    config |= {"model": {"name": "tiny"}, "data": {"source": "cifar10", "train_limit": 100}}
    found = judged(written(tmp_path), runs_of(config=config))
    assert set(verdicts(found).values()) == {OPEN}
    assert all("at scale 0.02" in row.why and "tiny" in row.why for row in found.rows)


def test_runs_of_another_length_say_nothing_of_an_accuracy(tmp_path):
    figures = {"accuracy": {"measured": "final_accuracy", "values": {"fp32": "94.1", "amp": "94.0"}}}
    setting = {"model.name": "resnet50", "data.source": "cifar10", "epochs": 100}
    found = judged(written(tmp_path, figures, setting=setting))
    assert set(verdicts(found).values()) == {OPEN}
    assert "epochs 5 (published 100)" in found.rows[0].why


def accuracies(of):
    """Runs whose last accuracies are these, by backend."""

    def to(value):
        def edit(plan):
            last = max(i for i, row in enumerate(plan["rows"]) if "eval/accuracy" in row)
            plan["rows"][last]["eval/accuracy"] = value

        return edit

    return [make(b, i, edit=to(v)) for b, values in of.items() for i, v in enumerate(values)]


def test_accuracies_are_compared_in_points_and_that_of_the_baseline_as_it_is(tmp_path):
    ours = {"none": [0.9360, 0.9364, 0.9362], "native": [0.9350, 0.9354, 0.9352]}
    figures = {"accuracy": {"measured": "final_accuracy", "values": {"fp32": "93.6", "amp": "93.5"}}}
    found = judged(written(tmp_path, figures), accuracies(ours))
    assert verdicts(found) == {("accuracy", "fp32"): REPRODUCED, ("accuracy", "amp"): REPRODUCED}
    assert found.rows[1].ours.value == pytest.approx(-0.1)
    assert found.rows[1].theirs.low == pytest.approx(-0.2)
    doctored = {"accuracy": {"measured": "final_accuracy", "values": {"fp32": "93.6", "amp": "90.1"}}}
    found = judged(written(tmp_path, doctored), accuracies(ours))
    assert verdicts(found)["accuracy", "amp"] == REFUTED
    assert "3.4 points above it" in found.rows[1].why


def test_arm_without_runs_and_figure_without_baseline_are_said(tmp_path):
    figures = {"speed": throughput(), "alone": {"measured": "seconds", "values": {"fp32": "8.0"}}}
    found = judged(written(tmp_path, figures), runs_of(("none", "native")))
    assert verdicts(found)["speed", "O1"] == OPEN
    assert "no run of O1 here" in found.rows[1].why
    assert "no other arm" in found.rows[2].why


def test_figures_with_intervals_of_their_own_are_judged_by_both_errors(tmp_path):
    def figure(value, half):
        return {"value": value, "low": value - half, "high": value + half, "n": 5}

    wide = {"fp32": figure(40.0, 8.0), "amp": figure(95.0, 19.0)}
    sharp = {"fp32": figure(40.0, 0.3), "amp": figure(95.0, 0.5)}
    for values, verdict in ((wide, OPEN), (sharp, REFUTED)):
        path = written(tmp_path, {"speed": {"measured": "images_per_second", "values": values}})
        assert verdicts(judged(path)) == {("speed", "amp"): verdict}


def test_no_value_in_a_record_crashes_it(tmp_path, subtests: pytest.Subtests):
    for odd in [{"a": 1}, [1], "x\x1b[0m" * 40, 10**400, math.nan, True, None]:
        for key in ["backend", "model", "data", "published", "epochs", "precision", "tf32"]:
            with subtests.test(odd=odd, key=key):
                runs = [*runs_of(("none", "native")), make("native", 7, config={key: odd})]
                found = judged(written(tmp_path), runs)
                assert found.rows
