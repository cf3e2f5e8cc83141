"""The lists of O1, written out from the specification, and each function on them called: what it gives, and
that no other is touched.
"""

from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ampcompare.precision.apex.casts import casts

HALF, FLOAT, DOUBLE, BFLOAT = torch.float16, torch.float32, torch.float64, torch.bfloat16

CONVOLUTIONS = "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc".split()
FUNCTIONAL_HALF = [*CONVOLUTIONS, "linear"]
FUNCTIONAL_FLOAT = (
    "interpolate grid_sample softplus softmin log_softmax softmax gelu layer_norm group_norm "
    "local_response_norm normalize cosine_similarity poisson_nll_loss cosine_embedding_loss cross_entropy "
    "hinge_embedding_loss kl_div l1_loss mse_loss margin_ranking_loss multilabel_margin_loss "
    "multilabel_soft_margin_loss multi_margin_loss nll_loss binary_cross_entropy_with_logits smooth_l1_loss "
    "soft_margin_loss triplet_margin_loss ctc_loss"
).split()
LATER = ["scaled_dot_product_attention", "rms_norm"]  # not apex's: see test_transformers.py
TORCH_HALF = [*CONVOLUTIONS, *"prelu addmm addmv addr matmul mm mv addbmm baddbmm bmm".split()]
TORCH_FLOAT = (
    "acos asin cosh erfinv exp expm1 log log10 log2 reciprocal rsqrt sinh tan pow cumprod cumsum dist norm "
    "prod std sum var renorm"
).split()
TORCH_PROMOTE = "addcdiv addcmul atan2 cross bilinear dot add div mul eq equal ge gt le lt ne".split()
TORCH_SEQUENCE = ["cat", "stack"]
OPERATORS = (
    "__add__ __sub__ __mul__ __div__ __truediv__ __radd__ __rsub__ __rmul__ __rdiv__ __rtruediv__ "
    "__eq__ __ge__ __gt__ __le__ __lt__ __ne__"
).split()
OPERATORS_IN_PLACE = "__iadd__ __isub__ __imul__ __idiv__ __itruediv__".split()


def _methods(names: list[str]) -> list[str]:
    return [name for name in names if hasattr(Tensor, name)]


TENSOR_HALF = [*_methods(TORCH_HALF), "__matmul__"]
TENSOR_FLOAT = [*_methods(TORCH_FLOAT), "__pow__", "__rpow__", "__ipow__", "cpu"]
TENSOR_PROMOTE = [*_methods(TORCH_PROMOTE), *OPERATORS]


def _in_place(namespace: object, names: list[str]) -> list[str]:
    return [f"{name}_" for name in names if hasattr(namespace, f"{name}_")]


RUN_IN_HALF = (
    [(F, n) for n in FUNCTIONAL_HALF] + [(torch, n) for n in TORCH_HALF] + [(Tensor, n) for n in TENSOR_HALF]
)
RUN_IN_FLOAT = (
    [(F, n) for n in FUNCTIONAL_FLOAT]
    + [(torch, n) for n in TORCH_FLOAT]
    + [(Tensor, n) for n in TENSOR_FLOAT]
)
RUN_IN_WIDEST = [(torch, n) for n in TORCH_PROMOTE] + [(Tensor, n) for n in TENSOR_PROMOTE]
MATCH = (
    [(Tensor, n) for n in OPERATORS_IN_PLACE]
    + [(Tensor, n) for n in _in_place(Tensor, [*TORCH_HALF, *TORCH_PROMOTE])]
    + [(torch, n) for n in _in_place(torch, [*TORCH_HALF, *TORCH_PROMOTE])]
)
REFUSE = [(where, n) for where in (Tensor, torch) for n in _in_place(where, TORCH_FLOAT)]


