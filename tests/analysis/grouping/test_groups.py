"""What is pooled and what is compared."""

import pytest
from support.fakes import make

from ampcompare import analyse_runs
from ampcompare.analysis.grouping.groups import count_ended_seeds
from ampcompare.runs import RunRecord


def labels(*runs, **options) -> list[str]:
    """Return the labels of all groups."""
    return [g.label for g in analyse_runs(runs, **options).groups]


@pytest.mark.parametrize(
    ("key", "change"),
    [("batch_size", {"batch_size": 64}), ("model.stem", {"model": {"name": "resnet50", "stem": "imagenet"}})],
)
def test_runs_with_different_settings_are_not_pooled_and_the_key_is_named(key, change):
    runs = [make("none", 1), make("none", 2, config=change), make("native", 1)]
    analysis = analyse_runs(runs)
    assert [g.value for g in analysis.groups] == ["none", "none", "native"]
    assert len({g.label for g in analysis.groups}) == 3
    (caveat,) = [
        remark for remark in analysis.caveats if "Runs of fp32 (none) form 2 groups, which differ" in remark
    ]
    assert key in caveat
    asked = analyse_runs(runs, group_by=("backend", key))  # what was asked for is no reason for doubt
    assert not [remark for remark in asked.caveats if "form 2 groups" in remark]


def test_modules_kept_in_fp32_split_groups_regardless_of_their_order():
    def keeping(seed: int, *names: str, backend: str = "fp16") -> RunRecord:
        return make(backend, seed, config={"precision": {"keep_fp32": [*names] or None}})

    old = make("fp16", 1)  # recorded before there was such an option
    assert labels(old, keeping(2)) == ["fp16"]
    assert labels(old, keeping(2, "fc")) == ["fp16 · keep_fp32 null", "fp16 · keep_fp32 fc"]
    assert labels(keeping(1, "fc", "*.bn3"), keeping(2, "*.bn3", "fc")) == ["fp16"]
    swept = keeping(3, "*.bn3", "fc")
    swept.config["precision.keep_fp32"] = "fc,*.bn3"  # how a sweep's parameter stands in a record, too
    assert labels(keeping(1, "fc", "*.bn3"), swept) == ["fp16"]
    assert labels(keeping(1, "fc", backend="none"), keeping(2, backend="none")) == ["none"]


def test_a_default_and_its_resolved_value_are_one_setting():
    def with_norm(backend: str, seed: int, keep: bool | None) -> RunRecord:
        return make(backend, seed, config={"precision": {"keep_batchnorm_fp32": keep}})

    assert labels(with_norm("fp16", 1, None), with_norm("fp16", 2, False)) == ["fp16"]
    assert labels(with_norm("apex_o2", 1, None), with_norm("apex_o2", 2, True)) == ["apex_o2"]
    assert len(labels(with_norm("apex_o2", 1, None), with_norm("apex_o2", 2, False))) == 2


def test_runs_on_other_software_are_not_pooled():
    other = make("none", 2)
    other.summary["environment"] = other.summary["environment"] | {"torch": "2.11.0"}
    assert labels(make("none", 1), other) == ["none · torch 2.14.1", "none · torch 2.11.0"]


def test_ignored_settings_are_pooled_with_a_caveat():
    runs = [make("none", 1), make("none", 2, config={"batch_size": 64}), make("native", 1)]
    analysis = analyse_runs(runs, ignore=["batch_size"])
    assert [g.label for g in analysis.groups] == ["none", "native"]
    assert "Differences in batch_size are ignored" in " ".join(analysis.caveats)


def test_with_two_keys_each_group_is_compared_with_the_baseline_of_its_own_setting():
    runs = [make(b, 1, config={"batch_size": n}) for b in ("none", "native") for n in (64, 128)]
    runs[2].summary["throughput/images_per_second_median"] = 80.0  # native at 64
    analysis = analyse_runs(runs, group_by=["backend", "batch_size"])
    baselines = {c.group.label: (c.baseline.label, c.speedup) for c in analysis.comparisons}
    assert baselines == {
        "native · batch_size 64": ("none · batch_size 64", pytest.approx(2.0)),
        "native · batch_size 128": ("none · batch_size 128", pytest.approx(1.9)),
    }
    analysis = analyse_runs(runs, "64", group_by=["batch_size"])
    assert {(c.group.label, c.baseline.label) for c in analysis.comparisons} == {
        ("128 · backend none", "64 · backend none"),
        ("128 · backend native", "64 · backend native"),
    }


def test_a_baseline_with_another_setting_is_not_compared_and_the_key_is_named():
    analysis = analyse_runs([make("none", config={"batch_size": 64}), make("native"), make("apex_o1")])
    refusal = analysis.comparison("native").not_compared_reason
    assert refusal == "native and fp32 (none) also differ in batch_size (128 and 64)"
    assert not analysis.comparison("native").estimates


def test_other_software_is_compared_with_a_caveat_unless_two_baselines_match():
    runs = [make("none", 1), make("native", 1), make("none", 2)]
    for run, version in zip(runs, ("1", "2", "3"), strict=True):
        run.summary["environment"] = run.summary["environment"] | {"torch": version}
    analysis = analyse_runs(runs[:2])
    assert analysis.comparison("native").speedup == pytest.approx(1.9)
    assert "The compared groups also differ in environment.torch" in " ".join(analysis.caveats)
    refusal = analyse_runs(runs).comparison("native").not_compared_reason
    assert "are equally good baselines, but differ in environment.torch" in refusal


def test_a_run_in_two_sources_has_two_rows():
    twice = analyse_runs([make("none", 1), make("none", 1)])
    assert twice.table.index.is_unique
    assert [group.n for group in twice.groups] == [2]


