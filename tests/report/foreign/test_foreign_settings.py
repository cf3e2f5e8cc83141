"""What tells other programs' runs apart: seeds are repeats, places and stamps are left out and named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.fakes import make
from support.foreign import FULL, MIXED, foreign, several

from ampcompare.errors import UserError
from ampcompare.records import RunRecord
from ampcompare.report import analyse_runs


def with_config(run: RunRecord, **values: object) -> RunRecord:
    return replace(run, config=run.config | values)


def labels(runs: list[RunRecord], **asked: object) -> dict[str, int]:
    return {group.label: group.n for group in analyse_runs(runs, **asked).groups}


def test_seeds_are_repeats_and_what_is_new_in_every_run_is_left_out_by_name():
    analysis = analyse_runs(several(), "32-true", group_by=["trainer.precision"])
    assert {g.label: (g.n, g.seeds) for g in analysis.groups} == {FULL: (3, 3), MIXED: (3, 3)}
    assert "Left out of the grouping: run_name (another value in every run)." in analysis.remarks
    assert analysis.comparison(MIXED).estimates["speed"].paired


def test_a_setting_that_differs_between_groups_is_never_passed_over():
    runs = [with_config(run, lr=0.1 if "32" in run.name else 0.2) for run in several()]
    analysis = analyse_runs(runs, group_by=["trainer.precision"])
    assert "lr (0.2 against 0.1)" in analysis.comparison(MIXED).refusal


def test_a_setting_that_differs_within_a_group_splits_it():
    runs = [with_config(run, lr=0.1 if run.config["seed"] < 3 else 0.2) for run in several(4)]
    assert set(labels(runs)) == {f"{p} · lr {lr}" for p in (FULL, MIXED) for lr in ("0.1", "0.2")}


def test_places_that_go_with_the_precision_split_nothing():
    runs = [with_config(run, output_dir=f"out/{run.config['trainer']['precision']}") for run in several()]
    analysis = analyse_runs(runs)
    assert analysis.comparison(MIXED).refusal == ""
    assert any("output_dir (a name or a place of the run)" in c for c in analysis.remarks)


SHARED = [("checkpoint", "scratch", "imagenet21k.pth"), ("ckpt_path", "/models/a.pth", "/models/b.pth")]
SHARED += [("cache", True, False), ("hub", None, True), ("run_name", "small", "large")]


@pytest.mark.parametrize(("key", "one", "other"), SHARED)
def test_a_name_that_several_seeds_of_one_precision_share_tells_runs_apart(key, one, other):
    both = [
        replace(with_config(r, **{"run_name": "x", key: v}), id=f"{r.id}{n}")
        for n, v in enumerate((one, other))
        for r in several()
    ]
    assert list(labels(both).values()) == [3] * 4


@pytest.mark.parametrize("key", ["checkpoint", "cache", "experiment"])
def test_what_may_be_a_setting_and_goes_with_the_precision_is_not_passed_over(key: str):
    runs = [with_config(run, **{key: "small" if "32" in run.name else "large"}) for run in several()]
    assert f"{key} (large against small)" in analyse_runs(runs).comparison(MIXED).refusal


@pytest.mark.parametrize(
    ("key", "of"),
    [
        ("hostname", lambda run, n: f"host{n // 6}"),
        ("output_dir", lambda run, n: f"out/{n // 6}"),
        ("run_name", lambda run, n: run.config["trainer"]["precision"]),
        ("run_name", lambda run, n: f"{run.name} {min(n, 10)}"),
        ("checkpoint", lambda run, n: f"out/{n}.pth"),
    ],
)
def test_hosts_places_and_names_of_what_is_tried_again_split_nothing(key, of):
    runs = [*several(), *several(6)[6:]]
    runs[-1] = replace(runs[-3], id="again", config=runs[-3].config)
    runs = [with_config(run, **{"run_name": "x", key: of(run, n)}) for n, run in enumerate(runs)]
    assert labels(runs) == {FULL: 6, MIXED: 6}


@pytest.mark.parametrize(("key", "step"), [("batch_size", 32), ("lr", 0.1), ("optim.weight_decay", 0.01)])
def test_a_number_of_the_training_that_is_new_in_every_run_is_a_setting(key: str, step: float):
    runs = [with_config(run, **{key: step * (n + 1)}) for n, run in enumerate(several())]
    analysis = analyse_runs(runs)
    assert [g.n for g in analysis.groups] == [1] * 6
    assert all(c.refusal for c in analysis.comparisons)
    assert labels(runs, ignore=[key]) == {FULL: 3, MIXED: 3}


def test_what_says_the_precision_in_other_words_goes_with_it():
    def words(run: RunRecord) -> RunRecord:
        is_mixed = "bf16" in run.name
        return with_config(run, amp=is_mixed, amp_dtype="bfloat16" if is_mixed else "float32")

    analysis = analyse_runs([words(run) for run in several()], group_by=["trainer.precision"])
    assert analysis.comparison(MIXED).refusal == ""
    assert any("amp and amp_dtype (it goes with trainer.precision)" in c for c in analysis.remarks)


def test_a_key_that_no_run_has_names_those_that_differ():
    runs = [with_config(run, lr=0.1 * run.config["seed"]) for run in several()]
    for asked, said in [
        ({"group_by": ["backend"]}, r"--group-by 'backend': .*differ in trainer.precision"),
        (
            {"group_by": ["trainer"]},
            r"--group-by 'trainer': .*below it are trainer.precision and trainer.max",
        ),
        ({"ignore": ["nothing"]}, r"--ignore 'nothing': no run has this setting"),
        ({"baseline": "fp32"}, r"--baseline 'fp32': no run has this value of .*; did you mean 32-true\?"),
    ]:
        with pytest.raises(UserError, match=said):
            analyse_runs(runs, **asked)


@pytest.mark.parametrize(("asked", "value"), [("32", 32.0), ("false", False), ("None", None), ("0.1", 0.10)])
def test_a_baseline_is_found_however_it_is_written(asked, value):
    runs = [
        replace(run, config={"seed": run.config["seed"], "x": value if "32" in run.name else "other"})
        for run in several()
    ]
    assert analyse_runs(runs, asked, group_by=["x"]).baseline is not None


BASELINES = [("mixed_precision", None, "bf16"), ("mixed_precision", "-", "bf16"), ("precision", 32.0, 16.0)]
BASELINES += [("precision", "fp32 (default)", "amp"), ("dtype", "DataType.FP32", "DataType.BF16")]
BASELINES += [("precision", "standard", "half"), ("precision", 64, 16), ("use_ema", "-", True)]


@pytest.mark.parametrize(("key", "full", "half"), BASELINES)
def test_what_is_full_or_off_or_no_half_type_is_the_baseline(key: str, full: object, half: object):
    def of(run: RunRecord) -> RunRecord:
        value = full if "32" in run.name else half
        return replace(run, config={"seed": run.config["seed"]} | ({} if value == "-" else {key: value}))

    analysis = analyse_runs([of(run) for run in several()])
    assert analysis.keys == (key,)
    assert analysis.baseline.records[0].name[:2] == "32"


def test_two_switches_of_the_precision_are_compared_as_one():
    kinds = ({"fp16": False, "bf16": False}, {"fp16": True, "bf16": False}, {"fp16": False, "bf16": True})
    runs = [
        foreign(FULL, seed, id=f"{n}-{seed}", name=f"{n}-{seed}", config={"trainer": None} | kind)
        for seed in (1, 2)
        for n, kind in enumerate(kinds)
    ]
    analysis = analyse_runs(runs)
    assert analysis.keys == ("bf16+fp16",)
    assert {g.value for g in analysis.groups} == {"none", "fp16", "bf16"}
    assert analysis.baseline_value == "none"
    assert analyse_runs(runs, group_by=["fp16+bf16"]).baseline_value == "none"


def test_what_is_compared_is_asked_for_where_it_cannot_be_told():
    runs = [
        replace(foreign(FULL, n), config={"lr": lr, "width": width, "seed": n}, id=str(n))
        for n, (lr, width) in enumerate([(0.1, 8), (0.1, 16), (0.2, 8), (0.2, 16)])
    ]
    with pytest.raises(UserError, match=r"--group-by: .* cannot be told; the runs differ in lr and width"):
        analyse_runs(runs)


def test_the_only_setting_that_varies_is_compared_without_being_named():
    runs = [replace(run, config={"width": 16 if "32" in run.name else 32, "seed": 1}) for run in several()]
    analysis = analyse_runs(runs)
    assert (analysis.keys, analysis.baseline_value) == (("width",), "16")  # of a width 32 is nothing special


def test_runs_that_differ_in_nothing_are_one_group():
    runs = [foreign(FULL, seed) for seed in (1, 2, 3)]
    analysis = analyse_runs(runs)
    assert [g.n for g in analysis.groups] == [3]
    assert not analysis.comparisons
    assert any("ampcompare report fp32=logs/a bf16=logs/b" in remark for remark in analysis.remarks)


def test_names_in_the_config_of_a_loop_under_our_recorder_split_no_group():
    def recorded(backend: str, seed: int) -> RunRecord:
        own = {"recorder": {"version": 1}, "data": None, "run_name": f"{backend}-{seed}", "data_seed": seed}
        return make(
            backend, seed, config=own | {"bf16": backend != "none", "output": {"log_dir": f"x/{seed}"}}
        )

    analysis = analyse_runs([recorded(b, s) for b in ("none", "native") for s in (1, 2, 3)])
    assert {g.label: g.seeds for g in analysis.groups} == {"none": 3, "native": 3}
    assert analysis.comparison("native").refusal == ""
    (said,) = [c for c in analysis.remarks if c.startswith("Left out of the grouping: ")]
    assert "run_name" in said
    assert "bf16 (it goes with backend)" in said
    assert analysis.quantities.speed == "samples/s"
