"""Recurrent networks under O1: LSTM, GRU, RNN and their cells run in half, their weights stay fp32."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ampcompare.precision.apex import amp
from ampcompare.precision.o1.patches import casts, disable_casts, installed
from ampcompare.precision.o1.weights import STATE

FLOAT = torch.float32
HALVES = [torch.float16, torch.bfloat16]
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 2e-2}
NETWORKS: dict[str, Any] = {
    "LSTM": nn.LSTM,
    "GRU": nn.GRU,
    "RNN tanh": nn.RNN,
    "RNN relu": lambda *sizes, **how: nn.RNN(*sizes, nonlinearity="relu", **how),
}
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "two layers, both directions": {"num_layers": 2, "bidirectional": True},
    "batch first, no bias": {"batch_first": True, "bias": False},
}
CELLS = {"LSTM": nn.LSTMCell, "GRU": nn.GRUCell, "RNN": nn.RNNCell}


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


@pytest.mark.parametrize("half", HALVES, ids=str)
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


@pytest.mark.parametrize("half", HALVES, ids=str)
def test_projections_run_in_half(half):
    network = nn.LSTM(6, 8, proj_size=4, num_layers=2, bidirectional=True)
    x = torch.randn(5, 3, 6)
    expected, _ = network(x)
    with casts(device_type="cpu", half=half):
        y, (h, c) = network(x)
    assert (y.dtype, h.dtype, c.dtype) == (half, half, half)
    assert torch.allclose(y.float(), expected, atol=TOLERANCE[half])
    y.float().sum().backward()
    assert _dtypes(network) == {FLOAT}
    assert len([p for p in network.parameters() if p.grad is not None]) == 20


@pytest.mark.parametrize("name", NETWORKS)
def test_packed_sequence_runs_in_half(name):
    network = NETWORKS[name](6, 8, num_layers=2)
    x, lengths = torch.randn(5, 3, 6, requires_grad=True), torch.tensor([3, 5, 2])

    def run() -> Tensor:
        packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
        y, _ = network(packed)
        assert torch.equal(y.batch_sizes, packed.batch_sizes)
        return pad_packed_sequence(y)[0]

    expected = run()
    with casts(device_type="cpu"):
        y = run()
    assert y.dtype is torch.float16
    assert torch.allclose(y.float(), expected, atol=2e-3)
    y.float().sum().backward()
    assert _dtypes(network) == {FLOAT}
    assert x.grad.dtype is FLOAT


@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("given", [torch.float32, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("name", CELLS)
def test_cell_runs_in_half_whatever_its_input(name, given, half):
    cell = CELLS[name](6, 8)
    x = torch.randn(3, 6)
    expected = cell(x, cell(x))
    with casts(device_type="cpu", half=half):
        state = cell(x.to(given))
        state = cell(x.to(given), state)
    assert _first(state).dtype is half
    assert torch.allclose(_first(state).float(), _first(expected), atol=TOLERANCE[half])
    _first(state).float().sum().backward()
    assert _dtypes(cell) == {FLOAT}


@pytest.mark.parametrize("given", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_network_takes_what_a_layer_before_it_gives(name, given):
    """PyTorch refuses input of another type than the weights; under the casts they become one."""
    network = NETWORKS[name](6, 8)
    x = torch.randn(5, 3, 6, dtype=given, requires_grad=True)
    with casts(device_type="cpu"):
        y, _ = network(x)
    assert y.dtype is torch.float16
    y.float().sum().backward()
    assert x.grad.dtype is given
    with pytest.raises(ValueError, match="does not match weight dtype"):
        network(x)


def test_networks_one_after_another():
    front, first, second = nn.Linear(6, 6), nn.LSTM(6, 8), nn.GRU(8, 4)
    with casts(device_type="cpu"):
        y, _ = second(first(front(torch.randn(5, 3, 6)))[0])
    assert y.dtype is torch.float16
    y.float().sum().backward()
    assert _dtypes(front) | _dtypes(first) | _dtypes(second) == {FLOAT}


def test_input_of_a_wrong_size_is_still_refused():
    with casts(device_type="cpu"), pytest.raises(RuntimeError, match=r"input\.size"):
        nn.LSTM(6, 8)(torch.randn(5, 3, 7).half())


def test_hidden_state_of_any_floating_type_is_taken():
    network = nn.LSTM(6, 8)
    state = (torch.zeros(1, 3, 8), torch.zeros(1, 3, 8, dtype=torch.float16))
    with casts(device_type="cpu"):
        y, (h, c) = network(torch.randn(5, 3, 6), state)
        y, _ = network(torch.randn(5, 3, 6), (h, c))
    assert y.dtype is torch.float16


def test_half_network_is_left_as_it_is():
    network = nn.LSTM(6, 8).half()
    with casts(device_type="cpu"):
        y, _ = network(torch.randn(5, 3, 6).half())
        assert len(STATE.copies) == 0
    y.float().sum().backward()
    assert _dtypes(network) == {torch.float16}


def test_dropout_between_layers_draws_under_the_casts_as_without():
    network = nn.GRU(6, 64, num_layers=2, dropout=0.5)
    x = torch.randn(5, 3, 6)
    with casts(device_type="cpu"):
        torch.manual_seed(1)
        y, _ = network(x)
        torch.manual_seed(1)
        again, _ = network(x)
        other, _ = network(x)
        without, _ = network.eval()(x)
    assert torch.equal(y, again)
    assert not torch.equal(y, other)
    assert not torch.equal(y, without)


# The copies of the weights


def test_weights_are_cast_once_and_gradients_add_up_in_fp32():
    network = nn.LSTM(6, 8)
    x = torch.randn(5, 3, 6)
    with casts(device_type="cpu"):
        first, _ = network(x)
        copies = [copy for _, _, copy in STATE.copies.values()]
        second, _ = network(x)
        again = [copy for _, _, copy in STATE.copies.values()]
    assert len(copies) == 4
    assert all(a is b for a, b in zip(copies, again, strict=True))
    both = _gradients(network, first.float().sum() + second.float().sum())
    with casts(device_type="cpu"):
        alone, _ = network(x)
    for gradient, one in zip(both, _gradients(network, alone.float().sum()), strict=True):
        assert torch.allclose(gradient, 2 * one, atol=1e-2 * float(one.abs().max()))


def test_edited_weight_is_cast_anew():
    network = nn.LSTM(6, 8)
    x = torch.randn(5, 3, 6)
    with casts(device_type="cpu"), torch.no_grad():
        before, _ = network(x)
        network.weight_hh_l0.add_(1.0)
        after, _ = network(x)
    assert not torch.equal(before, after)


def test_copies_are_gone_after_the_context():
    network = nn.LSTM(6, 8)
    with casts(device_type="cpu"):
        network(torch.randn(5, 3, 6))
        assert len(STATE.copies) == 4
    assert len(STATE.copies) == 0


def test_frozen_weight_stays_without_a_gradient():
    network = nn.LSTM(6, 8)
    network.weight_ih_l0.requires_grad_(False)
    with casts(device_type="cpu"):
        y, _ = network(torch.randn(5, 3, 6))
    y.float().sum().backward()
    assert network.weight_ih_l0.grad is None
    assert network.weight_hh_l0.grad.dtype is FLOAT


def test_flattened_network_trains_through_its_flat_copies():
    """Weights that are views of one storage, as on a GPU, in another order than the module's."""
    network, apart = nn.LSTM(6, 8), nn.LSTM(6, 8)
    apart.load_state_dict(network.state_dict())
    weights = list(network.parameters())
    storage = torch.empty(sum(w.numel() for w in weights))
    start = 0
    for weight in reversed(weights):
        place = storage[start : start + weight.numel()].view_as(weight)
        start += weight.numel()
        weight.data = place.copy_(weight.data)
    x = torch.randn(5, 3, 6)
    gradients = []
    for each in (network, apart):
        with casts(device_type="cpu"):
            y, _ = each(x)
            found = {copy.untyped_storage()._cdata for _, _, copy in STATE.copies.values()}
            assert len(found) == (1 if each is network else 4)
        gradients.append(_gradients(each, y.float().sum()))
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_second_derivative_through_a_cell():
    cell = nn.GRUCell(4, 4)
    with casts(device_type="cpu"):
        loss = cell(torch.ones(2, 4)).float().square().sum()
    (gradient,) = torch.autograd.grad(loss, cell.weight_hh, create_graph=True)
    assert gradient.dtype is FLOAT


