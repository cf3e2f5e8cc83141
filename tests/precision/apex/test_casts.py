"""The context of the casts: where it reaches, what it leaves behind, what a user may add to the lists."""

from __future__ import annotations

import contextlib
import copy
import io
import threading
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint as checkpointing
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint  # by name, before any context: as users do

from ampcompare.precision.apex import amp
from ampcompare.precision.o1.patches import (
    casts,
    default_device_type,
    disable_casts,
    forget_registered,
    installed,
    register,
)
from ampcompare.precision.o1.weights import STATE

HALF, FLOAT = torch.float16, torch.float32
NAMESPACES = [F, torch, Tensor, checkpointing, checkpointing.CheckpointFunction]


def _names() -> list[dict]:
    return [dict(vars(namespace)) for namespace in NAMESPACES]


def _differences(before: list[dict]) -> list[str]:
    return [
        name
        for old, new in zip(before, _names(), strict=True)
        for name in old.keys() | new.keys()
        if old.get(name, "absent") is not new.get(name, "absent")
    ]


ORIGINALS = _names()
with casts():
    WRAPPED = set(_differences(ORIGINALS))


@pytest.fixture(autouse=True)
def _leave_no_trace() -> Iterator[None]:
    """After every test each name is what it was, also in tests of something else."""
    yield
    forget_registered()
    assert not WRAPPED.intersection(
        _differences(ORIGINALS)
    )  # PyTorch adds others of its own, when first used
    assert not STATE.on


def _dtype() -> torch.dtype:
    """fp16 where casts are in force."""
    return torch.mm(torch.eye(2), torch.eye(2)).dtype


# After the context


def test_every_name_is_as_before_after_the_context():
    before = _names()
    with casts():
        assert len(_differences(before)) > 150
    assert not _differences(before)


def test_every_name_is_as_before_after_a_session():
    before = _names()
    with installed():
        for _ in range(2):
            with casts():
                pass
            assert _differences(before)  # the wrappers stay, inert
        with installed(), casts():
            pass
        assert _differences(before)
    assert not _differences(before)


def test_casts_end_with_the_context_and_not_before_in_a_session():
    with installed():
        assert _dtype() is FLOAT
        with casts(device_type="cpu"):
            assert _dtype() is HALF
        assert _dtype() is FLOAT
        assert torch.exp(torch.ones(1, dtype=HALF)).dtype is HALF


def test_exception_inside_ends_the_context():
    before = _names()
    with pytest.raises(ValueError, match="mine"), casts(device_type="cpu"), disable_casts():
        raise ValueError("mine")
    assert not _differences(before)
    assert _dtype() is FLOAT


def test_operators_work_after_the_context():
    with casts():
        pass
    x = torch.ones(2)
    x += 1
    assert torch.equal(2 * x - 1, torch.full((2,), 3.0))
    assert {x: 1}[x] == 1  # tensors are still hashable


# Nesting


def test_nested_context_changes_nothing():
    with casts(device_type="cpu", allow_banned=True):
        with casts():
            assert _dtype() is HALF
            assert STATE.device_type == "cpu"
            assert STATE.allow_banned
        assert _dtype() is HALF
        with casts(allow_banned=False):
            assert not STATE.allow_banned
            assert _dtype() is HALF
        assert STATE.allow_banned
        with casts(device_type="cuda"):
            assert _dtype() is FLOAT
        assert _dtype() is HALF


def test_disabled_inside_and_enabled_inside_that():
    with casts(device_type="cpu", allow_banned=True):
        with disable_casts():
            assert _dtype() is FLOAT
            with casts():
                assert _dtype() is HALF
                assert STATE.allow_banned
                with disable_casts():
                    assert _dtype() is FLOAT
                assert _dtype() is HALF
            assert _dtype() is FLOAT
        assert _dtype() is HALF


def test_enabled_inside_disabled():
    with disable_casts():
        with casts(device_type="cpu"):
            assert _dtype() is HALF
        assert _dtype() is FLOAT
    with casts(device_type="cpu"):
        assert _dtype() is HALF


def test_device_is_cuda_where_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert default_device_type() == "cuda"
    with casts():
        assert STATE.device_type == "cuda"
        assert _dtype() is FLOAT
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with casts():
        assert STATE.device_type == "cpu"


def test_casts_everywhere_hold_in_every_thread_and_yield_to_disable():
    results: list[torch.dtype] = []
    amp.initialize(nn.Linear(1, 1), opt_level="O1")
    _in_thread(lambda: results.append(_dtype()))
    with disable_casts():
        results.append(_dtype())
    with casts(allow_banned=True):
        results.append(_dtype())
    results.append(_dtype())
    amp.reset()
    results.append(_dtype())
    assert results == [HALF, FLOAT, HALF, HALF, FLOAT]


# Threads


def _in_thread(function) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()
    assert not thread.is_alive()


