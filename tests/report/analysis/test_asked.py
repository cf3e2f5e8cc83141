"""What is asked beside the runs: requirements and the plan, each held against the interval that was tested;
speed and memory that `ampcompare bench` measured.
"""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from support.fakes import make
from support.known_runs import BASE, FAST, FASTER, SAME, SLOW, less, runs

from ampcompare import analyse_runs
from ampcompare.errors import UserError

RECORDS = [
    *runs("none", BASE),
    *runs("native", SAME, FAST),
    *runs("apex_o1", less(0.37), FAST),
    *runs("fp16", SAME, FASTER, failed=(1, 2, 4)),
]


@pytest.fixture(scope="module")
def known():
    analysis = analyse_runs(RECORDS)
    return analysis.comparison("native").estimates


def shown(text: str, records=RECORDS, **options) -> dict[str, bool]:
    analysis = analyse_runs(records, require=[text], **options)
    return {answer.term.text: answer.is_shown for answer in analysis.requirements}


def test_what_is_shown_ends_where_the_interval_does(known):
    low, high = known["speed"].low, known["memory"].high
    terms = (f"speedup >= {low - 1e-6:.9f}", f"speedup >= {known['speed'].value:.9f}")
    assert list(shown(f"native: {', '.join(terms)}").values()) == [True, False]
    terms = (f"memory <= {high + 1e-6:.9f}", f"memory <= {high - 1e-6:.9f}")
    assert list(shown(f"native: {', '.join(terms)}").values()) == [True, False]


def test_equivalence_is_asked_at_the_margin_of_the_requirement_not_the_reports():
    terms = ("equivalent within 0.5", "equivalent within 0.3", "not lower by 0.4", "not lower by 0.36")
    found = shown(f"apex_o1: {', '.join(terms)}", margin=2.0)
    assert found == dict(zip(terms, (True, False, True, False), strict=True))


def test_a_control_speaks_against_a_speed_up_but_not_against_being_no_slower_than_a_share():
    small = (40.4, 41.42, 42.41, 40.41, 41.4)
    arm = runs("none", SAME, (38, 43.5, 40, 43, 41), arms=("first", "first", "last", "last", "last"))
    records = [*runs("none", BASE), *runs("native", SAME, small), *arm]
    assert shown("native: speedup >= 1, speedup >= 0.95", records) == {
        "speedup >= 1": False,
        "speedup >= 0.95": True,
    }


def test_nothing_of_quality_is_shown_of_a_group_with_failures():
    assert shown("fp16: speedup >= 1.5, equivalent within 5, not lower by 5, failures <= 2") == {
        "speedup >= 1.5": False,  # two runs are left, too few for an interval
        "equivalent within 5": False,
        "not lower by 5": False,
        "failures <= 2": False,
    }
    assert shown("fp16: failures <= 3") == {"failures <= 3": True}
    one_failed = [*runs("none", BASE), *runs("native", SAME, FAST, failed=(4,))]  # four are left to compare
    assert shown("native: equivalent within 0.5, speedup >= 1.5", one_failed) == {
        "equivalent within 0.5": False,
        "speedup >= 1.5": True,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("native speedup >= 1", "expected 'LABEL: TERM'"),
        ("native: speed >= 1.5", "did you mean speedup >= X"),
        ("native: speedup >= fast", "is no term"),
        ("native: speedup >= 0", "expected a number above 0"),
        ("native: failures <= 1.5", "expected a whole number"),
        ("nativ: speedup >= 1.5", "did you mean native"),
        ("none: speedup >= 1.5", "what others are compared with"),
    ],
)
def test_words_that_say_nothing_are_one_line(text, message):
    with pytest.raises(UserError, match=message) as told:
        analyse_runs(RECORDS, require=[text])
    assert "\n" not in str(told.value)
    with pytest.raises(UserError, match="the better the lower"):
        analyse_runs(RECORDS, metric="eval/loss", require=["native: not lower by 0.1"])


def test_a_run_that_goes_on_may_fail_still():
    going = make("native", 9, state="running", steps=20, epochs=2)
    done = [make(b, seed, steps=20, epochs=2) for b in ("none", "native") for seed in range(3)]
    (answer,) = analyse_runs([*done, going], require=["native: failures <= 0"]).requirements
    assert not answer.is_shown
    assert answer.why == "3 of 4 runs, 1 running"
    (answer,) = analyse_runs([*done, going], require=["native: failures <= 1"]).requirements
    assert answer.is_shown


PLAN = {"margin": 1.0, "target": 0.5, "looks": [3, 5], "max_seeds": 5}


def planned(n: int = 5, **plan: Any):
    config = {"plan": PLAN | plan}
    return [*runs("none", BASE[:n], config=config), *runs("native", SAME[:n], FAST, config=config)]


def note(records, **options) -> str:
    return analyse_runs(records, **options).remarks[0]


def test_margin_target_and_levels_are_those_of_the_plan():
    analysis = analyse_runs(planned())
    assert (analysis.metric.margin, analysis.target) == (1.0, 50.0)
    assert "the same within 1 point" in analysis.headline
    assert analysis.level == 1 - 0.05 / 2  # two looks share the 5 %
    assert (
        "planned: margin 1 point, target 50.00 %, looks at 3 and 5 seeds, 5 seeds at most" in analysis.basis
    )
    assert "Not as planned" not in " ".join(analysis.remarks)


def test_what_is_asked_for_comes_before_the_plan_and_is_said():
    analysis = analyse_runs(planned(), margin=0.5, target=0.6)
    assert (analysis.metric.margin, analysis.target) == (0.5, 60.0)
    assert analysis.remarks[0] == "Not as planned: the margin is 0.5 points and the target is 60.00 %."


