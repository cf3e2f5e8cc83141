"""What O0 to O3 come to, which overrides they take, and which they refuse."""

from __future__ import annotations

import pytest
import torch

from ampcompare.precision.apex.levels import LEVELS, properties


@pytest.mark.parametrize(
    ("level", "model_type", "patched", "batchnorm", "masters", "scale"),
    [
        ("O0", torch.float32, False, None, False, 1.0),
        ("O1", None, True, None, None, "dynamic"),
        ("O2", torch.float16, False, True, True, "dynamic"),
        ("O3", torch.float16, False, False, False, 1.0),
    ],
)
def test_levels_are_those_of_apex(level, model_type, patched, batchnorm, masters, scale) -> None:
    found = properties(level)
    assert found.enabled
    assert found.opt_level == level
    assert found.cast_model_type is model_type
    assert found.patch_torch_functions is patched
    assert found.keep_batchnorm_fp32 is batchnorm
    assert found.master_weights is masters
    assert found.loss_scale == scale


@pytest.mark.parametrize("level", ["01", "o1", "O4", "", None, 1])
def test_unknown_level_is_refused_and_the_letter_explained(level) -> None:
    with pytest.raises(RuntimeError, match=r"Unexpected optimization level .*letter O, not the number zero"):
        properties(level)


@pytest.mark.parametrize(
    ("level", "override", "why"),
    [
        ("O1", {"cast_model_type": torch.float16}, "should remain FP32"),
        ("O1", {"keep_batchnorm_fp32": True}, "keep_batchnorm_fp32 should be None"),
        ("O1", {"keep_batchnorm_fp32": "False"}, "keep_batchnorm_fp32 should be None"),
        ("O1", {"master_weights": True}, "doesn't make sense to use master_weights"),
        ("O1", {"master_weights": False}, "doesn't make sense to use master_weights"),
        ("O0", {"patch_torch_functions": True}, "only be set by selecting opt_level O1"),
        ("O2", {"patch_torch_functions": True}, "only be set by selecting opt_level O1"),
        ("O2", {"keep_batchnorm_fp32": "maybe"}, "keep_batchnorm_fp32='maybe'"),
        ("O2", {"keep_batchnorm_fp32": 1}, "keep_batchnorm_fp32=1"),
        ("O2", {"cast_model_type": torch.int8}, "cast_model_type"),
        ("O2", {"cast_model_type": "half"}, "cast_model_type='half'"),
    ],
)
def test_option_that_contradicts_the_level_is_refused(level, override, why) -> None:
    with pytest.raises(RuntimeError, match=why):
        properties(level, **override)


@pytest.mark.parametrize("value", ["fast", "", 0, -1.0, float("inf"), float("nan"), [], "Dynamic"])
def test_loss_scale_that_is_no_scale_is_refused(value) -> None:
    with pytest.raises(ValueError, match="expected 'dynamic' or a positive number"):
        properties("O1", loss_scale=value)


@pytest.mark.parametrize(
    ("value", "scale"), [(128, 128.0), ("128.0", 128.0), ("1e3", 1000.0), ("dynamic", "dynamic")]
)
@pytest.mark.parametrize("level", list(LEVELS))
def test_loss_scale_may_be_a_number_or_a_word(level, value, scale) -> None:
    found = properties(level, loss_scale=value).loss_scale
    assert found == scale
    assert type(found) is type(scale)


@pytest.mark.parametrize("level", ["O2", "O3"])
@pytest.mark.parametrize(("value", "kept"), [(True, True), ("True", True), (False, False), ("False", False)])
def test_batchnorm_override_may_be_a_word(level, value, kept) -> None:
    assert properties(level, keep_batchnorm_fp32=value).keep_batchnorm_fp32 is kept


def test_none_means_the_level_s_own_choice() -> None:
    nothing = dict.fromkeys(("cast_model_type", "patch_torch_functions", "keep_batchnorm_fp32", "loss_scale"))
    assert properties("O2", **nothing, master_weights=None) == LEVELS["O2"]


def test_o1_takes_fp32_or_false_as_model_type() -> None:
    assert properties("O1", cast_model_type=torch.float32).cast_model_type is torch.float32
    assert properties("O1", cast_model_type=False).cast_model_type is None


def test_o1_may_do_without_patched_functions() -> None:
    assert properties("O1", patch_torch_functions=False).patch_torch_functions is False
