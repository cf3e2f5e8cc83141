"""What is pooled and what is compared."""

from datetime import timedelta

import numpy as np
import pytest
from scipy import stats
from support.fakes import make

from ampcompare import analyse_runs, metrics
from ampcompare.runs import RunRecord


def labels(*runs, **options) -> list[str]:
    """Return the labels of all groups."""
    return [g.label for g in analyse_runs(runs, **options).groups]


def test_runs_with_different_settings_are_not_pooled_and_the_key_is_named():
    change = {"model": {"name": "resnet50", "stem": "imagenet"}}
    runs = [make("none", 1), make("none", 2, config=change), make("native", 1)]
    analysis = analyse_runs(runs)
    assert [g.value for g in analysis.groups] == ["none", "none", "native"]
    assert len({g.label for g in analysis.groups}) == 3
    (caveat,) = [remark for remark in analysis.caveats if "form 2 groups" in remark]
    assert "model.stem" in caveat


def test_modules_kept_in_fp32_split_groups_regardless_of_their_order():
    def keeping(seed: int, *names: str) -> RunRecord:
        return make("fp16", seed, config={"precision": {"keep_fp32": [*names] or None}})

    assert labels(keeping(1), keeping(2, "fc")) == ["fp16 · keep_fp32 null", "fp16 · keep_fp32 fc"]
    swept = keeping(3, "*.bn3", "fc")
    swept.config["precision.keep_fp32"] = "fc,*.bn3"  # how a sweep's parameter stands in a record, too
    assert labels(keeping(1, "fc", "*.bn3"), keeping(2, "*.bn3", "fc"), swept) == ["fp16"]


def test_ignored_settings_are_pooled_with_a_caveat():
    runs = [make("none", 1), make("none", 2, config={"batch_size": 64}), make("native", 1)]
    analysis = analyse_runs(runs, ignore=["batch_size"])
    assert [g.label for g in analysis.groups] == ["none", "native"]
    assert any("batch_size" in caveat and "ignored" in caveat for caveat in analysis.caveats)


def test_with_two_keys_each_group_is_compared_with_the_baseline_of_its_own_setting():
    runs = [make(b, 1, config={"batch_size": n}) for b in ("none", "native") for n in (64, 128)]
    runs[2].summary["throughput/images_per_second_median"] = 80.0  # native at 64
    analysis = analyse_runs(runs, group_by=["backend", "batch_size"])
    baselines = {c.group.label: (c.baseline.label, c.speedup) for c in analysis.comparisons}
    assert baselines == {
        "native · batch_size 64": ("none · batch_size 64", pytest.approx(2.0)),
        "native · batch_size 128": ("none · batch_size 128", pytest.approx(1.9)),
    }


def test_a_baseline_with_another_setting_is_not_compared_and_the_key_is_named():
    analysis = analyse_runs([make("none", config={"batch_size": 64}), make("native"), make("apex_o1")])
    assert "batch_size (128 and 64)" in analysis.comparison("native").not_compared_reason
    assert not analysis.comparison("native").estimates


def test_other_software_is_compared_with_a_caveat_unless_two_baselines_match():
    runs = [make("none", 1), make("native", 1), make("none", 2)]
    for run, version in zip(runs, ("1", "2", "3"), strict=True):
        run.summary["environment"] = run.summary["environment"] | {"torch": version}
    analysis = analyse_runs(runs[:2])
    assert analysis.comparison("native").speedup == pytest.approx(1.9)
    assert any("environment.torch" in caveat for caveat in analysis.caveats)
    three = analyse_runs(runs)
    assert [group.label for group in three.groups] == ["none · torch 1", "none · torch 3", "native"]
    assert "environment.torch" in three.comparison("native").not_compared_reason


def test_seed_1_and_seed_1_0_are_one_seed():
    made = [make("none", 1), make("none", 2), make("none", 3)]
    other = [make("native", seed) for seed in (1, 2, 3)]
    for run in other:
        run.config["seed"] = float(run.config["seed"])
    analysis = analyse_runs([*made, *other])
    assert analysis.comparison("native").estimates["speed"].is_paired
    assert set(analysis.table["seed"]) == {"1", "2", "3"}


@pytest.mark.parametrize(
    ("config", "is_pooled"),
    [
        ({"training": {"on_nonfinite_buffers": "restore"}}, False),
        ({"fuse": True}, False),
    ],
)
def test_an_option_that_this_version_does_not_know_splits_groups_if_it_had_an_effect(config, is_pooled: bool):
    assert (labels(make("none", 1, config=config), make("none", 2)) == ["none"]) == is_pooled