def test_what_is_not_as_planned_is_said():
    assert "4 seeds so far is no planned look" in note(planned(4))
    assert "no planned look" not in note(planned(3))
    assert "there is no control" in note(planned(control="bookends"))
    unplanned = analyse_runs([*runs("none", BASE), *runs("native", SAME, FAST)])
    assert "planned" not in " ".join([unplanned.basis, unplanned.caption, *unplanned.remarks])


def test_runs_that_disagree_have_no_plan_in_it():
    records = [*runs("none", BASE, config={"plan": {"margin": 1.0}})]
    records += runs("native", SAME, FAST, config={"plan": {"margin": 2.0}})
    analysis = analyse_runs(records)
    assert analysis.metric.margin == 0.5
    assert "The runs' plan.margin is 1.0 and 2.0: none of these is used." in " ".join(analysis.remarks)


def test_of_a_plan_that_was_extended_every_look_counts():
    """With one look for none of them the intervals would be too narrow."""
    longer = {"plan": PLAN | {"looks": [3, 5, 10]}}
    analysis = analyse_runs([*planned(), *runs("fp16", SAME, FAST, config=longer)])
    assert analysis.level == 1 - 0.05 / 6  # three looks, two groups
    assert "plan.looks is [3, 5] and [3, 5, 10]: every look of these counts" in " ".join(analysis.remarks)


ODD = ({}, [], "</script>", True, float("nan"), float("inf"), 10**400, [1], [3] * 10_001)
BELOW = (-1, 0)


def test_a_value_that_is_no_plan_is_not_used_and_named(subtests: pytest.Subtests):
    for key, odd in itertools.product(PLAN | {"control": ""}, (*ODD, *BELOW)):
        with subtests.test(key=key, odd=odd):
            analysis = analyse_runs(planned(2, **(dict.fromkeys(PLAN) | {key: odd})))
            assert getattr(analysis.plan, key) in (None, (), "")
            assert f"The runs' plan.{key} is " in " ".join(analysis.remarks)
            assert analysis.metric.margin == 0.5


RUNS = [*runs("none", BASE), *runs("native", SAME, FAST), *runs("fp16", SAME, SLOW)]
(DEVICE,) = analyse_runs(RUNS).groups[0].devices


def arm(label: str, ratio: float, *ends: float | None, **more: str) -> dict[str, Any]:
    low, high = ends or (None, None)
    figures = {"step_ms": 1.0, "images_per_second": 100.0 * ratio, "peak_mib": 50.0, "failed": None}
    told = {"label": label, "options": {"backend": label} | more, "rounds": 24}
    return figures | told | {"ratio": ratio, "low": low, "high": high}


NATIVE = arm("native", 1.3, 1.2, 1.4)


def with_bench(folder: Path, *arms: dict[str, Any], control: tuple[float, float] = (0.98, 1.02), **more: Any):
    every = [arm("none", 1.0, 1.0, 1.0), *arms]
    content = {"baseline": "none", "level": 0.99, "machine": "a card", "device": DEVICE, "minutes": 1.0}
    file = folder / "bench.json"
    file.write_text(json.dumps(content | {"control": arm("control", 1.01, *control), "arms": every} | more))
    return analyse_runs(RUNS, bench=str(file))


def test_speed_is_that_of_the_bench_and_all_else_that_of_the_runs(tmp_path: Path):
    found, alone = with_bench(tmp_path, NATIVE, arm("fp16", 1.1)), analyse_runs(RUNS)
    native, fp16 = found.comparison("native"), found.comparison("fp16")
    assert (native.speedup, native.estimates["speed"].ends) == (1.3, (1.2, 1.4))
    assert native.claims["speed"].shown == ("faster",)
    assert (fp16.speedup, fp16.claims["speed"].why) == (1.1, "24 rounds in turns")
    assert native.group.figures["images_per_second"].value == pytest.approx(130)
    for question in ("memory", "quality"):
        assert native.estimates[question] == alone.comparison("native").estimates[question]
    assert found.headline.startswith("native: 1.30× as fast, ")
    assert "Speed is by `ampcompare bench`: 24 rounds in turns on a card, intervals at 99 %" in found.caption


@pytest.mark.parametrize(("options", "device"), [({"batch_size": "7"}, DEVICE), ({}, "another card")])
def test_a_group_that_the_bench_has_not_keeps_its_own_speed(tmp_path: Path, options, device: str):
    found = with_bench(tmp_path, arm("native", 1.3, 1.2, 1.4, **options), device=device)
    alone = analyse_runs(RUNS)
    for label in ("native", "fp16"):
        assert found.comparison(label).estimates["speed"] == alone.comparison(label).estimates["speed"]
    assert "None of the arms of --bench has" in found.caption


def test_where_the_control_is_none_nothing_is_claimed(tmp_path: Path):
    found = with_bench(tmp_path, NATIVE, control=(1.05, 1.1))
    assert not found.comparison("native").claims["speed"].shown
    assert "without intervals, as its control, nothing changed, came out at 1.01×" in found.caption


@pytest.mark.parametrize(("content", "why"), [("{", "cannot be read"), ('{"arms": 3}', "not what")])
def test_another_file_is_refused_in_one_line(content: str, why: str, tmp_path: Path):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(UserError, match=why) as problem:
        analyse_runs(RUNS, bench=str(tmp_path / "x.json"))
    assert len(problem.value.lines) == 1
