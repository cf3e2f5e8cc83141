"""Units of measurement: each figure's own n, what is paired with what, and who is lost to a figure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from support.fakes import make

from ampcompare import metrics
from ampcompare.report import analyse_runs
from ampcompare.report.runs.figures import figures_of
from ampcompare.report.runs.groups import group_runs

SHORT = {"steps": 50, "epochs": 5}
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def run(backend: str, seed: int, *, nth: int = 0, speed: float = 50.0, **options):
    made = make(backend, seed, id=f"{backend}{seed}{nth}{options}", **SHORT, **options)
    made.summary[metrics.THROUGHPUT_MEDIAN] = speed
    made.started_at = BEGAN + timedelta(hours=nth)
    return made


def groups_of(*runs, **options):
    return {g.value: g for g in group_runs([figures_of(r) for r in runs], **options)}


def test_five_processes_of_one_seed_are_five_of_speed_and_one_of_accuracy():
    group = groups_of(*(run("none", 1, nth=n, speed=50 + n) for n in range(5)))["none"]
    assert (group.n, group.seeds) == (5, 1)
    assert group.means["images_per_second"].n == 5
    assert group.means["images_per_second"].has_interval
    assert group.means["quality"].n == 1
    assert not group.means["quality"].has_interval


def test_the_second_process_of_a_seed_is_paired_with_the_second():
    ours = [run("native", 1, nth=n, speed=100 + n) for n in (1, 0)]  # not in the order of starting
    theirs = [run("none", 1, nth=n, speed=50 + n) for n in (0, 1)]
    groups = groups_of(*ours, *theirs)
    fast, slow = (groups[b].sample("images_per_second") for b in ("native", "none"))
    assert fast.keys() == slow.keys()
    assert sorted((fast[key], slow[key]) for key in fast) == [(100, 50), (101, 51)]


def test_pooled_settings_are_paired_like_with_like():
    runs = [run(b, 1, config={"batch_size": n}) for b in ("none", "native") for n in (64, 128)]
    groups = groups_of(*runs, ignored=frozenset({"batch_size"}))
    ours, theirs = (groups[b].sample("quality") for b in ("native", "none"))
    assert ours.keys() == theirs.keys()
    assert len(ours) == 2
    of_batch = {r.option("batch_size"): figures_of(r).quality for r in runs if r.option("backend") == "none"}
    assert {key[1]: value for key, value in theirs.items()} == {(str(n),): q for n, q in of_batch.items()}


def test_each_figure_has_its_own_n_and_names_who_is_lost_to_it():
    def no_accuracy(made):
        for row in made["rows"]:
            row.pop("eval/accuracy", None)
        made["summary"].pop("best/eval_accuracy")

    runs = [run("none", s) for s in (1, 2)] + [run("none", 3, edit=no_accuracy)]
    group = groups_of(*runs)["none"]
    assert (group.means["images_per_second"].n, group.means["quality"].n) == (3, 2)
    assert group.lost("quality") == (("seed 3", "none is recorded"),)
    assert group.lost("images_per_second") == ()
    said = " ".join(analyse_runs(runs).verdict.cautions)
    assert "The eval accuracy of none lacks seed 3 (none is recorded)." in said


def control(arm, seed=1, **options):
    return run("none", seed, config={"plan": {"arm": arm}}, **options)


@pytest.mark.parametrize("arm", ["first", "last", 3, {"odd": 1}, 0.5, float("nan")])
def test_a_run_with_an_arm_is_never_pooled_with_the_baseline(arm):
    groups = group_runs([figures_of(run("none", 1)), figures_of(control(arm))])
    assert [(g.label, g.value, g.is_control) for g in groups] == [
        ("none", "none", False),
        ("none again (A/A)", "none again (A/A)", True),
    ]


def environment(seed=1, **more):
    made = run("none", seed)
    made.summary["environment"] = made.summary["environment"] | more
    return made


def test_what_a_record_adds_of_its_environment_sets_no_runs_apart():
    more = {"git_commit": "abc", "packages": {"torch": "9"}, "clocks": {"a": None}, "added_later": [1, 2]}
    more["machine"] = {"host": "1234", "gpu": "abcd", "start": {"temperature_c": 41}}
    groups = group_runs([figures_of(environment(1)), figures_of(environment(2, **more))])
    assert [g.label for g in groups] == ["none"]


@pytest.mark.parametrize("key", ["torch", "driver", "cudnn", "tf32", "model_source", "data_fingerprint"])
def test_device_software_and_numerics_set_runs_apart(key):
    assert len(group_runs([figures_of(environment(1)), figures_of(environment(2, **{key: "other"}))])) == 2


def test_differing_commits_are_said_and_runs_of_them_pooled():
    runs = [environment(1, git_commit="a" * 40), environment(2, git_commit="b" * 40 + "-dirty")]
    said = " ".join(analyse_runs(runs).verdict.cautions)
    assert "The runs are of 2 states of the code (aaaaaaa and bbbbbbb-dirty) and pooled as of one." in said


def test_the_page_has_one_environment_with_all_values_of_what_differs():
    machines = [{"machine": {"gpu": f"card{n}", "start": {"temperature_c": 40 + n}}} for n in range(3)]
    runs = [environment(n, **one) for n, one in enumerate(machines)]
    (found,) = analyse_runs(runs).environments
    assert len(found.runs) == 3
    assert found.facts["machine gpu"] == "card0, card1 and card2"
    assert found.facts["machine start temperature c"] == "40 to 42"


@pytest.mark.parametrize("moment", [datetime(1, 1, 1), datetime.max, datetime(2026, 1, 1), None])
def test_a_start_without_a_time_zone_or_from_another_age_is_no_reason_to_fail(moment):
    runs = [run("none", seed) for seed in range(3)]
    odd = [run("native", seed) for seed in range(3)]
    for made in odd:
        made.started_at = moment
    analysis = analyse_runs([*runs, *odd])
    assert analysis.comparison("native").speed.n == 3
