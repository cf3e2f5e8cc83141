"""What tells other programs' runs apart: seeds are repeats, places and stamps are left out and named; or the
name that somebody gave to where they come from (`ampcompare report fp32=logs/a bf16=logs/b`).
"""

from dataclasses import replace
from pathlib import Path

import pytest
from support.fakes import make
from support.foreign import FULL, MIXED, foreign, several

from ampcompare import analyse_runs, load_runs
from ampcompare.errors import UserError
from ampcompare.records import RunRecord


def with_config(run: RunRecord, **values: object) -> RunRecord:
    return replace(run, config=run.config | values)


def labels(runs: list[RunRecord], **asked: object) -> dict[str, int]:
    return {group.label: group.n for group in analyse_runs(runs, **asked).groups}


def test_seeds_are_repeats_and_what_is_new_in_every_run_is_left_out_by_name():
    analysis = analyse_runs(several(), "32-true", group_by=["trainer.precision"])
    assert {g.label: (g.n, g.seeds) for g in analysis.groups} == {FULL: (3, 3), MIXED: (3, 3)}
    assert "Left out of the grouping: run_name (another value in every run)." in analysis.remarks
    assert analysis.comparison(MIXED).estimates["speed"].paired


def test_a_setting_that_differs_sets_groups_apart_or_refuses_them():
    runs = [with_config(run, lr=0.1 if "32" in run.name else 0.2) for run in several()]
    analysis = analyse_runs(runs, group_by=["trainer.precision"])
    assert "lr (0.2 against 0.1)" in analysis.comparison(MIXED).refusal
    runs = [with_config(run, lr=0.1 if run.config["seed"] < 3 else 0.2) for run in several(4)]
    assert set(labels(runs)) == {f"{p} · lr {lr}" for p in (FULL, MIXED) for lr in ("0.1", "0.2")}


@pytest.mark.parametrize(
    ("key", "one", "other"),
    [("ckpt_path", "/models/a.pth", "/models/b.pth"), ("cache", True, False)],
)
def test_what_a_training_began_with_tells_runs_apart(key, one, other):
    both = [replace(r, id=f"{r.id}{v}") for v in (one, other) for r in several()]
    both = [with_config(r, **{"run_name": "x", key: one if n < 6 else other}) for n, r in enumerate(both)]
    assert list(labels(both).values()) == [3] * 4


@pytest.mark.parametrize(
    ("key", "of"),
    [
        ("hostname", lambda run, n: f"host{n // 6}"),
        ("output_dir", lambda run, n: f"out/{n // 6}"),
        ("run_name", lambda run, n: run.config["trainer"]["precision"]),
        ("run_name", lambda run, n: f"{run.name} {min(n, 10)}"),
        ("run_name", lambda run, n: "small" if n < 6 else "large"),
        ("comment", lambda run, n: f"try {n}"),
        ("start", lambda run, n: 1_700_000_000 + n),
    ],
)
def test_hosts_places_and_names_of_what_is_tried_again_split_nothing(key, of):
    runs = [*several(), *several(6)[6:]]
    runs[-1] = replace(runs[-3], id="again", config=runs[-3].config)
    runs = [with_config(run, **{"run_name": "x", key: of(run, n)}) for n, run in enumerate(runs)]
    assert labels(runs) == {FULL: 6, MIXED: 6}


@pytest.mark.parametrize(("key", "step"), [("batch_size", 32), ("optim.weight_decay", 0.01), ("foo", 3)])
def test_a_number_that_is_new_in_every_run_is_a_setting(key: str, step: float):
    runs = [with_config(run, **{key: step * (n + 1)}) for n, run in enumerate(several())]
    analysis = analyse_runs(runs)
    assert [g.n for g in analysis.groups] == [1] * 6
    assert all(c.refusal for c in analysis.comparisons)
    assert labels(runs, ignore=[key]) == {FULL: 3, MIXED: 3}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"group_by": ["backend"]}, r"--group-by 'backend': .*differ in trainer.precision"),
        ({"group_by": ["precision"]}, r"--group-by 'precision': .*; did you mean trainer.precision\?"),
        ({"ignore": ["nothing"]}, r"--ignore 'nothing': no run has this setting"),
        ({"baseline": "fp32"}, r"--baseline 'fp32': no run has this value of .*; did you mean 32-true\?"),
    ],
)
def test_a_key_or_value_that_no_run_has_names_those_that_differ(asked, said):
    with pytest.raises(UserError, match=said):
        analyse_runs([with_config(run, lr=0.1 * run.config["seed"]) for run in several()], **asked)