def test_no_other_name_is_wrapped():
    expected = {
        F: {*FUNCTIONAL_HALF, *FUNCTIONAL_FLOAT, "binary_cross_entropy", *LATER},
        torch: {*TORCH_HALF, *TORCH_FLOAT, *TORCH_PROMOTE, *TORCH_SEQUENCE},
        Tensor: {*TENSOR_HALF, *TENSOR_FLOAT, *TENSOR_PROMOTE},
    }
    for namespace, name in [*MATCH, *REFUSE]:
        expected[namespace].add(name)
    before = {namespace: dict(vars(namespace)) for namespace in expected}
    with casts(device_type="cpu"):
        inside = {namespace: dict(vars(namespace)) for namespace in expected}
    for namespace, names in expected.items():
        changed = {
            name for name, value in inside[namespace].items() if before[namespace].get(name) is not value
        }
        assert changed == names


# What each is called with. All is positive, so that a sum of products is as exact as its terms.


def _rand(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0)) * 0.8 + 0.1


ARGUMENTS_HALF = {
    "conv1d": (_rand(1, 2, 5), _rand(3, 2, 3)),
    "conv2d": (_rand(1, 2, 4, 4), _rand(3, 2, 3, 3)),
    "conv3d": (_rand(1, 2, 3, 3, 3), _rand(3, 2, 3, 3, 3)),
    "conv_transpose1d": (_rand(1, 2, 5), _rand(2, 3, 3)),
    "conv_transpose2d": (_rand(1, 2, 4, 4), _rand(2, 3, 3, 3)),
    "conv_transpose3d": (_rand(1, 2, 3, 3, 3), _rand(2, 3, 3, 3, 3)),
    "conv_tbc": (_rand(5, 1, 2), _rand(3, 2, 3), _rand(3)),
    "linear": (_rand(2, 3), _rand(4, 3), _rand(4)),
    "prelu": (_rand(2, 3), _rand(3)),
    "addmm": (_rand(2, 2), _rand(2, 3), _rand(3, 2)),
    "addmv": (_rand(2), _rand(2, 3), _rand(3)),
    "addr": (_rand(2, 3), _rand(2), _rand(3)),
    "matmul": (_rand(2, 3), _rand(3, 2)),
    "__matmul__": (_rand(2, 3), _rand(3, 2)),
    "mm": (_rand(2, 3), _rand(3, 2)),
    "mv": (_rand(2, 3), _rand(3)),
    "addbmm": (_rand(2, 2), _rand(4, 2, 3), _rand(4, 3, 2)),
    "baddbmm": (_rand(4, 2, 2), _rand(4, 2, 3), _rand(4, 3, 2)),
    "bmm": (_rand(4, 2, 3), _rand(4, 3, 2)),
}
MOST_TERMS = 54  # of a sum among them: two channels of a kernel of 3 x 3 x 3
_x, _labels, _signs = _rand(3, 4), torch.tensor([0, 1, 3]), torch.tensor([1.0, -1.0, 1.0])
ARGUMENTS_FLOAT = {
    "interpolate": (_rand(1, 2, 4), 2),
    "grid_sample": (_rand(1, 1, 3, 3), _rand(1, 2, 2, 2), "bilinear", "zeros", False),
    "softmin": (_x, 1),
    "log_softmax": (_x, 1),
    "softmax": (_x, 1),
    "layer_norm": (_x, [4], _rand(4), _rand(4)),
    "group_norm": (_x, 2),
    "local_response_norm": (_rand(2, 3, 4), 2),
    "cosine_similarity": (_x, _x),
    "poisson_nll_loss": (_x, _x),
    "cosine_embedding_loss": (_x, _x, _signs),
    "cross_entropy": (_x, _labels),
    "hinge_embedding_loss": (_x, torch.sign(_x)),
    "kl_div": (_x.log(), _x, None, None, "batchmean"),
    "margin_ranking_loss": (_rand(3), _rand(3), _signs),
    "multilabel_margin_loss": (_x, torch.tensor([[0, 1, -1, 0]] * 3)),
    "multi_margin_loss": (_x, _labels),
    "nll_loss": (_x, _labels),
    "triplet_margin_loss": (_x, _x, _x),
    "ctc_loss": (_rand(5, 1, 4).log(), torch.tensor([[1, 2]]), torch.tensor([5]), torch.tensor([2])),
    "cumprod": (_x, 0),
    "cumsum": (_x, 0),
    "dist": (_x, _x),
    "renorm": (_x, 2, 0, 1.0),
    **dict.fromkeys("pow __pow__ __rpow__ __ipow__".split(), (_x, 2)),
    **dict.fromkeys("l1_loss mse_loss smooth_l1_loss multilabel_soft_margin_loss".split(), (_x, _x)),
    **dict.fromkeys(["binary_cross_entropy_with_logits", "soft_margin_loss"], (_x, _x)),
}
ARGUMENTS_PROMOTE = {
    "addcdiv": (_x, _x, _x),
    "addcmul": (_x, _x, _x),
    "cross": (_rand(2, 3), _rand(2, 3), -1),
    "bilinear": (_rand(2, 3), _rand(2, 4), _rand(5, 3, 4), None),
    "dot": (_rand(3), _rand(3)),
}


