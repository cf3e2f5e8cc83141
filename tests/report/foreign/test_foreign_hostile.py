"""Records of other programs with anything in them: analysed or refused in one line, never a traceback."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.foreign import several
from support.properties import examples

from ampcompare.errors import UserError
from ampcompare.records import RunRecord
from ampcompare.records.machine import Machine, facts_of
from ampcompare.records.run import columns_of
from ampcompare.report import analyse_runs, exports, text

HOSTILE = "</script><img src=x onerror=alert(1)>"
PLACES = """
backend seed batch_size model data environment plan epochs max_steps a/b metric_for_best_model trainer
trainer.precision fp16 dataset plan.arm device
""".split()
SINGLE = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6)
SINGLE |= st.sampled_from([10**400, "NaN", "1e999", "\x1b[31m", HOSTILE, 5e-324, 1e308, -1.0, 0.0, 40.0])
ANYTHING = st.recursive(
    SINGLE,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
)
KEYS = """
train_loss val_acc samples_per_sec gpu_mem step _step _timestamp _runtime epoch global_step
trainer/global_step eval/accuracy environment amp/scale_factor
""".split()
KEYS.append(HOSTILE)


def answer(runs: list[Any], **asked: Any) -> int:
    """How many runs the analysis is of, all outputs written; a refusal in one line counts for all."""
    try:
        analysis = analyse_runs(runs, **asked)
    except UserError as refused:
        return len(runs) * (len(refused.lines) == 1)
    json.loads(exports.to_json(analysis), parse_constant=pytest.fail)  # NaN is no JSON
    assert exports.to_csv(analysis)
    assert text.to_markdown(analysis)
    return sum(len(group.all_rows) for group in analysis.groups)


@examples(15, 300)
def test_anything_in_a_config_a_column_a_summary_or_the_machine_is_analysed(examples: int):
    @settings(max_examples=examples)
    @given(
        place=st.sampled_from(PLACES) | st.text(max_size=6),
        key=st.sampled_from(KEYS) | st.text(max_size=6),
        values=st.lists(ANYTHING, min_size=1, max_size=3),
        is_all=st.booleans(),
    )
    def check(place: str, key: str, values: list[Any], is_all: bool) -> None:
        def odd(run: RunRecord) -> RunRecord:
            _, column = columns_of({key: values[n % len(values)]} for n in range(run.rows))
            machine = Machine(facts=facts_of({"gpu_nvidia": values, "gpu": values[0], key: values[-1]}))
            machine.sample({"gpu.0.memoryAllocatedBytes": values[0], key: values[-1]})
            found = replace(run, logged=run.logged | column, summary=run.summary | {key: values[0]})
            return replace(found, config=run.config | {place: values[-1]}, machine=machine)

        runs = [odd(run) if is_all or n == 1 else run for n, run in enumerate(several(2, steps=4))]
        assert answer(runs) == answer(runs, group_by=["trainer.precision"]) == 4

    check()


@pytest.mark.parametrize("left", [["train_loss"], ["val_acc", "_step"], []])
def test_rows_without_steps_or_clocks_or_anything_are_analysed(left: list[str]):
    runs = [replace(run, logged={key: run.logged[key] for key in left}, summary={}) for run in several(2)]
    assert answer(runs, metric=left[-1] if left else None) == 4