def test_weights_that_are_no_parameters_are_cast():
    network = nn.utils.parametrizations.weight_norm(nn.LSTM(6, 8), "weight_hh_l0")
    with casts(device_type="cpu"):
        y, _ = network(torch.randn(5, 3, 6))
    assert y.dtype is torch.float16
    y.float().sum().backward()
    assert {p.grad.dtype for p in network.parameters()} == {FLOAT}


# Where the casts hold, and where they do not


def test_everything_is_put_back():
    before = torch._VF.lstm, nn.RNNBase.check_input, torch.backends.mha.get_fastpath_enabled
    with installed():
        with casts(device_type="cpu"):
            pass
        assert torch._VF.lstm is not before[0]
    assert "lstm" not in vars(torch._VF)
    after = torch._VF.lstm, nn.RNNBase.check_input, torch.backends.mha.get_fastpath_enabled
    assert all(a is b for a, b in zip(before, after, strict=True))


def test_session_disabled_and_other_threads_stay_in_fp32():
    network, x, types = nn.LSTM(6, 8), torch.randn(5, 3, 6), []

    def run() -> None:
        types.append(network(x)[0].dtype)

    with installed():
        run()
        with casts(device_type="cpu"):
            with disable_casts():
                run()
                with casts(device_type="cpu"):
                    run()
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
            run()
    run()
    assert types == [FLOAT, FLOAT, torch.float16, FLOAT, torch.float16, FLOAT]


def test_initialize_runs_a_model_with_an_lstm_in_half():
    network = nn.LSTM(6, 8)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    try:
        amp.initialize(network, optimizer, opt_level="O1", loss_scale=128.0)
        before = [p.detach().clone() for p in network.parameters()]
        y, _ = network(torch.randn(5, 3, 6))
        assert y.dtype is torch.float16
        with amp.scale_loss(y.float().square().mean(), optimizer) as loss:
            loss.backward()
        assert _dtypes(network) == {FLOAT}
        optimizer.step()
        assert not any(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))
    finally:
        amp.reset()
    assert network(torch.randn(5, 3, 6))[0].dtype is FLOAT


def test_recomputation_under_checkpointing_runs_in_half():
    network, types = nn.GRU(6, 8), []

    def run(x: Tensor) -> Tensor:
        y, _ = network(x)
        types.append(y.dtype)
        return y

    x = torch.randn(5, 3, 6, requires_grad=True)
    with torch.utils.checkpoint.set_checkpoint_early_stop(False):  # else it ends before it is looked at
        with casts(device_type="cpu"):
            y = torch.utils.checkpoint.checkpoint(run, x, use_reentrant=False)
        y.float().sum().backward()
    assert types == [torch.float16] * 2
    assert _dtypes(network) == {FLOAT}
