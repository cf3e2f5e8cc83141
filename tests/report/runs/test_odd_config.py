"""A record's config with anything in any place: the run is analysed, never a traceback."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.fakes import Plan, make, plan

from ampcompare import metrics
from ampcompare.records import RunRecord
from ampcompare.records.tree import flatten
from ampcompare.report import analyse_runs
from ampcompare.report.analysis.analysis import Analysis
from ampcompare.report.exports import to_csv, to_json
from ampcompare.report.page.render import render_page
from ampcompare.report.text import to_markdown

KNOWN = [key for key, _ in flatten(plan("native")["config"])]
MORE = """
    model data precision max_steps log.warmup_steps environment environment.device_name eval.autocast plan
    plan.arm plan.margin plan.looks data.test_limit environment.machine environment.machine.gpu
    environment.machine.earlier environment.git_commit
""".split()
PLACES = [*KNOWN, *MORE]
SINGLE = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6)
SINGLE |= st.sampled_from([10**400, 10**4000, -(10**400), "b'\\xff'", "1e999", "NaN"])
KEYS = st.text(max_size=3)
ANYTHING = st.recursive(
    SINGLE, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=2)
)
ODD = ({}, [], {"a": {}}, [None], "", "\ud800</script>", True, -1, float("nan"), float("inf"), 10**400)
SUMMARY = [*metrics.METRICS, "environment.machine"]
SHORT = {"steps": 20, "epochs": 2}


def run_with(place: str, value: Any, seed: int = 1, *, flat: bool = False) -> RunRecord:
    """A run with that value there; `flat`: under the dotted key itself, as a sweep may log it."""

    def edit(made: Plan) -> None:
        made["summary"].pop("environment")  # as of a run that did not end: the config's own counts
        tree, last = made["config"], place
        while "." in last and not flat:
            group, _, last = last.partition(".")
            tree[group] = tree = dict(inner) if isinstance(inner := tree.get(group), dict) else {}
        tree[last] = value

    return make("native", seed, edit=edit, **SHORT)


def assert_written(analysis: Analysis) -> None:
    """Every table is made, and no NaN is in the JSON, which has none."""
    assert to_csv(analysis)
    assert to_markdown(analysis)
    json.loads(to_json(analysis), parse_constant=pytest.fail)


@example(place="epochs", value={}, flat=False)
@given(place=st.sampled_from(PLACES) | st.text(max_size=6), value=ANYTHING, flat=st.booleans())
def test_any_value_in_any_place_of_a_config_is_analysed(place: str, value: Any, flat: bool):
    analysis = analyse_runs([make("none", **SHORT), run_with(place, value, flat=flat)])
    assert sum(len(group.all_rows) for group in analysis.groups) == 2
    assert_written(analysis)


@pytest.mark.slow
def test_a_page_shows_runs_with_odd_values_in_every_place():
    odd = [run_with(place, ODD[n % len(ODD)], n) for n, place in enumerate(PLACES)]
    page = render_page(analyse_runs([make("none", **SHORT), *odd])).decode()
    assert all(run.id in page for run in odd)


@given(key=st.sampled_from(SUMMARY) | st.text(max_size=6), value=ANYTHING)
def test_any_value_in_any_place_of_a_summary_is_analysed(key: str, value: Any):
    run = make("native", **SHORT)
    run = replace(run, summary=run.summary | {key: value})
    analysis = analyse_runs([make("none", **SHORT), run])
    assert sum(len(group.all_rows) for group in analysis.groups) == 2
    assert_written(analysis)
