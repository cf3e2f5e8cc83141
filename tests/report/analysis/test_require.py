"""What is required is held against the interval that was tested, and told in a line."""

from __future__ import annotations

import pytest
from support.fakes import make
from support.known_runs import BASE, FAST, FASTER, SAME, less, runs

from ampcompare.errors import UserError
from ampcompare.report import analyse_runs

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
