"""What O0 to O3 come to, which overrides they take, and which they refuse."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ampcompare.precision.apex import amp

HALF, FLOAT = torch.float16, torch.float32


@pytest.fixture(autouse=True)
def _reset():
    yield
    amp.reset()


def initialized(level, **overrides) -> nn.Sequential:
    return amp.initialize(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), opt_level=level, **overrides)


def types_of(model: nn.Sequential) -> list[torch.dtype]:
    return [model[0].weight.dtype, model[1].weight.dtype]


def scale() -> float:
    return amp.state_dict()["loss_scaler0"]["loss_scale"]


@pytest.mark.parametrize(
    ("level", "types", "product", "first_scale"),
    [
        ("O0", [FLOAT, FLOAT], FLOAT, 1.0),
        ("O1", [FLOAT, FLOAT], HALF, 2.0**16),
        ("O2", [HALF, FLOAT], FLOAT, 2.0**16),
        ("O3", [HALF, HALF], FLOAT, 1.0),
    ],
)
def test_levels_are_those_of_apex(level, types, product, first_scale) -> None:
    assert types_of(initialized(level)) == types
    assert torch.mm(torch.eye(2), torch.eye(2)).dtype is product
    assert scale() == first_scale


@pytest.mark.parametrize("level", ["01", "o1", "O4", "", None, 1])
def test_unknown_level_is_refused_and_the_letter_explained(level) -> None:
    with pytest.raises(RuntimeError, match=r"Unexpected optimization level .*letter O, not the number zero"):
        initialized(level)


@pytest.mark.parametrize(
    ("level", "override", "why"),
    [
        ("O1", {"cast_model_type": torch.float16}, "should remain FP32"),
        ("O1", {"keep_batchnorm_fp32": "False"}, "keep_batchnorm_fp32 should be None"),
        ("O1", {"master_weights": False}, "doesn't make sense to use master_weights"),
        ("O0", {"patch_torch_functions": True}, "only be set by selecting opt_level O1"),
        ("O2", {"keep_batchnorm_fp32": "maybe"}, "keep_batchnorm_fp32='maybe'"),
        ("O2", {"keep_batchnorm_fp32": 1}, "keep_batchnorm_fp32=1"),
        ("O2", {"cast_model_type": torch.int8}, "cast_model_type"),
        ("O2", {"cast_model_type": "half"}, "cast_model_type='half'"),
    ],
)
def test_option_that_contradicts_the_level_is_refused(level, override, why) -> None:
    with pytest.raises(RuntimeError, match=why):
        initialized(level, **override)


@pytest.mark.parametrize("value", ["fast", "", 0, -1.0, float("inf"), float("nan"), [], "Dynamic"])
def test_loss_scale_that_is_no_scale_is_refused(value) -> None:
    with pytest.raises(ValueError, match="expected 'dynamic' or a positive number"):
        initialized("O1", loss_scale=value)


@pytest.mark.parametrize(
    ("value", "first"), [(128, 128.0), ("128.0", 128.0), ("1e3", 1000.0), ("dynamic", 2.0**16)]
)
@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_loss_scale_may_be_a_number_or_a_word(level, value, first) -> None:
    initialized(level, loss_scale=value)
    assert scale() == first


@pytest.mark.parametrize("level", ["O2", "O3"])
@pytest.mark.parametrize(("value", "kept"), [("True", FLOAT), (False, HALF), ("False", HALF)])
def test_batchnorm_override_may_be_a_word(level, value, kept) -> None:
    assert types_of(initialized(level, keep_batchnorm_fp32=value)) == [HALF, kept]


@pytest.mark.parametrize("model_type", [torch.float32, False])
def test_o1_takes_fp32_or_false_as_model_type(model_type) -> None:
    assert types_of(initialized("O1", cast_model_type=model_type)) == [FLOAT, FLOAT]
