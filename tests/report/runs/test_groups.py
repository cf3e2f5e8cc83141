"""What is pooled and what is compared."""

from __future__ import annotations

import pytest
from support.fakes import make

from ampcompare.errors import UserError
from ampcompare.records import RunRecord
from ampcompare.report import analyse_runs


def labels(*runs, **options) -> list[str]:
    return [g.label for g in analyse_runs(runs, **options).groups]


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("batch_size", {"batch_size": 64}),
        ("model.stem", {"model": {"name": "resnet50", "stem": "imagenet"}}),
        ("epochs", {"epochs": 6}),
    ],
)
def test_runs_that_differ_in_a_setting_are_not_pooled_and_the_field_is_named(key, change):
    analysis = analyse_runs([make("none", 1), make("none", 2, config=change), make("native", 1)])
    assert [g.value for g in analysis.groups] == ["none", "none", "native"]
    assert len({g.label for g in analysis.groups}) == 3
    said = " ".join(analysis.remarks)
    assert "Runs of none are in 2 groups: they differ in" in said
    assert key in said


def test_modules_kept_in_fp32_set_runs_apart_by_their_names_in_any_order():
    def keeping(seed: int, *names: str, backend: str = "fp16") -> RunRecord:
        precision = {"dtype": "float16", "keep_fp32": [*names] or None}
        return make(backend, seed, config={"precision": precision})

    before = {"precision": {"dtype": "float16"}}  # recorded before there was such an option
    old = make("fp16", 1, config=before)
    assert labels(old, keeping(2)) == ["fp16"]
    assert labels(old, keeping(2, "fc")) == ["fp16 · keep_fp32 null", "fp16 · keep_fp32 fc"]
    assert labels(keeping(1, "fc", "*.bn3"), keeping(2, "*.bn3", "fc")) == ["fp16"]
    swept = keeping(3, "*.bn3", "fc")
    swept.config["precision.keep_fp32"] = "fc,*.bn3"  # how a sweep's parameter stands in a record, too
    assert labels(keeping(1, "fc", "*.bn3"), swept) == ["fp16"]
    assert labels(keeping(1, "fc", backend="none"), keeping(2, backend="none")) == ["none"]


def test_an_option_left_open_and_the_value_that_it_came_to_are_one_setting():
    def with_norm(backend: str, seed: int, keep: bool | None) -> RunRecord:
        return make(backend, seed, config={"precision": {"keep_batchnorm_fp32": keep}})

    assert labels(with_norm("fp16", 1, None), with_norm("fp16", 2, False)) == ["fp16"]
    assert labels(with_norm("apex_o2", 1, None), with_norm("apex_o2", 2, True)) == ["apex_o2"]
    assert len(labels(with_norm("apex_o2", 1, None), with_norm("apex_o2", 2, False))) == 2


def test_groups_that_were_asked_for_are_no_reason_for_doubt():
    runs = [make("none", 1), make("none", 2, config={"batch_size": 64}), make("native", 1)]
    analysis = analyse_runs(runs, group_by=("backend", "batch_size"))
    assert not [caution for caution in analysis.remarks if "in 2 groups" in caution]


def test_runs_on_other_software_are_not_pooled():
    other = make("none", 2)
    other.summary["environment"] = other.summary["environment"] | {"torch": "2.11.0"}
    assert labels(make("none", 1), other) == ["none · torch 2.14.1", "none · torch 2.11.0"]


def test_precision_settings_set_backends_apart_but_not_fp32():
    change = {"precision": {"enabled": True, "dtype": "float16", "init_scale": 2.0}}
    assert labels(make("none", 1), make("none", 2, config=change)) == ["none"]
    assert len(labels(make("native", 1), make("native", 2, config=change))) == 2


def test_ignored_settings_are_pooled_and_the_page_says_so():
    runs = [make("none", 1), make("none", 2, config={"batch_size": 64}), make("native", 1)]
    analysis = analyse_runs(runs, ignore=["batch_size"])
    assert [g.label for g in analysis.groups] == ["none", "native"]
    assert "pool and compare runs whatever their batch_size" in " ".join(analysis.remarks)


