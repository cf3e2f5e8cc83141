"""Recurrent networks and parts of transformers under O1.

They run in the 16-bit dtype, as apex ran them or their parts, while their weights stay fp32.
"""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.outside import Outside
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ampcompare.precision.o1.patches import casts

FLOAT = torch.float32
HALVES = pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=str)
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 2e-2}
NETWORKS: dict[str, Any] = {
    "LSTM": nn.LSTM,
    "GRU": nn.GRU,
    "RNN tanh": nn.RNN,
    "RNN relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
}
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "two layers, both directions": {"num_layers": 2, "bidirectional": True},
    "batch first, no bias": {"batch_first": True, "bias": False},
}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def _first(state: Any) -> Tensor:
    return state[0] if isinstance(state, tuple) else state


def _dtypes(module: nn.Module) -> set[torch.dtype]:
    return {p.grad.dtype for p in module.parameters() if p.grad is not None}


def _gradients(module: nn.Module, loss: Tensor) -> list[Tensor]:
    module.zero_grad()
    loss.backward()
    return [p.grad.clone() for p in module.parameters() if p.grad is not None]


@HALVES
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", NETWORKS)
def test_network_runs_in_half_with_values_and_gradients_of_fp32(name, shape, half):
    network = NETWORKS[name](6, 8, **SHAPES[shape])
    x = torch.randn(5, 3, 6, requires_grad=True)
    expected, _ = network(x)
    wanted = _gradients(network, expected.square().sum())
    x.grad = None
    with casts(device_type="cpu", half=half):
        y, state = network(x)
        loss = y.square().sum()
    assert (y.dtype, _first(state).dtype) == (half, half)
    found = _gradients(network, loss)
    assert _dtypes(network) == {FLOAT}
    assert x.grad.dtype is FLOAT
    assert torch.allclose(y.float(), expected, atol=TOLERANCE[half])
    for gradient, reference in zip(found, wanted, strict=True):
        assert torch.allclose(gradient, reference, atol=3 * TOLERANCE[half] * float(reference.abs().max()))


@pytest.mark.parametrize("dtype", [FLOAT, torch.bfloat16, torch.float64])
def test_packed_sequence_and_input_of_another_dtype_run_in_half(dtype):
    """PyTorch refuses input of another type than the weights; under the casts they become one."""
    network, x = nn.LSTM(6, 8, num_layers=2), torch.randn(5, 3, 6)

    def run(x: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, torch.tensor([3, 5, 2]), enforce_sorted=False)
        return pad_packed_sequence(network(packed)[0])[0]

    given = x.to(dtype).requires_grad_()
    with casts(device_type="cpu"):
        y = run(given)
    assert y.dtype is torch.float16
    assert torch.allclose(y.float(), run(x), atol=2e-2 if dtype is torch.bfloat16 else 2e-3)
    y.float().sum().backward()
    assert _dtypes(network) == {FLOAT}
    assert given.grad.dtype is dtype


# Transformers.

_x = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(0))


def _is_near(y: Tensor, expected: Tensor, half: torch.dtype) -> bool:
    """Whether y is what rounding to half may leave of sums of so many products.

    Each of the terms has two factors, each rounded by half a unit. No sum has more terms than features or
    places, 8 at most.
    """
    error = (y.float() - expected).abs().max().item()
    return error <= 8 * torch.finfo(half).eps * expected.abs().max().item()


@HALVES
@pytest.mark.parametrize("need_weights", [True, False])
def test_rows_masked_by_large_numbers_do_not_become_nan(half, need_weights: bool):
    mask, padding = torch.zeros(6, 6), torch.zeros(_x.shape[0], 6)
    mask[2], mask[3, 1:] = -1e9, -torch.inf
    padding[:, 4:] = padding[0] = torch.finfo(FLOAT).min
    module = nn.MultiheadAttention(8, 2, batch_first=True)
    given = {"attn_mask": mask, "key_padding_mask": padding, "need_weights": need_weights}
    with casts(device_type="cpu", half=half):
        y = module(_x, _x, _x, **given)[0]
    assert y.isfinite().all()
    rows = [0, 1, 3, 4, 5]  # a row that is masked throughout is whatever it is
    expected = module(_x, _x, _x, **given)[0]
    assert _is_near(y[1:, rows], expected[1:, rows], half)


def test_evaluated_encoder_computes_as_in_training(outside: Outside):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, activation=F.gelu)
    encoder = nn.TransformerEncoder(layer, 2)
    calls = []
    outside.call_before(torch, "_transformer_encoder_layer_fwd", lambda *_, **__: calls.append("fused"))
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