def _as(dtype: torch.dtype, x: object) -> object:
    return x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x


def _copy(x: object) -> object:
    return x.clone() if isinstance(x, Tensor) else x


def _call(namespace: object, name: str, *args: object) -> object:
    """The listed function under the casts."""
    with casts(device_type="cpu"):
        return getattr(namespace, name)(*args)


def _said(namespace: object, name: str, *args: object) -> str:
    """The refusal of the call, "" if there is none."""
    try:
        _call(namespace, name, *args)
    except NotImplementedError as error:
        return str(error)
    return ""


def _bits(x: object) -> object:
    return x.tolist() if isinstance(x, Tensor) else x


def test_the_half_list_gives_half_of_every_type_with_the_value_of_fp32():
    wrong = []
    for namespace, name in RUN_IN_HALF:
        arguments = ARGUMENTS_HALF[name]
        expected = getattr(namespace, name)(*arguments)
        for types in ((FLOAT,) * 3, (DOUBLE, HALF, FLOAT), (BFLOAT,) * 3):
            given = [_as(dtype, x) for dtype, x in zip(types, arguments, strict=False)]
            found = _call(namespace, name, *given)
            # Each argument is rounded, and each term as it is added, whatever the order.
            rounding = torch.finfo(BFLOAT if BFLOAT in types else HALF).eps / 2
            near = torch.allclose(found.float(), expected, rtol=(MOST_TERMS + 3) * rounding, atol=0)
            if found.dtype is not HALF or not near:
                wrong.append((name, types, found.dtype))
    assert not wrong


def test_the_float_list_gives_fp32_of_every_type_and_what_fp32_gives():
    wrong = []
    for namespace, name in RUN_IN_FLOAT:
        for dtype in (HALF, FLOAT, DOUBLE, BFLOAT):
            given = [_as(dtype, x) for x in ARGUMENTS_FLOAT.get(name, (_x,))]
            expected = getattr(namespace, name)(*(_as(FLOAT, _copy(x)) for x in given))
            found = _call(namespace, name, *map(_copy, given))
            if found.dtype is not FLOAT or not torch.equal(found, expected):
                wrong.append((namespace, name, dtype, found.dtype))
    assert not wrong


def test_a_promoting_function_takes_a_mix_of_half_and_fp32_in_fp32():
    wrong = []
    for namespace, name in RUN_IN_WIDEST:
        first, *others = ARGUMENTS_PROMOTE.get(name, (_x, _x))
        rounded = [_as(FLOAT, _as(HALF, x)) for x in others]
        for given, as_fp32 in (
            ((_as(HALF, first), *others), (_as(FLOAT, _as(HALF, first)), *others)),
            ((first, *(_as(HALF, x) for x in others)), (first, *rounded)),
        ):
            expected, found = getattr(namespace, name)(*as_fp32), _call(namespace, name, *given)
            if isinstance(found, Tensor) and found.dtype not in (FLOAT, torch.bool):
                wrong.append((name, found.dtype))
            elif _bits(found) != _bits(expected):
                wrong.append((name, found, expected))
    assert not wrong