@pytest.mark.parametrize(
    ("key", "full", "half", "asked"),
    [
        ("mixed_precision", None, "bf16", "None"),
        ("mixed_precision", "-", "bf16", None),
        ("precision", 32.0, 16.0, "32"),
        ("precision", "standard", "half", None),
        ("precision", 64, 16, "64.0"),
        ("amp", False, True, "false"),
        ("use_ema", "-", True, None),
        ("width", 16, 32, "16"),  # of a width 32 is nothing special
    ],
)
def test_what_is_full_or_off_or_no_half_type_is_the_baseline_however_it_is_written(key, full, half, asked):
    def of(run: RunRecord) -> RunRecord:
        value = full if "32" in run.name else half
        return replace(run, config={"seed": run.config["seed"]} | ({} if value == "-" else {key: value}))

    for baseline in {None, asked}:
        analysis = analyse_runs([of(run) for run in several()], baseline)
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
    assert (analysis.keys, analysis.baseline_value) == (("bf16+fp16",), "none")
    assert {g.value for g in analysis.groups} == {"none", "fp16", "bf16"}
    assert analyse_runs(runs, group_by=["fp16+bf16"]).baseline_value == "none"


def test_what_is_compared_is_asked_for_where_it_cannot_be_told():
    values = enumerate([(0.1, 8), (0.1, 16), (0.2, 8), (0.2, 16)])
    configs = [{"lr": lr, "width": width, "seed": n} for n, (lr, width) in values]
    with pytest.raises(UserError, match=r"--group-by: .* cannot be told; the runs differ in lr and width"):
        analyse_runs([replace(foreign(FULL, n), config=own, id=str(n)) for n, own in enumerate(configs)])


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


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two folders with two runs each, as Lightning's CSVLogger leaves them: no precision, no seed."""
    monkeypatch.chdir(tmp_path)
    for arm, faster in (("a", 1.0), ("b", 2.0)):
        for version in (0, 1):
            folder = tmp_path / "logs" / arm / f"version_{version}"
            folder.mkdir(parents=True)
            rows = [f"{step},{1 / step},{100 * faster + version + step / 10}" for step in (10, 20, 30, 40)]
            text = "\n".join(["step,train_loss,samples_per_sec", *rows])
            (folder / "metrics.csv").write_text(f"{text}\n")
            (folder / "hparams.yaml").write_text("lr: 0.1\n")
    return tmp_path / "logs"


def test_runs_that_nothing_tells_apart_are_one_group_without_a_seed_and_the_form_is_offered(logs: Path):
    analysis = analyse_runs(load_runs([logs]))
    assert [(group.n, group.seeds) for group in analysis.groups] == [(4, 0)]
    assert sum("fp32=logs/a bf16=logs/b" in remark for remark in analysis.remarks) == 1


def test_a_name_before_a_source_is_what_is_compared_and_the_first_is_the_baseline(logs: Path):
    analysis = analyse_runs(load_runs(["half=logs/b", f"full={logs / 'a'}"]))
    assert analysis.keys == ("arm",)
    assert {g.label: (g.n, g.seeds) for g in analysis.groups} == {"half": (2, 0), "full": (2, 0)}
    assert analysis.baseline_value == "half"
    asked = analyse_runs(load_runs(["half=logs/b", "full=logs/a"]), "full")
    assert asked.comparison("half").claims["speed"].why == "the device is not recorded"
    with pytest.raises(UserError, match=r"--baseline 'ful': .*did you mean full\?"):
        analyse_runs(load_runs(["half=logs/b", "full=logs/a"]), "ful")


def test_the_precision_of_the_config_stands_beside_the_name_that_somebody_gave(logs: Path):
    for arm, precision in (("a", "bf16-mixed"), ("b", "32-true")):
        for file in (logs / arm).glob("*/hparams.yaml"):
            file.write_text(f"lr: 0.1\nprecision: {precision}\n")
    analysis = analyse_runs(load_runs(["fp32=logs/a", "mine=logs/b"]))
    assert [g.label for g in analysis.groups] == ["fp32", "mine"]
    assert analysis.comparison("mine").refusal == ""
    said = "By their own settings fp32 is precision bf16-mixed and mine is precision 32-true."
    assert said in analysis.notes


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        (["fp32=logs/a", "logs/b"], "logs/b: has no name beside fp32; name it, too: NAME=logs/b"),
        (["fp32=logs", "bf16=logs/b"], "this run is in fp32 and in bf16; name it once"),
        (["x/y=logs/a"], "x/y=logs/a"),
        (["fp32=nowhere"], "nowhere"),
    ],
)
def test_a_source_without_a_name_or_with_two_is_refused_in_a_line(logs: Path, sources, said):
    with pytest.raises(UserError) as caught:
        load_runs(sources)
    assert said in str(caught.value)
    assert len(caught.value.lines) == 1


def test_a_folder_that_is_called_so_is_no_name(logs: Path):
    (logs / "a").rename(logs.parent / "lr=0.1")
    assert ["arm" in run.config for run in load_runs(["lr=0.1"])] == [False, False]


def test_runs_of_ours_have_arms_too_whatever_their_backends_are_called():
    runs = [
        make(b, seed, config={"arm": arm})
        for arm, b in (("old", "none"), ("new", "native"))
        for seed in (1, 2)
    ]
    analysis = analyse_runs(runs)
    assert (analysis.keys, analysis.baseline_value) == (("arm",), "old")
    assert analysis.comparison("new").refusal == ""
    assert "By their own settings old is backend none and new is backend native." in analysis.notes
    assert analyse_runs(runs, group_by=["backend"]).groups[0].value == "none"
