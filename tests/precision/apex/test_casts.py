"""The context of the casts: where it reaches, what it leaves behind, what a user may add to the lists."""

import sys
import threading
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint  # by name, before any context: as users do

from ampcompare.precision import build_precision
from ampcompare.precision.o1.cast_wrappers import half
from ampcompare.precision.o1.patches import casts

HALF, FLOAT = torch.float16, torch.float32


def _dtype() -> torch.dtype:
    """fp16 where casts are in force."""
    return torch.mm(torch.eye(2), torch.eye(2)).dtype


def test_threads_open_and_close_contexts_of_their_own_at_once():
    """Each thread has the casts within its context, none outside, and in the end no function is wrapped."""
    found: set[tuple[torch.dtype, torch.dtype]] = set()
    plain, together = vars(torch)["mm"], threading.Barrier(3)

    def work() -> None:
        for _ in range(40):
            together.wait()
            with casts(device_type="cpu"):
                inside = _dtype()
            found.add((inside, _dtype()))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert found == {(HALF, FLOAT)}
    assert vars(torch)["mm"] is plain


class _Block(nn.Module):
    """Two uses of one weight, a norm and a softmax; records the output dtypes of its linear layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.dtypes: list[torch.dtype] = []

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.layer(x)
        self.dtypes.append(hidden.dtype)
        return F.softmax(self.layer(torch.relu(self.norm(hidden))), 1)


def _gradients(block: _Block, run, x: Tensor, thread: bool = False) -> list[Tensor]:
    x = x.clone().requires_grad_()
    block.zero_grad()
    with casts(device_type="cpu"):
        loss = run(x).float().square().sum()
    if thread:
        other = threading.Thread(target=loss.backward)
        other.start()
        other.join()
    else:
        loss.backward()
    return [x.grad, *(p.grad for p in block.parameters())]


@pytest.mark.parametrize("thread", [True, False])
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_recomputation_runs_under_the_casts(use_reentrant, thread):
    block, x = _Block(), torch.randn(3, 4)
    expected = _gradients(block, block, x)
    block.dtypes.clear()
    found = _gradients(block, lambda x: checkpoint(block, x, use_reentrant=use_reentrant), x, thread)
    assert block.dtypes == [HALF, HALF]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert _dtype() is FLOAT


# The half copies of weights: cast once in a forward, never stale, never cut off from the gradient.


@half
def _copy(weight: Tensor) -> Tensor:
    """Return the weight as a function of the half list gets it."""
    return weight


@pytest.fixture
def weight() -> nn.Parameter:
    return nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))


def test_gradient_of_a_shared_weight_adds_up_in_float():
    weight = nn.Parameter(torch.eye(3))
    seen = []
    weight.register_hook(lambda gradient: seen.append(gradient.dtype))
    x = torch.ones(2, 3)
    with casts(device_type="cpu"):
        y = F.linear(F.linear(x, weight), weight) + torch.mm(x, weight)
    y.float().sum().backward()
    assert seen == [torch.float32]
    assert weight.grad.dtype is torch.float32
    assert torch.equal(weight.grad, torch.full((3, 3), 6.0))


def test_copy_made_without_gradient_does_not_serve_a_forward_with_one(weight):
    with casts(device_type="cpu"):
        with torch.no_grad():
            assert not _copy(weight).requires_grad
        copy = _copy(weight)
    assert copy.requires_grad
    copy.float().sum().backward()
    assert torch.equal(weight.grad, torch.ones(3))


def _assign_twice(weight: nn.Parameter) -> None:
    """The second assignment may get the memory that the first one freed."""
    weight.data = weight.data * 2
    weight.data = weight.data * 2


NEW = torch.tensor([4.0, 5.0, 6.0])
EDITS: dict[str, Callable[[nn.Parameter], object]] = {
    "copy_": lambda weight: weight.copy_(NEW),  # as `load_state_dict`
    "of a detached alias": lambda weight: weight.detach().mul_(2),
    "set_": lambda weight: weight.set_(NEW.clone()),
    "data = new": lambda weight: setattr(weight, "data", NEW.clone()),
    "data = new, twice": _assign_twice,
    "data = view": lambda weight: setattr(weight, "data", weight.data.as_strided((3,), (0,))),
    "swap_tensors": lambda weight: torch.utils.swap_tensors(weight, nn.Parameter(NEW.clone())),
}
# These leave no trace on the weight, so that they are seen from the next context on.
UNSEEN_EDITS: dict[str, Callable[[nn.Parameter], object]] = {
    "data.mul_": lambda weight: weight.data.mul_(2),
    "numpy": lambda weight: weight.detach().numpy().fill(7),
}


@pytest.mark.parametrize("edit", EDITS)
def test_edit_within_a_context_makes_a_new_copy(weight: nn.Parameter, edit: str):
    with casts(device_type="cpu"):
        before = _copy(weight).detach().clone()
        with torch.no_grad():
            EDITS[edit](weight)
        assert torch.equal(_copy(weight), weight.half())
        assert not torch.equal(_copy(weight), before)


@pytest.mark.parametrize("edit", UNSEEN_EDITS)
def test_edit_between_the_contexts_of_micro_batches_makes_a_new_copy(weight: nn.Parameter, edit: str):
    """The second micro-batch uses the edited weight, and the gradients of both add up."""
    for factor in (1.0, 2.0):
        with casts(device_type="cpu"):
            copy = _copy(weight)
        assert torch.equal(copy, weight.half())
        (copy.float().sum() * factor).backward()
        del copy
        if factor == 1.0:
            gradient = weight.grad
            weight.grad = None
            with torch.no_grad():
                UNSEEN_EDITS[edit](weight)
            weight.grad = gradient
    assert torch.equal(weight.grad, torch.full((3,), 3.0))


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_of_the_backend_clears_the_cached_copies(weight, fused):
    """A fused optimizer changes weights without a new version (torch 2.14.1): versions alone won't do."""
    precision = build_precision("apex_o1", loss_scale=1.0)
    optimizer = torch.optim.SGD([weight], lr=1.0, fused=fused)
    precision.prepare(nn.Module(), optimizer)
    with precision.forward_context():
        loss = _copy(weight).float().sum()
        precision.backward(loss)
        precision.step(optimizer)
        assert torch.equal(_copy(weight), torch.tensor([0.0, 1.0, 2.0], dtype=HALF))
