"""What transformers are made of, under O1: each function in the type in which apex ran it, or its parts."""

from __future__ import annotations

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
