"""Records of ours and of other programs with anything in any place: analysed or refused in one line."""

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from report.outputs import outputs
from support.external import several
from support.fakes import make, plan
from support.properties import examples
from support.publication_files import write_publication

from ampcompare import analyse_runs, metrics
from ampcompare.errors import UserError
from ampcompare.report.page.render import render_page
from ampcompare.runs import RunRecord
from ampcompare.runs.missing_input import MissingInput
from ampcompare.runs.nested import flatten, write
from ampcompare.runs.run_record import build_columns
from ampcompare.runs.system_metrics import MachineFacts, facts_of

HOSTILE = "</script><img src=x onerror=alert(1)>"
OURS = [key for key, _ in flatten(plan("native")["config"])]
PLACES = """
model data precision max_steps log.warmup_steps environment environment.device_name eval.autocast plan
plan.arm plan.margin plan.looks data.test_limit environment.machine environment.machine.gpu published
environment.machine.earlier environment.git_commit a/b metric_for_best_model trainer trainer.precision fp16
dataset tf32
""".split()
KEYS = """
train_loss val_acc samples_per_sec gpu_mem step _step _timestamp _runtime trainer/global_step environment
environment.machine
""".split()
KEYS += [*metrics.METRICS, HOSTILE]
ODD = [{}, [], {"a": {}}, [None], "", "\ud800</script>", True, -1, float("nan"), float("inf"), 10**400]
SINGLE = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6)
SINGLE |= st.sampled_from(
    [10**4000, -(10**400), "NaN", "1e999", "b'\\xff'", "\x1b[31m", HOSTILE, 5e-324, 1e308]
)
ANYTHING = st.sampled_from(ODD) | st.recursive(
    SINGLE,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
)
SHORT = {"steps": 20, "epochs": 2}


def put(run: RunRecord, place: str, value: Any, *, flat: bool = False) -> RunRecord:
    """Return the run with a value in its config; `flat`: under the dotted key, as sweeps may log it."""
    config = copy.deepcopy(run.config)
    write(config, (place,) if flat else tuple(place.split(".")), value)
    return replace(run, config=config)


def ours(seed: int = 1) -> RunRecord:
    run = make("native", seed, **SHORT)
    run.summary.pop("environment")  # as of a run that did not end: the config's own counts
    return run


def answer(runs: list[RunRecord], **asked: Any) -> int:
    """How many runs the analysis is of, all outputs written; a refusal in one line counts for all."""
    try:
        analysis = analyse_runs(runs, **asked)
    except UserError as refused:
        return len(runs) * (len(refused.lines) == 1 or isinstance(refused, MissingInput))
    texts = outputs(analysis)
    json.loads(texts.pop("json"), parse_constant=pytest.fail)  # NaN is no JSON
    assert not [odd for odd in ("(nan", "inf×", " inf ") for text in texts.values() if odd in text]
    return sum(len(group.all_rows) for group in analysis.groups)


NAMED = {"group_by": ["trainer.precision"], "baseline": "32-true"}


@examples(15, 80)
def test_anything_in_a_config_a_column_a_summary_or_the_machine_is_analysed(tmp_path, examples: int):
    asked = [{}, NAMED | {"metric": "val_acc:max"}, {"reproduce": write_publication(tmp_path)}]

    @settings(max_examples=examples)
    @example(True, "epochs", False, "", [{}], False, asked[0])
    @example(True, "epochs", False, "amp/scale_factor", [float("inf")], False, asked[0])
    @given(
        is_ours=st.booleans(),
        place=st.sampled_from([*OURS, *PLACES]) | st.text(max_size=6),
        flat=st.booleans(),
        key=st.sampled_from(KEYS) | st.text(max_size=6),
        values=st.lists(ANYTHING, min_size=1, max_size=3),
        is_all=st.booleans(),
        how=st.sampled_from(asked),
    )
    def check(is_ours, place: str, flat: bool, key: str, values: list[Any], is_all: bool, how: Any) -> None:
        def odd(run: RunRecord) -> RunRecord:
            _, column = build_columns({key: values[n % len(values)]} for n in range(run.rows))
            machine = MachineFacts(facts=facts_of({"gpu_nvidia": values, "gpu": values[0], key: values[-1]}))
            run = replace(run, logged=run.logged | column, summary=run.summary | {key: values[0]})
            return replace(put(run, place, values[-1], flat=flat), machine=machine)

        runs = [make("none", **SHORT), ours()] if is_ours else several(2, steps=4)
        made = [odd(run) if is_all or n == 1 else run for n, run in enumerate(runs)]
        assert answer(made, **how) == len(runs)

    check()


@pytest.mark.parametrize("left", [["train_loss"], ["val_acc", "_step"], []])
def test_rows_without_steps_or_clocks_or_anything_are_analysed(left: list[str]):
    runs = [replace(run, logged={key: run.logged[key] for key in left}, summary={}) for run in several(2)]
    assert answer(runs, metric=f"{left[-1]}:max" if left else None, **NAMED) == 4


@pytest.mark.slow
def test_a_page_shows_runs_with_odd_values_in_every_place():
    odd = [put(ours(n), place, ODD[n % len(ODD)]) for n, place in enumerate([*OURS, *PLACES])]
    page = render_page(analyse_runs([make("none", **SHORT), *odd])).decode()
    assert all(run.id in page for run in odd)
