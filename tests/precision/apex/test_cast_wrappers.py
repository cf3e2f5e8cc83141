"""What the rules of O1 do with each kind of argument, and nothing where they are not in force."""

import math
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ampcompare.precision.apex import amp
from ampcompare.precision.o1.patches import casts, disable_casts, install_wrappers

HALF, FLOAT, DOUBLE, _ = TYPES = [torch.float16, torch.float32, torch.float64, torch.bfloat16]
CASTING = [(amp.half_function, HALF), (amp.float_function, FLOAT)]
Pair = namedtuple("Pair", "first second")


def _get_cast_arguments(decorate: Callable, *args: object, **kwargs: object) -> tuple[tuple, dict]:
    """Return the arguments that a function of the user's gets under the rule."""

    @decorate
    def function(*args: object, **kwargs: object) -> tuple[tuple, dict]:
        return args, kwargs

    with casts(device_type="cpu"):
        return function(*args, **kwargs)


def _ones(dtype: torch.dtype) -> Tensor:
    return torch.ones(2, dtype=dtype)


def _same(x: object, y: object) -> bool:
    """Whether containers and tensors are of the same types and hold the same."""
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        return x.dtype is y.dtype and x.shape == y.shape and torch.equal(x, y)
    if type(x) is type(y) and isinstance(x, list | tuple):
        return len(x) == len(y) and all(map(_same, x, y))
    return x is y


CONTAINERS: list[Callable[[Tensor], object]] = [
    lambda x: x,
    lambda x: (x, x),
    lambda x: [(x, [x]), x],
    lambda x: Pair(x, x),
    lambda x: torch.return_types.linalg_qr((x, x)),
]


def test_floating_tensors_are_cast_at_any_position_and_containers_keep_their_type():
    """The caller's own stay as they are."""
    wrong = []
    for decorate, to in CASTING:
        for dtype, make in product(TYPES, CONTAINERS):
            tensor = _ones(dtype)
            given, expected = make(tensor), make(tensor.to(to))
            args, kwargs = _get_cast_arguments(decorate, given, "sum", weight=given, bias=None)
            wanted = [expected, "sum", ("weight", expected), ("bias", None)]
            if not _same([*args, *kwargs.items()], wanted) or not _same(given, make(tensor)):
                wrong.append((decorate, given, args, kwargs))
    assert wrong == []


def test_out_is_not_cast():
    """It does not count as an argument to promote, either."""
    half, wide = torch.zeros(2, 2, dtype=HALF), torch.zeros(2)
    with casts(device_type="cpu"):
        assert torch.mm(torch.eye(2), torch.ones(2, 2), out=half) is half
        assert torch.equal(torch.exp(torch.zeros(2, dtype=HALF), out=wide), torch.ones(2))
        assert torch.add(_ones(HALF), _ones(FLOAT), out=wide) is wide
    assert torch.equal(half, torch.ones(2, 2, dtype=HALF))
    assert torch.equal(wide, torch.full((2,), 2.0))


@contextmanager
def _disabled() -> Iterator[None]:
    with casts(device_type="cpu"), disable_casts():
        yield


@pytest.mark.parametrize("context", [install_wrappers, _disabled, lambda: casts(device_type="cuda")])
def test_no_rule_does_anything_outside_a_context_disabled_or_to_another_device(context):
    half, single, double = _ones(HALF), _ones(FLOAT), _ones(DOUBLE)
    with context():
        assert torch.mm(torch.eye(2), torch.eye(2)).dtype is FLOAT
        assert torch.exp(half).dtype is HALF
        assert (half + double).dtype is DOUBLE
        assert torch.add(half, torch.tensor(1.0)).dtype is HALF
        assert torch.cat([half, single]).dtype is FLOAT
        assert F.binary_cross_entropy(half / 2, half).dtype is HALF
        assert amp.half_function(lambda x: x)(single) is single
        assert F.scaled_dot_product_attention(*[single[None]] * 3).dtype is FLOAT
        assert torch.exp_(input=half) is half
        half += double
        assert half.dtype is HALF


def _probabilities(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return torch.full((3,), 0.25, dtype=dtype), torch.ones(3, dtype=dtype)


def test_banned_function_refuses_half_at_any_position_and_names_the_alternatives():
    (x, y), (half_x, half_y) = _probabilities(FLOAT), _probabilities(HALF)
    with casts(device_type="cpu"):
        for args, kwargs in (((x, half_y), {}), ((), {"input": half_x, "target": y})):
            with pytest.raises(NotImplementedError, match=r"entropy_with_logits.*\.float\(\)"):
                F.binary_cross_entropy(*args, **kwargs)
        assert F.binary_cross_entropy(*_probabilities(DOUBLE)).dtype is DOUBLE
    with casts(device_type="cpu", allow_banned=True):
        allowed = F.binary_cross_entropy(half_x, half_y)
    assert allowed.dtype is FLOAT
    assert allowed.item() == pytest.approx(math.log(4), rel=4e-7)
