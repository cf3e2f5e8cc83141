"""What transformers are made of, under O1: each function in the type in which apex ran it, or its parts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ampcompare.precision.apex.casts import casts, disable_casts

HALF, FLOAT = torch.float16, torch.float32
_generator = torch.Generator().manual_seed(0)
_x = torch.randn(4, 6, 8, generator=_generator)
_w = torch.randn(8, 8, generator=_generator) * 0.3
_tokens = torch.tensor([[1, 2, 3], [4, 5, 6]])


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


# What runs in what, by a function of the input. The first group takes fp32 and gives half.
RUN_IN_HALF: dict[str, Callable[[Tensor], Tensor]] = {
    "nn.Linear": lambda x: nn.Linear(8, 8)(x),
    "F.linear": lambda x: F.linear(x, _w),
    "matmul": lambda x: torch.matmul(x, _w),
    "@": lambda x: x @ _w,
    "@ reflected": lambda x: _w @ x.transpose(1, 2),
    "bmm": lambda x: torch.bmm(x, x.transpose(1, 2)),
    "baddbmm": lambda x: torch.baddbmm(torch.ones(6), x, x.transpose(1, 2)),
    "addmm": lambda x: torch.addmm(torch.ones(8), x[0], _w),
    "addbmm": lambda x: torch.addbmm(torch.ones(6), x, x.transpose(1, 2)),
    "Tensor.mm": lambda x: x[0].mm(_w),
    "nn.MultiheadAttention": lambda x: nn.MultiheadAttention(8, 2, batch_first=True)(x, x, x)[0],
    "attention without weights": lambda x: _attention()(x, x, x, need_weights=False)[0],
    "cross attention": lambda x: _attention(kdim=4, vdim=4)(x, x[..., :4], x[..., 4:])[0],
    "attention with a mask": lambda x: _attention()(
        x, x, x, need_weights=False, attn_mask=nn.Transformer.generate_square_subsequent_mask(6)
    )[0],
    "scaled_dot_product_attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "causal attention": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "attention with an fp32 mask": lambda x: F.scaled_dot_product_attention(x, x, x, torch.zeros(6, 6)),
    "attention with a boolean mask": lambda x: F.scaled_dot_product_attention(
        query=x, key=x, value=x, attn_mask=torch.ones(6, 6).tril().bool()
    ),
}
# These take half and give fp32.
RUN_IN_FLOAT: dict[str, Callable[[Tensor], Tensor]] = {
    "nn.LayerNorm": lambda x: nn.LayerNorm(8)(x),
    "F.layer_norm": lambda x: F.layer_norm(x, (8,)),
    "nn.RMSNorm": lambda x: nn.RMSNorm(8)(x),
    "F.rms_norm": lambda x: F.rms_norm(x, (8,), eps=1e-6),
    "RMS norm by hand": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
    "nn.GroupNorm": lambda x: nn.GroupNorm(2, 6)(x),
    "nn.GELU": lambda x: nn.GELU()(x),
    "F.gelu with tanh": lambda x: F.gelu(x, approximate="tanh"),
    "nn.Softmax": lambda x: nn.Softmax(-1)(x),
    "F.softmax": lambda x: F.softmax(x, dim=-1),
    "F.log_softmax": lambda x: F.log_softmax(x, -1),
    "cross entropy": lambda x: F.cross_entropy(x.flatten(0, 1), torch.arange(24) % 8),
    "nn.CrossEntropyLoss": lambda x: nn.CrossEntropyLoss()(x.flatten(0, 1), torch.arange(24) % 8),
    "nn.MSELoss": lambda x: nn.MSELoss()(x, torch.zeros_like(x)),
    "nn.L1Loss": lambda x: nn.L1Loss()(x, torch.zeros_like(x)),
    "residual of half and fp32": lambda x: x + _x,
    "residual of fp32 and half": lambda x: _x + x,
    "residual times an fp32 gain": lambda x: nn.Parameter(torch.full((8,), 0.1)) * x,
    "cat of half and fp32": lambda x: torch.cat([x, _x], 1),
    "stack of half and fp32": lambda x: torch.stack([x, _x]),
    "sum": lambda x: x.sum(-1),
}


def _attention(**how: int) -> nn.MultiheadAttention:
    return nn.MultiheadAttention(8, 2, batch_first=True, **how)


def _in_fp32(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    torch.manual_seed(0)  # for the weights it makes
    return function(x.float())


@pytest.mark.parametrize(("half", "tolerance"), [(HALF, 1e-2), (torch.bfloat16, 0.15)], ids=str)
def test_products_run_in_half_with_the_value_of_fp32(half, tolerance):
    wrong = []
    for name, function in RUN_IN_HALF.items():
        expected, x = _in_fp32(function, _x), _x.clone().requires_grad_()
        torch.manual_seed(0)
        with casts(device_type="cpu", half=half):
            y = function(x)
        y.float().sum().backward()
        near = torch.allclose(y.float(), expected, atol=tolerance, rtol=tolerance)
        if y.dtype is not half or not near or x.grad.dtype is not FLOAT or not x.grad.isfinite().all():
            wrong.append((name, y.dtype, x.grad.dtype))
    assert not wrong


@pytest.mark.parametrize("half", [HALF, torch.bfloat16], ids=str)
def test_what_needs_range_runs_in_float(half):
    wrong = []
    for name, function in RUN_IN_FLOAT.items():
        x = _x.to(half).requires_grad_()
        expected = _in_fp32(function, x)
        torch.manual_seed(0)
        with casts(device_type="cpu", half=half):
            y = function(x)
        y.sum().backward()
        near = torch.allclose(y, expected, atol=1e-6, rtol=1e-5)
        if y.dtype is not FLOAT or not near or x.grad.dtype is not half:
            wrong.append((name, y.dtype, x.grad.dtype))
    assert not wrong


def test_embedding_gives_its_weights_type():
    for embedding in (nn.Embedding(10, 8), nn.EmbeddingBag(10, 8)):
        with casts(device_type="cpu"):
            y = embedding(_tokens)
        assert y.dtype is FLOAT
        assert torch.equal(y, embedding(_tokens))


def test_a_residual_in_place_keeps_its_type():
    with casts(device_type="cpu"):
        assert _x.half().add_(_x).dtype is HALF


# Attention in one function


@pytest.mark.parametrize("types", [(HALF, FLOAT, FLOAT), (FLOAT, FLOAT, HALF)], ids=str)
def test_attention_takes_a_mix_of_types(types):
    """As after a rotary embedding or a norm of queries and keys, which give fp32."""
    with casts(device_type="cpu"):
        y = F.scaled_dot_product_attention(*(_x.to(dtype) for dtype in types))
    assert y.dtype is HALF


def test_attention_in_one_function_gives_what_its_parts_give():
    mask = torch.ones(6, 6).tril().log()
    with casts(device_type="cpu"):
        whole = F.scaled_dot_product_attention(_x, _x, _x, mask)
        parts = F.softmax(_x @ _x.transpose(1, 2) / 8**0.5 + mask, dim=-1) @ _x
    assert whole.dtype is parts.dtype is HALF
    assert torch.allclose(whole.float(), parts.float(), atol=4e-3)


@pytest.mark.parametrize("half", [HALF, torch.bfloat16], ids=str)
def test_row_masked_by_a_large_number_makes_no_nan(half):
    """The least fp32 number is no infinity, as which it would come to half."""
    mask = torch.zeros(6, 6)
    mask[2] = torch.finfo(FLOAT).min
    mask[3, 1:] = -torch.inf
    with casts(device_type="cpu", half=half):
        y = F.scaled_dot_product_attention(_x, _x, _x, attn_mask=mask)
    assert y.isfinite().all()
    whole = [0, 1, 4, 5]  # rows without a mask
    expected = F.scaled_dot_product_attention(_x, _x, _x, attn_mask=mask)
    assert torch.allclose(y[:, whole].float(), expected[:, whole], atol=2e-2)
    assert torch.equal(y[:, 3], _x[:, 0].to(half))


@pytest.mark.parametrize("half", [HALF, torch.bfloat16], ids=str)
@pytest.mark.parametrize("need_weights", [True, False])
def test_a_module_makes_no_nan_of_a_row_masked_by_large_numbers(half, need_weights: bool):
    mask, padding = torch.zeros(6, 6), torch.zeros(_x.shape[0], 6)
    mask[2] = -1e9
    mask[3, 1:] = -torch.inf
    padding[:, 4:] = torch.finfo(FLOAT).min
    module = nn.MultiheadAttention(8, 2, batch_first=True)
    given = {"attn_mask": mask, "key_padding_mask": padding, "need_weights": need_weights}
    with casts(device_type="cpu", half=half):
        y = module(_x, _x, _x, **given)[0]
    assert y.isfinite().all()
    rows = [0, 1, 3, 4, 5]  # a row that is masked throughout is whatever it is
    expected = module(_x, _x, _x, **given)[0]
    assert torch.allclose(y[:, rows].float(), expected[:, rows], atol=2e-2)


def test_gradient_reaches_a_mask_that_is_learnt():
    bias = nn.Parameter(torch.zeros(6, 6))
    with casts(device_type="cpu"):
        F.scaled_dot_product_attention(_x, _x, _x, attn_mask=bias).float().square().sum().backward()
    assert bias.grad.dtype is FLOAT
    assert bias.grad.abs().sum() > 0


def test_attention_outside_the_casts_is_pytorchs_own():
    with casts(device_type="cpu"), disable_casts():
        assert F.scaled_dot_product_attention(_x, _x, _x).dtype is FLOAT
        with pytest.raises(RuntimeError, match="same dtype"):
            F.scaled_dot_product_attention(_x.half(), _x, _x)


def _fast(monkeypatch: pytest.MonkeyPatch, name: str) -> list[str]:
    """The calls of PyTorch's fused function from now on."""
    calls: list[str] = []
    original = getattr(torch, name)

    def count(*args: object, **kwargs: object) -> object:
        calls.append(name)
        return original(*args, **kwargs)

    monkeypatch.setattr(torch, name, count)
    return calls


