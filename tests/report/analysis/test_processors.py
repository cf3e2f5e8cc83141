"""What is said of runs on a CPU: by what their half types ran on there."""

from __future__ import annotations

import pytest
from support.fakes import make

from ampcompare.report import analyse_runs

AMX = {"bfloat16": "amx_bf16", "float16": "emulated"}
OLD_CPU = {"bfloat16": "emulated", "float16": "emulated"}


def on_cpu(backend: str, dtype: str, arithmetic: object = None, seed: int = 1, **config: object):
    def edit(plan):
        plan["config"] |= {"backend": backend, "precision": {"enabled": True, "dtype": dtype}, **config}
        plan["summary"]["environment"] |= {"device_type": "cpu", "precision_dtype": dtype}
        if arithmetic is not None:
            plan["summary"]["environment"]["arithmetic"] = arithmetic

    return make("native", seed, edit=edit, id=f"{backend}-{dtype}-{seed}")


def caution(*runs) -> str:
    (found,) = [c for c in analyse_runs(list(runs)).verdict.cautions if c.startswith("Measured on a CPU")]
    return found


def test_what_ran_on_units_of_its_own_is_not_doubted():
    said = caution(on_cpu("none", "float32", AMX), on_cpu("native_bf16", "bfloat16", AMX))
    assert "with bf16 on its own units (amx_bf16)" in said
    assert "emulated" not in said
    assert "say nothing" not in said


def test_what_was_emulated_is_named_with_those_that_ran_it():
    said = caution(on_cpu("none", "float32", AMX), on_cpu("apex_o2", "float16", AMX))
    assert "where fp16 arithmetic is emulated: the speed figures of apex_o2 say nothing about a GPU" in said
    both = caution(on_cpu("native", "float16", OLD_CPU), on_cpu("native_bf16", "bfloat16", OLD_CPU))
    assert "fp16 and bf16 arithmetic is emulated: the speed figures of native and native_bf16" in both


HOSTILE = [{"float16": odd} for odd in ("<b>amx</b>", "\x1b[31m", "a" * 400)]


@pytest.mark.parametrize("arithmetic", [None, "amx_bf16", {"float16": 7}, [1], *HOSTILE])
def test_a_record_without_the_fact_or_with_words_of_its_own_is_worded_carefully(arithmetic):
    said = caution(on_cpu("native", "float16", arithmetic))
    assert "fp16 arithmetic is emulated unless the processor has units for it" in said
    assert "the records do not say" in said
    assert not any(odd in said for odd in ("<b>", "\x1b", "aaaa"))


def test_fp32_alone_on_a_cpu_is_neither_emulated_nor_doubted():
    said = caution(on_cpu("none", "float32", AMX))
    assert "in fp32: these speed figures are of this processor" in said
    off = caution(on_cpu("native", "float16", AMX, precision={"enabled": False, "dtype": "float16"}))
    assert "emulated" not in off
