"""What transformers are made of, under O1: each function in the type in which apex ran it, or its parts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ampcompare.precision.o1.patches import casts

HALF, FLOAT = torch.float16, torch.float32
LEAST = torch.finfo(FLOAT).min
HALVES = pytest.mark.parametrize("half", [HALF, torch.bfloat16], ids=str)
_x = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def _attention(**how: int) -> nn.MultiheadAttention:
    return nn.MultiheadAttention(8, 2, batch_first=True, **how)


def _is_near(y: Tensor, expected: Tensor, half: torch.dtype = HALF, terms: int = 8) -> bool:
    """Whether y is what rounding to half may leave of sums of so many products.

    Each of the terms has two factors, each rounded by half a unit. No sum has more terms than features or
    places, 8 at most, but for the hidden layer of the transformer.
    """
    error = (y.float() - expected).abs().max().item()
    return error <= terms * torch.finfo(half).eps * expected.abs().max().item()


# Modules, and what PyTorch made one function of. The first take fp32 and give half, the others the other way.
RUN_IN_HALF: dict[str, Callable[[Tensor], Tensor]] = {
    "nn.Linear": lambda x: nn.Linear(8, 8)(x),
    "attention": lambda x: _attention()(x, x, x)[0],
    "attention without weights": lambda x: _attention()(x, x, x, need_weights=False)[0],
    "cross attention": lambda x: _attention(kdim=4, vdim=4)(x, x[..., :4], x[..., 4:])[0],
    "attention with a mask": lambda x: _attention()(
        x, x, x, need_weights=False, attn_mask=nn.Transformer.generate_square_subsequent_mask(6)
    )[0],
    "one function": lambda x: F.scaled_dot_product_attention(x, x, x),
    "causal": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "fp32 mask": lambda x: F.scaled_dot_product_attention(x, x, x, 4 * torch.eye(6)),
    "boolean mask": lambda x: F.scaled_dot_product_attention(
        query=x, key=x, value=x, attn_mask=torch.ones(6, 6).tril().bool()
    ),
}
RUN_IN_FLOAT: dict[str, Callable[[Tensor], Tensor]] = {
    "nn.LayerNorm": lambda x: nn.LayerNorm(8)(x),
    "nn.RMSNorm": lambda x: nn.RMSNorm(8)(x),
    "RMS norm by hand": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
    "F.gelu with tanh": lambda x: F.gelu(x, approximate="tanh"),
    "nn.CrossEntropyLoss": lambda x: nn.CrossEntropyLoss()(x.flatten(0, 1), torch.arange(24) % 8),
    "residual times an fp32 gain": lambda x: nn.Parameter(torch.full((8,), 0.1)) * x + _x,
}


@HALVES
@pytest.mark.parametrize("runs_in_half", [True, False])
def test_each_runs_in_its_type_with_the_value_of_fp32_and_gradients_in_the_type_given(runs_in_half, half):
    wrong = {}
    for name, function in (RUN_IN_HALF if runs_in_half else RUN_IN_FLOAT).items():
        given, to = (FLOAT, half) if runs_in_half else (half, FLOAT)
        x = _x.to(given, copy=True).requires_grad_()
        torch.manual_seed(0)  # for the weights it makes
        expected = function(x.float())
        torch.manual_seed(0)
        with casts(device_type="cpu", half=half):
            y = function(x)
        y.float().sum().backward()
        is_near = _is_near(y, expected, to, terms=8 if runs_in_half else _x.numel())
        if y.dtype is not to or not is_near or x.grad.dtype is not given or not x.grad.isfinite().all():
            wrong[name] = (y, expected, x.grad)
    assert wrong == {}


@HALVES
@pytest.mark.parametrize("need_weights", [True, False])
def test_a_module_makes_no_nan_of_rows_masked_by_large_numbers(half, need_weights: bool):
    mask, padding = torch.zeros(6, 6), torch.zeros(_x.shape[0], 6)
    mask[2], mask[3, 1:] = -1e9, -torch.inf
    padding[:, 4:], padding[0] = LEAST, LEAST
    module = _attention()
    given = {"attn_mask": mask, "key_padding_mask": padding, "need_weights": need_weights}
    with casts(device_type="cpu", half=half):
        y = module(_x, _x, _x, **given)[0]
    assert y.isfinite().all()
    rows = [0, 1, 3, 4, 5]  # a row that is masked throughout is whatever it is
    expected = module(_x, _x, _x, **given)[0]
    assert _is_near(y[1:, rows], expected[1:, rows], half)


def _fast(monkeypatch: pytest.MonkeyPatch, name: str) -> list[str]:
    """The calls of PyTorch's fused function from now on."""
    calls: list[str] = []
    original = getattr(torch, name)
    monkeypatch.setattr(torch, name, lambda *args, **kwargs: calls.append(name) or original(*args, **kwargs))
    return calls


def test_evaluated_encoder_computes_as_in_training(monkeypatch):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, activation=F.gelu)
    encoder = nn.TransformerEncoder(layer, 2)
    calls = _fast(monkeypatch, "_transformer_encoder_layer_fwd")
    padding = torch.zeros(4, 6, dtype=torch.bool)
    padding[:, 5] = True
    with torch.no_grad():
        with casts(device_type="cpu"):
            trained = encoder(_x, src_key_padding_mask=padding)
            evaluated = encoder.eval()(_x, src_key_padding_mask=padding)
        assert not calls
        encoder(_x, src_key_padding_mask=padding)
    assert calls
    assert torch.equal(evaluated[:, :5], trained[:, :5])
    assert evaluated.dtype is FLOAT  # of the norm that comes last
