"""What is said of a backend and a type as a run begins."""

from __future__ import annotations

import pytest

from ampcompare.config.backend_choice import remarks
from ampcompare.config.effect import effect_of
from ampcompare.config.load import load_config


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["backend=native", "precision.dtype=bfloat16"],
            ["backend=native precision.dtype=bfloat16 is backend=native_bf16: reports call it so"],
        ),
        (
            ["backend=none", "precision.dtype=bfloat16"],
            ["precision.dtype='bfloat16' has no effect: backend=none is fp32"],
        ),
        (["backend=native", "precision.dtype=float16"], []),
        (["backend=native"], []),
        (["backend=native_bf16", "precision.dtype=bfloat16"], []),
        (["backend=native", "precision.dtype=auto"], []),
        (["backend=native", "precision.dtype=bfloat16", "precision.enabled=false"], []),
    ],
)
def test_a_type_that_is_another_backend_or_has_no_effect_is_said(words, said):
    assert remarks(load_config(None, words, of_several=True)) == said


def effect(*words):
    return effect_of(load_config(None, words, of_several=True))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["backend=none"], ["backend=none", "precision.dtype=bfloat16", "precision.init_scale=8"]),
        (["backend=native_bf16"], ["backend=native", "precision.dtype=bfloat16"]),
        (["backend=bf16"], ["backend=bf16", "precision.dtype=auto", "precision.growth_interval=5"]),
        (["backend=native"], ["backend=native", "precision.dtype=float16"]),
        (["backend=none"], ["backend=none", "precision.keep_fp32=fc"]),
        (
            ["backend=fp16", "precision.keep_fp32=fc,*.bn3"],
            ["backend=fp16", "precision.keep_fp32=*.bn3,fc,fc"],
        ),
    ],
)
def test_configs_that_train_the_same_have_one_effect(one, other):
    assert effect(*one) == effect(*other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["backend=native"], ["backend=native_bf16"]),
        (["backend=bf16"], ["backend=bf16_sr"]),
        (["backend=bf16"], ["backend=bf16", "precision.keep_batchnorm_fp32=true"]),
        (["backend=apex_o1"], ["backend=apex_o1", "precision.dtype=bfloat16"]),
        (["backend=apex_o1"], ["backend=apex_o1", "precision.init_scale=8"]),
        (["backend=native"], ["backend=native", "precision.enabled=false"]),
        (["backend=native"], ["backend=native", "precision.keep_fp32=fc"]),
        (["seed=1"], ["seed=2"]),
    ],
)
def test_configs_that_train_otherwise_have_another(one, other):
    assert effect(*one) != effect(*other)