@pytest.mark.parametrize(("key", "values"), [("val/acc", (99.9, 90.0)), ("top1", (0.999, 0.9))])
def test_no_interval_of_an_accuracy_leaves_its_bounds(key, values):
    runs = [make("none", seed, steps=10, epochs=5) for seed in range(3)]
    for run, value in zip(runs, (*values, values[0]), strict=True):
        run.summary[key] = value
    (group,) = analyse_runs(runs, metric=f"{key}:max").groups
    assert group.estimates["quality"].high == 100.0


def test_seed_1_and_seed_1_0_are_one_seed():
    made = [make("none", 1), make("none", 2), make("none", 3)]
    other = [make("native", seed) for seed in (1, 2, 3)]
    for run in other:
        run.config["seed"] = float(run.config["seed"])
    analysis = analyse_runs([*made, *other])
    assert analysis.comparison("native").estimates["speed"].is_paired
    assert set(analysis.table["seed"]) == {"1", "2", "3"}


def test_an_option_that_this_version_does_not_know_splits_groups():
    fused = make("none", 1, config={"fuse": True})
    assert labels(fused, make("none", 2)) == ["none · fuse on", "none · fuse not set"]


KEY = "training.on_nonfinite_buffers"


@pytest.mark.parametrize(("value", "is_pooled"), [("warn", True), ("say", True), ("restore", False)])
def test_an_option_that_went_splits_groups_only_if_it_had_an_effect(value: str, is_pooled: bool):
    """Runs of 0.4 record its default."""
    group, _, name = KEY.partition(".")
    old = [make("none", 1, config={group: {name: value}}), make("native", 1, config={group: {name: value}})]
    found = labels(*old, make("none", 2), make("native", 2))
    assert (found == ["none", "native"]) == is_pooled


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
    ("environment", "is_told"),
    [
        ({"device_name": "NVIDIA H200"}, True),
        ({"device_name": "NVIDIA A100-SXM4-80GB"}, True),
        ({"device_name": "NVIDIA GeForce RTX 3090"}, True),
        ({"device_name": "Tesla V100-SXM2-16GB"}, False),
        ({"device_name": "NVIDIA GeForce RTX 2080 Ti"}, False),
        ({"device_name": "NVIDIA of tomorrow"}, False),
        ({"device_name": "NVIDIA of tomorrow", "compute_capability": "12.0"}, True),
        ({"device_name": "NVIDIA of yesterday", "compute_capability": "7.5"}, False),
        ({"device_name": "NVIDIA H200", "tf32": True}, False),
        ({"device_name": "NVIDIA H200", "device_type": "cpu"}, False),
        ({"device_name": "AMD Instinct MI300X"}, False),
    ],
)
def test_a_strict_fp32_baseline_on_a_gpu_with_tf32_gives_one_caveat(environment, is_told):
    def edit(plan):
        plan["summary"]["environment"] |= environment

    runs = [make(b, s, edit=edit) for b in ("none", "native") for s in (1, 2, 3)]
    caveats = [one for one in analyse_runs(runs).caveats if "PyTorch's default for convolutions" in one]
    assert len(caveats) == is_told


def test_versions_of_a_users_file_split_groups_labelled_by_name_and_date():
    """As the driver of a sweep records them with `--changed-code`."""
    dates = [None, "2026-11-26 16:21:22", "2026-11-27 09:00:00"]
    runs = [
        make("none", seed, config={"changed_code": {"net_py": f"net.py of {date}"}} if date else {})
        for seed, date in enumerate(dates * 2)
    ]
    assert sorted(labels(*runs)) == [
        "none · net.py before 2026-11-26 16:21:22",
        "none · net.py of 2026-11-26 16:21:22",
        "none · net.py of 2026-11-27 09:00:00",
    ]


def test_seeds_count_if_their_run_has_ended_and_the_smallest_group_counts():
    def of(backend: str, *states: str):
        runs = [make(backend, seed, state=state) for seed, state in enumerate(states)]
        for run, state in zip(runs, states, strict=True):
            run.exit_code = {"finished": 0, "failed": 1}.get(state)
        return runs

    finished = of("none", *["finished"] * 4)
    some = of("native", "finished", "failed", "running", "queued", "finished")
    assert count_ended_seeds(analyse_runs([*finished, *some]).groups) == 3
    again = make("native", 1)  # the failed seed once more
    assert count_ended_seeds(analyse_runs([*finished, *some, again]).groups) == 3
    assert count_ended_seeds(analyse_runs([*finished[:2], *some]).groups) == 2
    assert count_ended_seeds([]) == 0


@pytest.mark.parametrize("key", ["precision", "dtype", "trainer.precision", "mixed_precision", "mode"])
def test_a_setting_under_which_a_loop_records_its_backend_is_an_arm(key: str):
    """A sweep's parameter, and `Recorder(backend=args.precision)`."""
    names = {"none": "32", "native": "16"}
    if key == "mode":  # says nothing of precision, but has the value that was recorded as the backend
        names = {"none": "none", "native": "native"}
    runs = [make(value, seed, config={key: name}) for value, name in names.items() for seed in (1, 2, 3)]
    (comparison,) = analyse_runs(runs, group_by=(key,), baseline=names["none"]).comparisons
    assert not comparison.not_compared_reason


def test_a_setting_that_is_no_precision_does_not_explain_another_backend():
    runs = [make("none", seed, config={"width": "1"}) for seed in (1, 2, 3)]
    runs += [make("native", seed, config={"width": "2"}) for seed in (1, 2, 3)]
    (comparison,) = analyse_runs(runs, group_by=("width",), baseline="1").comparisons
    assert "backend" in comparison.not_compared_reason
