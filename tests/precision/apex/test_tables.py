"""The lists of O1, written out from the specification: what each function runs in, and that no other is
touched.
"""

from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ampcompare.precision.apex.casts import casts

HALF, FLOAT = torch.float16, torch.float32

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


def _name(value: object) -> str | None:
    return value if isinstance(value, str) else getattr(value, "__name__", None)


def _received(
    monkeypatch: pytest.MonkeyPatch, namespace: object, name: str, *args: object, **kwargs: object
) -> list:
    """What the original function is handed when the listed one is called under the casts."""
    seen: list = []

    def original(*args: object, **kwargs: object) -> None:
        seen.append([*args, *kwargs.values()])

    original.__name__ = name
    monkeypatch.setattr(namespace, name, original)
    with casts(device_type="cpu"):
        getattr(namespace, name)(*args, **kwargs)
    monkeypatch.undo()
    return seen[0]


def _dtypes(tensors: list[Tensor]) -> list[torch.dtype]:
    return [t.dtype for t in tensors]


def _ones(*dtypes: torch.dtype) -> list[Tensor]:
    return [torch.ones(2, dtype=dtype) for dtype in dtypes]


@pytest.mark.parametrize(("namespace", "name"), RUN_IN_HALF, ids=_name)
def test_listed_function_runs_in_half(namespace, name, monkeypatch):
    tensors = _ones(FLOAT, HALF, torch.float64, torch.bfloat16)
    assert _dtypes(_received(monkeypatch, namespace, name, *tensors)) == [HALF] * 4
    assert _dtypes(_received(monkeypatch, namespace, name, tensors[0], other=tensors[2])) == [HALF] * 2


@pytest.mark.parametrize(("namespace", "name"), RUN_IN_FLOAT, ids=_name)
def test_listed_function_runs_in_float(namespace, name, monkeypatch):
    tensors = _ones(FLOAT, HALF, torch.float64, torch.bfloat16)
    assert _dtypes(_received(monkeypatch, namespace, name, *tensors)) == [FLOAT] * 4
    assert _dtypes(_received(monkeypatch, namespace, name, tensors[1], other=tensors[2])) == [FLOAT] * 2


@pytest.mark.parametrize(("namespace", "name"), RUN_IN_WIDEST, ids=_name)
def test_listed_function_runs_in_the_widest_type(namespace, name, monkeypatch):
    half, single, double = _ones(HALF, FLOAT, torch.float64)
    assert _dtypes(_received(monkeypatch, namespace, name, half, single)) == [FLOAT, FLOAT]
    assert _dtypes(_received(monkeypatch, namespace, name, single, other=half)) == [FLOAT, FLOAT]
    assert _dtypes(_received(monkeypatch, namespace, name, half, half)) == [HALF, HALF]
    assert _dtypes(_received(monkeypatch, namespace, name, double, double)) == [torch.float64, torch.float64]
    with pytest.raises(NotImplementedError, match=r"float32, float64"):
        _received(monkeypatch, namespace, name, single, double)


@pytest.mark.parametrize("name", TORCH_SEQUENCE)
def test_listed_sequence_is_promoted(name, monkeypatch):
    half, single = _ones(HALF, FLOAT)
    (sequence,) = _received(monkeypatch, torch, name, [half, single])
    assert _dtypes(sequence) == [FLOAT, FLOAT]
    mixed = _ones(HALF, torch.float64)
    assert _received(monkeypatch, torch, name, mixed) == [mixed]  # PyTorch's to judge


@pytest.mark.parametrize(("namespace", "name"), MATCH, ids=_name)
def test_in_place_function_casts_the_others_to_the_type_of_self(namespace, name, monkeypatch):
    for own in (HALF, FLOAT, torch.float64, torch.bfloat16):
        target, *others = _ones(own, HALF, FLOAT, torch.float64)
        received = _received(monkeypatch, namespace, name, target, *others)
        assert received[0] is target
        assert _dtypes(received) == [own] * 4


@pytest.mark.parametrize(("namespace", "name"), REFUSE, ids=_name)
def test_in_place_float_function_refuses_a_half_tensor(namespace, name, monkeypatch):
    half, single, double = _ones(HALF, FLOAT, torch.float64)
    with pytest.raises(
        NotImplementedError, match=f"{name} cannot write into a float16 tensor; use {name[:-1]},"
    ):
        _received(monkeypatch, namespace, name, half, single)
    assert _dtypes(_received(monkeypatch, namespace, name, single, half)) == [FLOAT, FLOAT]
    received = _received(monkeypatch, namespace, name, double, half)
    assert received[0] is double


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


# Real calls. Every function once, with fp32 arguments for the fp16 list and fp16 arguments for the fp32 list.


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
    "pow": (_x, 2),
    "__pow__": (_x, 2),
    "__rpow__": (_x, 2),
    "__ipow__": (_x, 2),
    "cumprod": (_x, 0),
    "cumsum": (_x, 0),
    "dist": (_x, _x),
    "renorm": (_x, 2, 0, 1.0),
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


def _halved(x: object) -> object:
    return x.half() if isinstance(x, Tensor) and x.is_floating_point() else x


