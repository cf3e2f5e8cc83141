"""Own runs against a publication: which runs are evidence, and the verdicts."""

import pytest
from support.fakes import make
from support.publication_files import BACKENDS, CARD, peaks, throughput, write_publication

from ampcompare import analyse_runs
from ampcompare.analysis.publication_match import is_same_card
from ampcompare.analysis.reproduction import ELSEWHERE, OPEN, REFUTED, REPRODUCED
from ampcompare.errors import UserError

TRIED = (*BACKENDS.values(),)


def runs_of(backends=TRIED, seeds=(1, 2, 3), **options):
    """Return runs of these backends and seeds."""
    return [make(b, seed, **options) for b in backends for seed in seeds]


def reproduce(path, runs=None, **more):
    """Return the assessment of a publication by these runs."""
    return analyse_runs(runs_of() if runs is None else runs, reproduce=path, **more).reproduction


def verdicts(result):
    """Return the verdicts by metric and arm."""
    return {(row.published_metric.name, row.arm): row.verdict for row in result.rows}


@pytest.mark.parametrize(("times", "off"), [(1.0, ""), (1.2, "17% below the published")])
def test_an_exact_value_is_reproduced_and_one_off_by_a_fifth_is_refuted(tmp_path, times, off):
    result = reproduce(write_publication(tmp_path, {"speed": throughput(times), "memory": peaks()}))
    speed = REFUTED if off else REPRODUCED
    assert [*verdicts(result).values()] == [speed, speed, REPRODUCED, REPRODUCED]
    assert result.is_refuted is bool(off)
    assert off in result.rows[0].why


def test_a_refutation_names_differences_in_setting_and_software(tmp_path):
    setting = {"model.name": "resnet50", "data.source": "cifar10", "batch_size": 256, "epochs": 5}
    path = write_publication(tmp_path, {"speed": throughput(1.5)}, setting=setting, software="torch 1.6")
    (first, _) = reproduce(path).refuted
    assert "batch_size 128 (published 256)" in first
    assert "torch 2.14.1 (published torch 1.6)" in first


def test_a_ratio_has_the_rounding_of_both_values(tmp_path):
    figures = {"time": {"measured": "seconds", "values": {"fp32": "8.0", "amp": "4.0"}}}
    (row,) = reproduce(write_publication(tmp_path, figures)).rows
    assert (row.published.low, row.published.value, row.published.high) == pytest.approx(
        (7.95 / 4.05, 2, 8.05 / 3.95)
    )


def test_time_on_another_card_is_not_judged_and_memory_is(tmp_path):
    path = write_publication(tmp_path, {"speed": throughput(2), "memory": peaks(2)}, hardware="NVIDIA A100")
    result = reproduce(path)
    assert verdicts(result)["speed", "amp"] == ELSEWHERE
    assert verdicts(result)["memory", "amp"] == REFUTED
    assert f"hardware {CARD} (CUDA) (published NVIDIA A100)" in result.differences


def test_a_card_is_recognised_under_its_long_and_short_name():
    assert is_same_card("NVIDIA A100 80GB", ["NVIDIA A100-SXM4-80GB"])
    assert is_same_card("RTX 2080 Ti", ["NVIDIA GeForce RTX 2080 Ti"])
    assert not is_same_card("NVIDIA A100-SXM4-80GB", ["NVIDIA A100-SXM4-40GB"])
    assert not is_same_card("GPU", ["GPU"])


def test_runs_of_another_model_or_data_are_refused_in_one_line(tmp_path):
    config = {"model": {"name": "resnet20", "stem": "cifar"}}
    with pytest.raises(
        UserError, match=r"^[^\n]*9 runs matches the publication: model.name resnet20 [^\n]*$"
    ):
        reproduce(write_publication(tmp_path), runs_of(config=config))
    with pytest.raises(UserError, match=r"data.source noise \(published cifar10\)"):
        reproduce(write_publication(tmp_path), runs_of(source="noise"))


def test_runs_that_match_no_arm_are_left_out_with_a_reason(tmp_path):
    others = [make("none", 9, config={"model": {"name": "resnet20", "stem": "cifar"}}), make("fp16", 1)]
    result = reproduce(write_publication(tmp_path), [*runs_of(), *others])
    assert set(verdicts(result).values()) == {REPRODUCED}
    (model, arm) = result.match.left_out
    assert "model.name resnet20 (published resnet50)" in model
    assert "backend fp16 matches no arm of the publication (fp32, amp and O1)" in arm
    assert result.match.arms["amp"].n == 3


def test_runs_of_several_settings_are_refused(tmp_path):
    slow = runs_of(("native",), (4, 5, 6), config={"batch_size": 64})
    with pytest.raises(
        UserError, match=r"batch_size 64 \(published 128\).*pass the runs of one of these alone"
    ):
        reproduce(write_publication(tmp_path), [*runs_of(), *slow])


def test_scaled_down_runs_are_no_evidence(tmp_path):
    config = {"published": {"name": "paper", "scale": 0.02, "network": "tiny"}, "epochs": 2}
    config |= {"model": {"name": "tiny"}, "data": {"source": "cifar10", "train_limit": 100}}
    result = reproduce(write_publication(tmp_path), runs_of(config=config))
    assert set(verdicts(result).values()) == {OPEN}
    assert all("at scale 0.02" in row.why and "tiny" in row.why for row in result.rows)


def accuracies(values_of):
    """Return runs with these last accuracies, by backend."""

    def to(value):
        def edit(plan):
            last = max(i for i, row in enumerate(plan["rows"]) if "eval/accuracy" in row)
            plan["rows"][last]["eval/accuracy"] = value

        return edit

    return [make(b, i, edit=to(v)) for b, values in values_of.items() for i, v in enumerate(values)]


def test_accuracies_are_compared_in_points_and_the_baselines_as_it_is(tmp_path):
    own_runs = accuracies({"none": [0.9360, 0.9364, 0.9362], "native": [0.9350, 0.9354, 0.9352]})

    def assessed(amp, **more):
        figures = {"accuracy": {"measured": "final_accuracy", "values": {"fp32": "93.6", "amp": amp}}}
        return reproduce(write_publication(tmp_path, figures, **more), own_runs).rows

    baseline, amp = assessed("93.5")
    assert (baseline.verdict, amp.verdict) == (REPRODUCED, REPRODUCED)
    assert (amp.measured.value, amp.published.low) == pytest.approx((-0.1, -0.2))
    _, doctored = assessed("90.1")
    assert doctored.verdict == REFUTED
    assert "3.4 points above the published value" in doctored.why
    # Runs of another length say nothing of it.
    longer = {"model.name": "resnet50", "data.source": "cifar10", "epochs": 100}
    for row in assessed("93.5", setting=longer):
        assert row.verdict == OPEN
        assert "epochs 5 (published 100)" in row.why


def test_an_arm_without_runs_and_a_value_without_a_baseline_are_named(tmp_path):
    figures = {"speed": throughput(), "alone": {"measured": "seconds", "values": {"fp32": "8.0"}}}
    result = reproduce(write_publication(tmp_path, figures), runs_of(("none", "native")))
    assert verdicts(result)["speed", "O1"] == OPEN
    assert "no run of O1" in result.rows[1].why
    assert "has no value of the baseline" in result.rows[2].why
