"""Backends in their types: what is pooled, what it is called, what it is compared with."""

from __future__ import annotations

import pytest
from support.fakes import make

from ampcompare.report import analyse_runs
from ampcompare.report.runs.table import words_of


def run(backend, seed, dtype="bfloat16", *, took=None):
    def edit(plan):
        plan["config"] |= {"backend": backend, "precision": {"enabled": True, "dtype": dtype}}
        if took:
            plan["summary"]["environment"]["precision_dtype"] = took

    return make("native", seed, edit=edit, id=f"{backend}-{dtype}-{seed}")


def runs(*kinds, seeds=2):
    return [run(backend, seed, dtype) for seed in range(seeds) for backend, dtype in kinds]


NONE, NATIVE = ("none", "float16"), ("native", "float16")
OLD, NEW = ("native", "bfloat16"), ("native_bf16", "bfloat16")


def test_old_and_new_runs_of_native_in_bf16_are_one_group():
    mixed = [*runs(NONE), run(*OLD[:1], 0), run(*NEW[:1], 1)]
    analysis = analyse_runs(mixed)
    assert [(g.label, g.n) for g in analysis.groups] == [("none", 2), ("native_bf16", 2)]
    assert not [c for c in analysis.remarks if "in 2 groups" in c]


def test_native_in_each_type_is_a_group_of_its_own():
    groups = analyse_runs(runs(NONE, NATIVE, OLD)).groups
    assert [group.label for group in groups] == ["none", "native", "native_bf16"]


@pytest.mark.parametrize(("took", "label"), [("float16", "native"), ("bfloat16", "native_bf16")])
def test_a_type_that_was_left_to_the_machine_is_the_one_it_took(took, label):
    given = [run("native", seed, "auto", took=took) for seed in range(2)]
    explicit = [run("native", seed + 2, took) for seed in range(2)]
    assert [(g.label, g.n) for g in analyse_runs([*given, *explicit]).groups] == [(label, 4)]


def test_apex_o1_in_bf16_is_called_so_and_never_apex_itself():
    analysis = analyse_runs(runs(NONE, ("apex_o1", "float16"), ("apex_o1", "bfloat16")))
    assert [g.label for g in analysis.groups] == ["none", "apex_o1", "apex_o1_bf16"]
    meanings = {label: style.meaning for label, style in analysis.styles.items()}
    assert meanings["apex_o1"] == "apex O1, fp16"
    assert meanings["apex_o1_bf16"] == "apex O1 lists in bf16"
    assert words_of(run("apex_o1", 1)) == "apex O1 lists in bf16"