@pytest.mark.parametrize(("namespace", "name"), RUN_IN_HALF, ids=_name)
def test_half_function_gives_half(namespace, name):
    with casts(device_type="cpu"):
        result = getattr(namespace, name)(*ARGUMENTS_HALF[name])
    assert result.dtype is HALF


@pytest.mark.parametrize(("namespace", "name"), RUN_IN_FLOAT, ids=_name)
def test_float_function_gives_float(namespace, name):
    arguments = [_halved(x) for x in ARGUMENTS_FLOAT.get(name, (_x,))]
    with casts(device_type="cpu"):
        result = getattr(namespace, name)(*arguments)
    assert result.dtype is FLOAT


@pytest.mark.parametrize("first_is_half", [True, False])
@pytest.mark.parametrize(("namespace", "name"), RUN_IN_WIDEST, ids=_name)
def test_promoting_function_takes_a_mix(namespace, name, first_is_half):
    first, *others = ARGUMENTS_PROMOTE.get(name, (_x, _x))
    arguments = [_halved(first), *others] if first_is_half else [first, *(_halved(x) for x in others)]
    with casts(device_type="cpu"):
        result = getattr(namespace, name)(*arguments)
    assert result.dtype in (FLOAT, torch.bool) if isinstance(result, Tensor) else isinstance(result, bool)


SYMBOLS = [operator.add, operator.sub, operator.mul, operator.truediv]


def test_number_over_half_goes_through_the_reciprocal_of_the_float_list():
    """PyTorch writes 2 / x as x.reciprocal() * 2, and `reciprocal` is listed; the others stay half."""
    half = _halved(_x)
    with casts(device_type="cpu"):
        assert _dtypes([2 + half, 2 - half, 2 * half, 2 / half]) == [HALF, HALF, HALF, FLOAT]


COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]


@pytest.mark.parametrize("symbol", SYMBOLS, ids=_name)
def test_operator_between_half_and_float_gives_float_either_way(symbol):
    half, single = _halved(_x), _x + 0.5
    scalar = torch.tensor(0.3)  # 0-d: PyTorch alone would keep half
    with casts(device_type="cpu"):
        results = [symbol(half, single), symbol(single, half), symbol(half, scalar), symbol(scalar, half)]
        alone = [symbol(half, 2), symbol(half, 0.5), symbol(half, half)]
    assert _dtypes(results) == [FLOAT] * 4
    assert _dtypes(alone) == [HALF] * 3
    assert torch.equal(results[2], symbol(half.float(), scalar))


@pytest.mark.parametrize("symbol", COMPARISONS, ids=_name)
def test_comparison_is_made_in_float(symbol):
    half = torch.tensor([0.1, 2.0]).half()
    scalar = torch.tensor(0.1)  # PyTorch alone would compare in half, where both are the same
    with casts(device_type="cpu"):
        assert torch.equal(symbol(half, scalar), symbol(half.float(), scalar))


def test_comparison_with_something_that_is_no_tensor():
    with casts(device_type="cpu"):
        assert (torch.ones(2) == None) is False  # noqa: E711
        assert torch.ones(2) != "one"


IN_PLACE_SYMBOLS = [operator.iadd, operator.isub, operator.imul, operator.itruediv]


@pytest.mark.parametrize("symbol", IN_PLACE_SYMBOLS, ids=_name)
@pytest.mark.parametrize("own", [HALF, FLOAT, torch.float64])
def test_in_place_operator_keeps_the_object_and_its_type(symbol, own):
    for other in (HALF, FLOAT, torch.float64):
        target = torch.full((3,), 2.0, dtype=own)
        with casts(device_type="cpu"):
            result = symbol(target, torch.full((3,), 0.5, dtype=other))
        assert result is target
        assert result.dtype is own


def test_in_place_method_of_the_half_list_writes_into_self():
    target = torch.zeros(2, 2, dtype=FLOAT)
    with casts(device_type="cpu"):
        result = target.addmm_(_rand(2, 3).half(), _rand(3, 2).double())
    assert result is target
    assert target.dtype is FLOAT
    assert target.abs().sum() > 0


def test_power_in_place_is_on_the_float_list():
    x = torch.full((2,), 300.0, dtype=HALF)
    with casts(device_type="cpu"):
        x **= 2
    assert x.dtype is FLOAT
    assert torch.equal(x, torch.full((2,), 90000.0))


def test_reflected_power_is_on_the_float_list():
    with casts(device_type="cpu"):
        assert torch.equal(2 ** torch.full((2,), 17.0, dtype=HALF), torch.full((2,), 2.0**17))


def test_matmul_operator_is_on_the_half_list():
    with casts(device_type="cpu"):
        assert (_rand(2, 3) @ _rand(3, 2)).dtype is HALF


def test_cpu_gives_float():
    with casts(device_type="cpu"):
        assert torch.ones(2, dtype=HALF).cpu().dtype is FLOAT


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
    "F.relu": F.relu,
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


@pytest.mark.parametrize("dtype", [HALF, FLOAT, torch.float64], ids=str)
@pytest.mark.parametrize("name", UNLISTED)
def test_function_that_is_not_listed_keeps_the_type(name, dtype):
    with casts(device_type="cpu"):
        assert UNLISTED[name](_x.to(dtype)).dtype is dtype


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