@pytest.mark.parametrize("frozen", [True, False])
def test_evaluated_attention_runs_in_half_like_that_in_training(frozen, monkeypatch):
    """PyTorch evaluates it by one function, all in the weights' type."""
    attention = _attention().requires_grad_(not frozen)
    calls = _fast(monkeypatch, "_native_multi_head_attention")
    with torch.no_grad():
        with casts(device_type="cpu"):
            trained, _ = attention(_x, _x, _x, need_weights=False)
            evaluated, _ = attention.eval()(_x, _x, _x, need_weights=False)
        assert not calls
        outside, _ = attention(_x, _x, _x, need_weights=False)
    assert len(calls) == 1
    assert (evaluated.dtype, outside.dtype) == (HALF, FLOAT)
    assert torch.equal(evaluated, trained)


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


def test_transformer_trains_in_half_and_fp32():
    transformer = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(6)
    expected = transformer(_x, _x, tgt_mask=mask)
    with casts(device_type="cpu"):
        y = transformer(_x, _x, tgt_mask=mask)
    assert y.dtype is FLOAT
    assert torch.allclose(y, expected, atol=2e-2)
    assert not torch.equal(y, expected)
    y.square().sum().backward()
    assert {p.grad.dtype for p in transformer.parameters()} == {FLOAT}
    assert all(p.grad.isfinite().all() for p in transformer.parameters())
