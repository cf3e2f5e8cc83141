"""The first sentence, and why nothing is skipped in bf16."""

from __future__ import annotations

from support.fakes import make

from ampcompare import metrics
from ampcompare.report import analyse_runs


def of(backend: str, dtype: str = "float16", seed: int = 1, scales: list[float] | None = None):
    def edit(plan):
        plan["config"] |= {"backend": backend, "precision": {"enabled": True, "dtype": dtype}}
        if scales:
            for row, scale in zip(plan["rows"], scales * len(plan["rows"]), strict=False):
                row[metrics.SCALE] = scale
                row[metrics.SKIPPED] = 0

    return make("native", seed, edit=edit, id=f"{backend}-{dtype}-{seed}")


def test_it_says_who_computed_with_how_many_bits():
    said = analyse_runs([of("none"), of("native"), of("bf16", "bfloat16"), of("apex_o1")]).lead
    assert said.startswith("A neural network (")
    assert "with 32-bit numbers (none), with 16-bit numbers where that is safe (native and apex_o1)" in said
    assert "and with 16-bit numbers throughout (bf16)" in said
    assert "16 bits can be faster and take less memory, but are less exact." in said


def test_a_backend_that_it_does_not_know_is_given_no_bits():
    assert "in other ways (mine)" in analyse_runs([of("none"), of("mine", "float8_e4m3fn")]).lead


def notes(*runs) -> str:
    return " ".join(analyse_runs(list(runs)).verdict.notes)


def test_a_scale_that_grows_over_bf16_is_explained():
    said = notes(of("none"), of("apex_o1", "bfloat16", scales=[1024.0, 2048.0]))
    assert "The loss scale of apex_o1_bf16 went from 1,024 to 2,048 and no step was skipped" in said
    assert "bf16 has the range of fp32" in said


def test_a_scale_over_fp16_or_one_that_stays_is_not():
    assert "range of fp32" not in notes(of("none"), of("apex_o1", "float16", scales=[1024.0, 2048.0]))
    assert "range of fp32" not in notes(of("none"), of("apex_o1", "bfloat16", scales=[1024.0]))