def test_a_promoting_function_leaves_one_type_alone_and_refuses_another_mix():
    wrong = []
    over = {"__rdiv__", "__rtruediv__"}  # made of `reciprocal`, which is on another list: see below
    for namespace, name in [entry for entry in RUN_IN_WIDEST if entry[1] not in over]:
        arguments = ARGUMENTS_PROMOTE.get(name, (_x, _x))
        for dtype in (HALF, FLOAT, DOUBLE, BFLOAT):
            found = _call(namespace, name, *(_as(dtype, x) for x in arguments))
            if isinstance(found, Tensor) and found.dtype not in (dtype, torch.bool):
                wrong.append((name, dtype, found.dtype))
        first, *others = arguments
        if "float32, float64" not in _said(namespace, name, _as(DOUBLE, first), *others):
            wrong.append((name, "a mix with fp64 is not refused"))
    assert not wrong


def test_sequences_are_joined_in_the_widest_type():
    for name in TORCH_SEQUENCE:
        half, single = torch.full((1, 2), 0.1, dtype=HALF), torch.full((1, 2), 0.1)
        given, expected = [half, single], getattr(torch, name)([half.float(), single], 1)
        with casts(device_type="cpu"):
            join = getattr(torch, name)
            found = [
                join(given, 1),
                join((half, single), dim=1),
                join(tensors=given, dim=1),
                join(given, -1 if name == "cat" else 1),
            ]
            assert join([half, half]).dtype is HALF
            assert join([half, single.double()]).dtype is DOUBLE  # PyTorch's to judge
            assert join([single.bfloat16(), half]).dtype is FLOAT  # the same
            assert join([half, torch.ones(1, 2, dtype=torch.int64)]).dtype is HALF
        assert all(result.dtype is FLOAT and torch.equal(result, expected) for result in found)
        assert given[0] is half


def test_an_in_place_function_keeps_its_tensor_and_casts_the_others_to_its_type():
    wrong = []
    for namespace, name in MATCH:
        plain = name.strip("_")
        plain = plain.removeprefix("i") if name in OPERATORS_IN_PLACE else plain
        arguments = ARGUMENTS_HALF.get(plain) or ARGUMENTS_PROMOTE.get(plain) or (_x, _x)
        for own in (HALF, FLOAT, DOUBLE, BFLOAT):
            for other in (HALF, FLOAT, DOUBLE):
                target, *others = (_as(other, x) for x in arguments)
                target = _as(own, target).clone()
                expected = getattr(namespace, name)(target.clone(), *(_as(own, x) for x in others))
                found = _call(namespace, name, target, *others)
                if found is not target or target.dtype is not own or _bits(found) != _bits(expected):
                    wrong.append((name, own, other))
    assert not wrong


def test_an_in_place_function_of_the_float_list_refuses_half_and_works_on_other_types():
    wrong = []
    for namespace, name in REFUSE:
        arguments = ARGUMENTS_FLOAT.get(name[:-1], (_x,))
        refusal = f"{name} cannot write into a float16 tensor; use {name[:-1]},"
        if refusal not in _said(namespace, name, *(_as(HALF, x) for x in arguments)):
            wrong.append((name, "half is not refused"))
        for own in (FLOAT, DOUBLE, BFLOAT):
            target, *others = (_as(own, x) for x in arguments)
            target, expected = target.clone(), getattr(namespace, name)(target.clone(), *others)
            found = _call(namespace, name, target, *others)
            if found is not target or target.dtype is not own or not torch.equal(found, expected):
                wrong.append((name, own))
    assert not wrong


def test_number_over_half_goes_through_the_reciprocal_of_the_float_list():
    """PyTorch writes 2 / x as x.reciprocal() * 2, and `reciprocal` is listed; the others stay half."""
    half = _x.half()
    with casts(device_type="cpu"):
        found = [2 + half, 2 - half, 2 * half, 2 / half]
    assert [x.dtype for x in found] == [HALF, HALF, HALF, FLOAT]


def test_a_scalar_tensor_in_fp32_promotes_in_operators_and_comparisons():
    """By PyTorch's own rules a 0-d tensor would leave half as it is."""
    half, scalar = torch.tensor([0.1, 2.0]).half(), torch.tensor(0.1)
    symbols = "add sub mul truediv eq ne lt le gt ge".split()
    with casts(device_type="cpu"):
        found = {name: getattr(operator, name)(half, scalar) for name in symbols}
        reflected = {name: getattr(operator, name)(scalar, half) for name in symbols}
        numbers = [half + 0.5, half - 2, half * 0.5, half / 2]
    single = half.float()
    assert all(torch.equal(found[name], getattr(operator, name)(single, scalar)) for name in symbols)
    assert all(torch.equal(reflected[name], getattr(operator, name)(scalar, single)) for name in symbols)
    assert {x.dtype for x in numbers} == {HALF}