def test_thread_inside_does_not_affect_one_outside():
    inside, done = threading.Event(), threading.Event()
    results: list[torch.dtype] = []

    def work() -> None:
        with casts(device_type="cpu"):
            inside.set()
            done.wait()
            results.append(_dtype())

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait()
    results.append(_dtype())
    done.set()
    thread.join()
    assert results == [FLOAT, HALF]


def test_backward_in_another_thread():
    layer = nn.Linear(3, 3)
    with casts(device_type="cpu"):
        loss = layer(torch.ones(2, 3)).float().sum()
        _in_thread(loss.backward)
    assert torch.equal(layer.weight.grad, torch.full((3, 3), 2.0))


# Activation checkpointing


class _Block(nn.Module):
    """Two uses of one weight, a norm and a softmax; notes the type that its linear layer gives each time it
    runs.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.dtypes: list[torch.dtype] = []

    def forward(self, x: Tensor, flag: bool = True) -> Tensor:
        hidden = self.layer(x)
        self.dtypes.append(hidden.dtype)
        return F.softmax(self.layer(torch.relu(self.norm(hidden))), 1)


def _gradients(block: _Block, run, x: Tensor, thread: bool = False) -> list[Tensor]:
    x = x.clone().requires_grad_()
    block.zero_grad()
    with casts(device_type="cpu"):
        loss = run(x).float().square().sum()
    _in_thread(loss.backward) if thread else loss.backward()
    return [x.grad, *(p.grad for p in block.parameters())]


@pytest.mark.parametrize("session", [True, False])
@pytest.mark.parametrize("thread", [True, False])
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_recomputation_runs_under_the_casts(use_reentrant, thread, session):
    block, x = _Block(), torch.randn(3, 4)
    expected = _gradients(block, block, x)
    block.dtypes.clear()
    with installed() if session else contextlib.nullcontext():
        found = _gradients(block, lambda x: checkpoint(block, x, use_reentrant=use_reentrant), x, thread)
    assert block.dtypes == [HALF, HALF]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert _dtype() is FLOAT


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_recomputation_outside_the_casts_stays_outside(use_reentrant):
    """Wherever `backward` is called from."""
    block, x = _Block(), torch.randn(3, 4, requires_grad=True)
    with casts(device_type="cpu"):
        with disable_casts():
            loss = checkpoint(block, x, use_reentrant=use_reentrant).sum()
        loss.backward()
    assert block.dtypes == [FLOAT, FLOAT]


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_backward_inside_the_context_recomputes_rightly(use_reentrant):
    block, x = _Block(), torch.randn(3, 4)
    expected = _gradients(block, block, x)
    x = x.clone().requires_grad_()
    block.zero_grad()
    with casts(device_type="cpu"):
        checkpoint(block, x, use_reentrant=use_reentrant).float().square().sum().backward()
        assert _dtype() is HALF
    found = [x.grad, *(p.grad for p in block.parameters())]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_nested_and_sequential_checkpoints(use_reentrant):
    block, x = _Block(), torch.randn(3, 4)
    chain = [block, lambda x: block(x), lambda x: block(x), lambda x: block(x)]
    expected = _gradients(block, lambda x: block(block(block(block(x)))), x)

    def inner(x: Tensor) -> Tensor:
        return checkpoint(block, x, use_reentrant=use_reentrant)

    def nested(x: Tensor) -> Tensor:
        return block(checkpoint(lambda x: inner(block(inner(x))), x, use_reentrant=use_reentrant))

    def sequential(x: Tensor) -> Tensor:
        return checkpointing.checkpoint_sequential(chain, 2, x, use_reentrant=use_reentrant)

    for run in (nested, sequential):
        block.dtypes.clear()
        found = _gradients(block, run, x)
        assert len(block.dtypes) > 4
        assert set(block.dtypes) == {HALF}
        for a, b in zip(
            found, expected, strict=True
        ):  # the gradient of the shared weight adds up in another order
            torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-3)


def test_recomputation_keeps_banned_functions_allowed():
    def run(x: Tensor) -> Tensor:
        return F.binary_cross_entropy(torch.sigmoid(torch.mm(x, x)), torch.ones(2, 2))

    for use_reentrant in (True, False):
        x = torch.eye(2, requires_grad=True)
        with casts(device_type="cpu", allow_banned=True):
            loss = checkpoint(run, x, use_reentrant=use_reentrant)
        loss.backward()
        assert x.grad.abs().sum() > 0


# With the rest of PyTorch


def test_double_backward():
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(4, 8), nn.Softplus(), nn.Linear(8, 1)), torch.randn(5, 4)
    gradients = []
    for context in (contextlib.nullcontext, lambda: casts(device_type="cpu")):
        net.zero_grad()
        x_ = x.clone().requires_grad_()
        with context():
            y = net(x_).float().sum()
        (slope,) = torch.autograd.grad(y, x_, create_graph=True)
        slope.float().square().sum().backward()
        gradients.append(net[0].weight.grad.clone())
    assert gradients[1].dtype is FLOAT
    torch.testing.assert_close(gradients[1], gradients[0], rtol=2e-2, atol=2e-3)


def test_second_derivative_through_the_copy_of_a_weight():
    weight = nn.Parameter(torch.tensor([[2.0]]))
    with casts(device_type="cpu"):
        y = torch.mm(torch.mm(weight, weight), weight).float().sum()
    (first,) = torch.autograd.grad(y, weight, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), weight)
    assert first.item() == 12.0
    assert second.item() == 12.0


def test_model_can_be_copied_and_saved_inside():
    net = nn.Sequential(nn.Linear(2, 2), nn.Softmax(1))
    with casts(device_type="cpu"):
        twin = copy.deepcopy(net)
        buffer = io.BytesIO()
        torch.save(net, buffer)
        buffer.seek(0)
        read = torch.load(buffer, weights_only=False)
        x = torch.ones(1, 2)
        assert torch.equal(twin(x), net(x))
        assert torch.equal(read(x), net(x))
    assert twin[0].weight.dtype is FLOAT
    assert twin[0].weight is not net[0].weight


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad"])
def test_optimizer_step_inside_is_the_step_outside(name):
    results = []
    for context in (contextlib.nullcontext, lambda: casts(device_type="cpu")):
        weight = nn.Parameter(torch.ones(3))
        optimizer = getattr(torch.optim, name)([weight], lr=0.1, foreach=False)
        for _ in range(2):
            weight.grad = torch.full((3,), 1e-4)
            with context():
                optimizer.step()
        results.append(weight.detach().clone())
    assert torch.equal(results[0], results[1])


def test_autocast_inside_the_casts():
    """Both are in force: the listed function casts to fp16, autocast casts that to its own type."""
    layer = nn.Linear(3, 3)
    with casts(device_type="cpu"):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = layer(torch.ones(2, 3))
            assert y.dtype is torch.bfloat16
            assert F.softmax(y, 1).dtype is FLOAT
        assert layer(torch.ones(2, 3)).dtype is HALF
    y.float().sum().backward()
    assert torch.equal(layer.weight.grad, torch.full((3, 3), 2.0))


def test_functions_of_a_custom_autograd_function_are_cast():
    seen: list[torch.dtype] = []

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: Tensor, y: Tensor) -> Tensor:
            ctx.save_for_backward(x, y)
            return torch.mm(x, y)

        @staticmethod
        def backward(ctx, gradient: Tensor):
            x, y = ctx.saved_tensors
            seen.append(gradient.dtype)
            return gradient.float() @ y.T, x.T @ gradient.float()

    x = torch.eye(2, requires_grad=True)
    with casts(device_type="cpu"):
        y = Product.apply(x, torch.eye(2))
    assert y.dtype is HALF
    y.float().sum().backward()
    assert seen == [HALF]
    assert x.grad.dtype is FLOAT


def test_spectral_norm_runs():
    layer = nn.utils.spectral_norm(nn.Linear(4, 3))
    with casts(device_type="cpu"):
        y = layer(torch.randn(2, 4))
    y.float().sum().backward()
    assert layer.weight_orig.grad.dtype is FLOAT


# The user's own functions


class Toolbox:
    """Stands for a user's module."""

    def method(self, x: Tensor) -> torch.dtype:
        return x.dtype

    @staticmethod
    def static(x: Tensor) -> torch.dtype:
        return x.dtype

    @classmethod
    def of_class(cls, x: Tensor) -> tuple[type, torch.dtype]:
        return cls, x.dtype