def with_tf32(seed: int, backend: str = "none", tf32: bool = True, **options) -> RunRecord:
    """Return a run that records the option `tf32`."""

    def edit(plan):
        plan["config"]["tf32"] = tf32
        plan["summary"]["environment"]["tf32"] = tf32

    return make(backend, seed, edit=edit, id=f"{backend}{tf32}{seed}", **options)


def test_tf32_as_an_option_of_one_group_is_a_difference_but_not_as_its_backend():
    plain, native = [with_tf32(s, tf32=False) for s in (1, 2, 3)], [with_tf32(s, "native") for s in (1, 2, 3)]
    backend = [make("none", s, config={"backend": "tf32"}) for s in (1, 2, 3)]
    analysis = analyse_runs([*plain, *native, *backend])
    tf32, native = analysis.comparison("tf32"), analysis.comparison("native")
    assert (tf32.baseline.label, tf32.uncontrolled_differences) == ("none", ())
    assert "tf32 (True and False)" in native.not_compared_reason  # a switch that the baseline has not
    assert analyse_runs([*backend, *plain], "tf32").comparison("none").not_compared_reason == ""


@pytest.mark.parametrize(
    ("backend", "weights", "label", "dtype"),
    [
        ("none", ["bfloat16", "float32"], "bf16 weights (backend=none)", "bfloat16"),
        ("fp16", ["float16"], "fp16", "float16"),
        ("none", "bfloat16", "none", "float32"),  # no list: another program's record
    ],
)
def test_unexpected_16_bit_weights_are_part_of_the_name(backend: str, weights, label: str, dtype: str):
    def edit(plan):
        plan["summary"]["environment"][metrics.WEIGHT_DTYPES] = weights

    analysis = analyse_runs([make(backend, edit=edit)])
    assert [group.label for group in analysis.groups] == [label]
    assert list(analysis.table["dtype"]) == [dtype]


def test_versions_of_a_users_file_split_groups_and_are_named():
    """As the driver of a sweep of 0.4 recorded them with `--changed-code`."""
    versions = [{}, {"changed_code": {"net_py": "net.py of 2026-11-27"}}]
    analysis = analyse_runs([make("none", seed, config=versions[seed % 2]) for seed in range(4)])
    assert [group.n for group in analysis.groups] == [2, 2]
    assert any("net.py of 2026-11-27" in caveat for caveat in analysis.caveats)


def test_seeds_count_if_their_run_has_ended_and_the_smallest_group_counts():
    def of(backend: str, *states: str):
        runs = [make(backend, seed, state=state) for seed, state in enumerate(states)]
        for run, state in zip(runs, states, strict=True):
            run.exit_code = {"finished": 0, "failed": 1}.get(state)
        return runs

    some = of("native", "finished", "failed", "running", "queued", "finished")
    again = make("native", 1)  # the failed seed once more
    for count in (3, 2):
        assert analyse_runs([*of("none", *["finished"] * count), *some, again]).ended_seeds == count


@pytest.mark.parametrize(
    ("key", "names", "is_explained"),
    [
        ("trainer.precision", ("32", "16"), True),
        ("mode", ("none", "native"), True),  # the value that was recorded as the backend
        ("width", ("1", "2"), False),
    ],
)
def test_a_setting_explains_another_backend_only_if_a_loop_records_its_backend_under_it(
    key: str, names: tuple[str, str], is_explained: bool
):
    """A sweep's parameter, and `Recorder(backend=args.precision)`."""
    runs = [
        make(backend, seed, config={key: name})
        for backend, name in zip(("none", "native"), names, strict=True)
        for seed in (1, 2, 3)
    ]
    (comparison,) = analyse_runs(runs, group_by=(key,), baseline=names[0]).comparisons
    assert ("backend" in comparison.not_compared_reason) != is_explained


def test_runs_are_paired_by_their_seed_whatever_their_order_and_unseeded_runs_are_no_pair():
    speeds = {"none": np.array([40.0, 60.0, 90.0, 50.0]), "native": np.array([80.4, 119.0, 183.0, 99.0])}
    made = [make(backend, seed) for backend in speeds for seed in range(4)]
    for position, run in enumerate(made):
        seed = run.config["seed"]
        run.summary[metrics.THROUGHPUT_MEDIAN] = speeds[run.config["backend"]][seed]
        run.started_at += timedelta(hours=seed if position < 4 else 9 - seed)
    logs = np.log(speeds["native"] / speeds["none"])
    interval = stats.ttest_1samp(logs, 0).confidence_interval(0.95)
    estimate = analyse_runs(made).comparison("native").estimates["speed"]
    assert estimate.ends == pytest.approx(tuple(np.exp(interval)), rel=1e-6)
    for run in made:
        del run.config["seed"]
    unseeded = analyse_runs(made).comparison("native").estimates
    for question in ("speed", "quality"):
        assert (unseeded[question].sizes, unseeded[question].is_paired) == ((4, 4), False)