def test_grouping_by_two_keys_compares_each_with_the_baseline_of_its_own_setting():
    runs = [make(b, 1, config={"batch_size": n}) for b in ("none", "native") for n in (64, 128)]
    runs[2].summary["throughput/images_per_second_median"] = 80.0  # native at 64
    analysis = analyse_runs(runs, group_by=["backend", "batch_size"])
    assert [g.label for g in analysis.groups] == [
        f"{backend} · batch_size {size}" for backend in ("none", "native") for size in (64, 128)
    ]
    found = {c.group.label: (c.baseline.label, c.speedup) for c in analysis.comparisons}
    assert found["native · batch_size 64"] == ("none · batch_size 64", pytest.approx(2.0))
    assert found["native · batch_size 128"] == ("none · batch_size 128", pytest.approx(1.9))


def test_another_key_can_be_compared_and_backends_are_then_kept_apart():
    runs = [make(b, 1, config={"batch_size": n}) for b in ("none", "native") for n in (64, 128)]
    analysis = analyse_runs(runs, "64", group_by=["batch_size"])
    pairs = {(c.group.label, c.baseline.label) for c in analysis.comparisons}
    assert pairs == {
        ("128 · backend none", "64 · backend none"),
        ("128 · backend native", "64 · backend native"),
    }


def test_a_baseline_of_another_setting_is_refused_by_name():
    analysis = analyse_runs([make("none", config={"batch_size": 64}), make("native"), make("apex_o1")])
    refusal = analysis.comparison("native").refusal
    assert refusal == "it differs from none in batch_size (128 against 64)"
    assert not analysis.comparison("native").estimates


def test_other_software_is_compared_and_named():
    runs = [make("none"), make("native")]
    runs[1].summary["environment"] = runs[1].summary["environment"] | {"torch": "2.11.0"}
    analysis = analyse_runs(runs)
    assert analysis.comparison("native").speedup == pytest.approx(1.9)
    assert "although they differ in environment.torch" in " ".join(analysis.remarks)


def test_two_baselines_that_would_do_equally_are_no_baseline():
    runs = [make("none", 1), make("none", 2), make("native", 3)]
    for run, version in zip(runs, ("1", "2", "3"), strict=True):
        run.summary["environment"] = run.summary["environment"] | {"torch": version}
    assert (
        "would both do; they differ in environment.torch" in analyse_runs(runs).comparison("native").refusal
    )


@pytest.mark.parametrize(("option", "key"), [("group_by", "batchsize"), ("ignore", "modle.name")])
def test_unknown_key_is_an_error_that_names_the_nearest(option, key):
    with pytest.raises(UserError, match="did you mean"):
        analyse_runs([make("none")], **{option: [key]})


def test_a_run_of_two_sources_is_two_rows_with_places_of_their_own():
    twice = analyse_runs([make("none", 1), make("none", 1)])
    assert twice.table.index.is_unique
    assert [group.n for group in twice.groups] == [2]


@pytest.mark.parametrize(("key", "values"), [("val/acc", (99.9, 90.0)), ("top1", (0.999, 0.9))])
def test_no_interval_of_an_accuracy_leaves_its_bounds_whatever_it_is_called(key, values):
    runs = [make("none", seed, steps=10, epochs=5) for seed in range(3)]
    for run, value in zip(runs, (*values, values[0]), strict=True):
        run.summary[key] = value
    (group,) = analyse_runs(runs, metric=key).groups
    assert group.figures["quality"].high == 100.0


def test_seed_1_and_seed_1_0_are_one_seed():
    made = [make("none", 1), make("none", 2), make("none", 3)]
    other = [make("native", seed) for seed in (1, 2, 3)]
    for run in other:
        run.config["seed"] = float(run.config["seed"])
    analysis = analyse_runs([*made, *other])
    assert analysis.comparison("native").estimates["speed"].paired
    assert set(analysis.table["seed"]) == {"1", "2", "3"}