class Heir(Toolbox):
    pass


X = torch.ones(2)


@pytest.mark.parametrize("owner", [Toolbox, Heir])
def test_registered_static_method(owner):
    register(owner, "static", "half")
    with casts(device_type="cpu"):
        assert [owner.static(X), owner().static(X)] == [HALF, HALF]
    assert [owner.static(X), owner().static(X)] == [FLOAT, FLOAT]
    assert isinstance(vars(Toolbox)["static"], staticmethod)
    assert "static" not in vars(Heir)


@pytest.mark.parametrize("owner", [Toolbox, Heir])
def test_registered_method(owner):
    register(owner, "method", "half")
    with casts(device_type="cpu"):
        assert owner().method(X) is HALF
    assert owner().method(X) is FLOAT


def test_registered_function_of_a_module():
    register(torch, "sin", "float")
    register(F, "relu", "half")
    with casts(device_type="cpu"):
        assert torch.sin(X.half()).dtype is FLOAT
        assert F.relu(X).dtype is HALF
    assert torch.sin(X.half()).dtype is HALF


@pytest.mark.parametrize("used_before", [True, False])
def test_listed_function_can_be_moved(used_before):
    if used_before:
        with casts(device_type="cpu"):
            assert _dtype() is HALF
    register(torch, "mm", "float")
    with casts(device_type="cpu"):
        assert torch.mm(torch.eye(2).half(), torch.eye(2)).dtype is FLOAT
    register(torch, "mm", "half")
    with casts(device_type="cpu"):
        assert _dtype() is HALF