def test_comparison_with_something_that_is_no_tensor():
    with casts(device_type="cpu"):
        assert (torch.ones(2) == None) is False  # noqa: E711
        assert torch.ones(2) != "one"


def test_powers_reach_what_half_cannot_hold():
    x = torch.full((2,), 300.0, dtype=HALF)
    with casts(device_type="cpu"):
        x **= 2
        reflected = 2 ** torch.full((2,), 17.0, dtype=HALF)
    assert torch.equal(x, torch.full((2,), 90000.0))
    assert torch.equal(reflected, torch.full((2,), 2.0**17))


UNLISTED = {
    "torch.softmax": lambda x: torch.softmax(x, 1),
    "Tensor.softmax": lambda x: x.softmax(1),
    "torch.log_softmax": lambda x: torch.log_softmax(x, 1),
    "torch.mean": lambda x: torch.mean(x),
    "Tensor.mean": lambda x: x.mean(),
    "torch.sub": lambda x: torch.sub(x, 1),
    "Tensor.sub": lambda x: x.sub(x),
    "torch.sqrt": torch.sqrt,
    "torch.sin": torch.sin,
    "torch.sigmoid": torch.sigmoid,
    "torch.einsum": lambda x: torch.einsum("bi,bj->ij", x, x),
    "F.relu": F.relu,
    "F.silu": F.silu,
    "F.tanh": F.tanh,
    "F.dropout": F.dropout,
    "F.max_pool1d": lambda x: F.max_pool1d(x, 2),
    "F.prelu": lambda x: F.prelu(x, torch.ones((), dtype=x.dtype)),
    "nn.PReLU": lambda x: torch.nn.PReLU().to(x.dtype)(x),
    "F.batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "F.instance_norm": lambda x: F.instance_norm(x[None]),
    "F.huber_loss": lambda x: F.huber_loss(x, x),
    "torch.logsumexp": lambda x: torch.logsumexp(x, 1),
    "torch.clamp": lambda x: torch.clamp(x, 0, 1),
    "unary minus": operator.neg,
    "floor division": lambda x: x // 2,
    "remainder": lambda x: x % 2,
    "maximum": lambda x: torch.maximum(x, x),
}


def test_a_function_that_is_not_listed_keeps_the_type():
    with casts(device_type="cpu"):
        found = {
            (name, t): UNLISTED[name](_x.to(t)).dtype for name in UNLISTED for t in (HALF, FLOAT, DOUBLE)
        }
    assert not {case: dtype for case, dtype in found.items() if dtype is not case[1]}


def test_subtraction_method_is_pytorchs_own():
    """torch.sub is not listed: a 0-d fp32 tensor does not promote there, while the operator's does."""
    half, scalar = torch.ones(2, dtype=HALF), torch.tensor(1.0)
    with casts(device_type="cpu"):
        assert torch.sub(half, scalar).dtype is HALF
        assert half.sub(scalar).dtype is HALF
        assert (half - scalar).dtype is FLOAT
        assert (scalar - half).dtype is FLOAT


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_takes_half_and_keeps_its_own_state_in_float(training):
    norm = torch.nn.BatchNorm1d(4).train(training)
    with casts(device_type="cpu"):
        result = norm(_x.half())
    assert result.dtype is HALF
    assert {t.dtype for t in norm.state_dict().values() if t.is_floating_point()} == {FLOAT}
    result.float().sum().backward()
    assert norm.weight.grad.dtype is FLOAT


def test_composites_are_seen_into():
    """Attention is made of linear layers (half), products (half) and a softmax (float)."""
    attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(2, 3, 8)
    with casts(device_type="cpu"):
        result, weights = attention(x, x, x)
    assert result.dtype is HALF
    assert weights.dtype is FLOAT
    result.float().sum().backward()
    assert {p.grad.dtype for p in attention.parameters()} == {FLOAT}
