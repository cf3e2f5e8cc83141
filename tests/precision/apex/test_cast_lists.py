"""Apex's lists for O1, each function really called: what it runs in, and that no other is touched.

A list is written here as its functions with arguments for a call, so that none stands in it uncalled.
"""

import operator
from collections.abc import Iterator, Mapping, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ampcompare.precision.o1.patches import casts, install_wrappers

HALF, FLOAT, DOUBLE, BFLOAT = TYPES = [torch.float16, torch.float32, torch.float64, torch.bfloat16]
TURNS = [TYPES[turn:] + TYPES[:turn] for turn in range(4)]  # each argument in each type, and no two in one
Samples = Mapping[str, tuple]
Types = Sequence[torch.dtype]
_generator = torch.Generator().manual_seed(0)


def _q(*shape: int) -> Tensor:
    """1/4 to 1: sums of up to 128 products of these are exact in fp16, in whatever order."""
    return torch.randint(1, 5, shape, generator=_generator) / 4


def _f(*shape: int) -> Tensor:
    """0.1 to 0.9, in numbers that no type but fp32 holds, so that a cast on the way shows."""
    return torch.rand(shape, generator=_generator) * 0.8 + 0.1


def _all(names: str, *args: object) -> Samples:
    return dict.fromkeys(names.split(), args)


def _existing(where: object, samples: Samples, suffix: str = "") -> Samples:
    return {name + suffix: args for name, args in samples.items() if hasattr(where, name + suffix)}


# In half

CONVOLUTIONS: Samples = {
    "conv1d": (_q(1, 2, 5), _q(3, 2, 3)),
    "conv2d": (_q(1, 2, 4, 4), _q(3, 2, 3, 3)),
    "conv3d": (_q(1, 2, 3, 3, 3), _q(3, 2, 3, 3, 3)),
    "conv_transpose1d": (_q(1, 2, 5), _q(2, 3, 3)),
    "conv_transpose2d": (_q(1, 2, 4, 4), _q(2, 3, 3, 3)),
    "conv_transpose3d": (_q(1, 2, 3, 3, 3), _q(2, 3, 3, 3, 3)),
    "conv_tbc": (_q(5, 1, 2), _q(3, 2, 3), _q(3)),
}
TORCH_HALF: Samples = {
    **CONVOLUTIONS,
    **_all("matmul mm", _q(2, 3), _q(3, 2)),
    "prelu": (_q(2, 3) - 0.5, _q(3)),
    "addmm": (_q(2, 2), _q(2, 3), _q(3, 2)),
    "addmv": (_q(2), _q(2, 3), _q(3)),
    "addr": (_f(2, 3), _f(2), _f(3)),
    "mv": (_q(2, 3), _q(3)),
    "addbmm": (_q(2, 2), _q(4, 2, 3), _q(4, 3, 2)),
    "baddbmm": (_q(4, 2, 2), _q(4, 2, 3), _q(4, 3, 2)),
    "bmm": (_q(4, 2, 3), _q(4, 3, 2)),
}
RUN_IN_HALF = {
    F: {
        **CONVOLUTIONS,
        "linear": (_q(2, 3), _q(4, 3), _q(4)),
        "scaled_dot_product_attention": (_f(1, 3, 4), _f(1, 3, 4), _f(1, 3, 4)),  # later than apex
    },
    torch: TORCH_HALF,
    Tensor: {**_existing(Tensor, TORCH_HALF), "__matmul__": (_q(2, 3), _q(3, 2))},
    operator: {"matmul": (_q(2, 3), _q(3, 2))},  # Python finds a method in another way than by its name
}

# In float

_x, _y, _labels, _signs = _f(3, 4), _f(3, 4), torch.tensor([0, 1, 3]), torch.tensor([1.0, -1.0, 1.0])
TORCH_FLOAT: Samples = {
    **_all("acos asin cosh erfinv exp expm1 log log10 log2 reciprocal rsqrt sinh tan", _x),
    **_all("norm prod std sum var", _x),
    **_all("dist pow", _x, _y),
    **_all("cumprod cumsum", _x, 0),
    "renorm": (_x, 2, 0, 0.5),
}
RUN_IN_FLOAT = {
    F: {
        "interpolate": (_f(1, 2, 4), 2),
        "grid_sample": (_f(1, 1, 3, 3), _f(1, 2, 2, 2), "bilinear", "zeros", False),
        **_all("softplus gelu normalize", _x),
        **_all("softmin log_softmax softmax", _x, 1),
        "layer_norm": (_x, [4], _f(4), _f(4)),
        "rms_norm": (_x, [4], _f(4)),  # later than apex
        "group_norm": (_x, 2),
        "local_response_norm": (_f(2, 3, 4), 2),
        "cosine_similarity": (_x, _y),
        **_all("l1_loss mse_loss smooth_l1_loss multilabel_soft_margin_loss poisson_nll_loss", _x, _y),
        **_all("binary_cross_entropy_with_logits soft_margin_loss", _x, _y),
        **_all("cross_entropy multi_margin_loss nll_loss", _x, _labels),
        "cosine_embedding_loss": (_x, _y, _signs),
        "margin_ranking_loss": (_f(3), _f(3), _signs),
        "hinge_embedding_loss": (_x, torch.sign(_y - 0.5)),
        "kl_div": (-_x, _y, None, None, "batchmean"),
        "multilabel_margin_loss": (_x, torch.tensor([[0, 1, -1, 0]] * 3)),
        "triplet_margin_loss": (_x, _y, _f(3, 4)),
        "ctc_loss": (-_f(5, 1, 4), torch.tensor([[1, 2]]), torch.tensor([5]), torch.tensor([2])),
    },
    torch: TORCH_FLOAT,
    Tensor: {**_existing(Tensor, TORCH_FLOAT), **_all("__pow__ __rpow__ __ipow__", _x, 2), "cpu": (_x,)},
    operator: _all("pow ipow", _x, 2),
}

# In the widest type. A 0-d tensor is where it shows: PyTorch alone would go on in half, where 0.1 and 0.3 are
# other numbers, the one below, the other above its value.

_many, _below, _above = torch.cat([_f(10), torch.tensor([0.1, 0.3])]), torch.tensor(0.1), torch.tensor(0.3)
TORCH_PROMOTE: Samples = {
    **_all("add atan2 div mul", _many, _below),
    **_all("addcdiv addcmul", _many, _below, _above),
    **_all("eq ge lt ne", _many, _below),
    **_all("gt le", _many, _above),
    "cross": (_q(2, 3), _q(2, 3), -1),
    "bilinear": (_q(2, 3), _q(2, 4), _q(5, 3, 4), None),
    "dot": (_q(3), _q(3)),
    "equal": (_many, _many),
}
# PyTorch writes a reflected division as a product with `reciprocal`, which is on the float list.
REFLECTED_DIVISION = {Tensor: _all("__rdiv__ __rtruediv__", _many, _below)}
RUN_IN_WIDEST = {
    torch: {**TORCH_PROMOTE, "vdot": (_q(3), _q(3))},  # later than apex
    Tensor: {
        **_existing(Tensor, TORCH_PROMOTE),
        **_all("__add__ __sub__ __mul__ __div__ __truediv__ __radd__ __rsub__ __rmul__", _many, _below),
        **_all("__eq__ __ge__ __lt__ __ne__", _many, _below),
        **_all("__gt__ __le__", _many, _above),
    },
    operator: {**_all("add sub mul truediv eq ge lt ne", _many, _below), **_all("gt le", _many, _above)},
}

# In place. The values are such as no type holds, so that it shows in which type they come to the target.

_thirds, _sevenths = torch.arange(1, 10, dtype=DOUBLE) / 3, torch.arange(1, 10, dtype=DOUBLE) / 7
MATCH_ALL: Samples = {
    **_existing(Tensor, TORCH_HALF, "_"),
    **_all("add_ atan2_ div_ mul_ __iadd__ __isub__ __imul__ __idiv__ __itruediv__", _sevenths, _thirds),
    **_all("addcdiv_ addcmul_", _sevenths, _thirds, _thirds.flip(0)),
    **_all("eq_ ge_ gt_ le_ lt_ ne_", _thirds, _thirds),
}
MATCH = {
    Tensor: MATCH_ALL,
    torch: _existing(torch, MATCH_ALL),
    operator: _all("iadd isub imul itruediv", _sevenths, _thirds),
}
REFUSE = {where: _existing(where, TORCH_FLOAT, "_") for where in (torch, Tensor)}

# Lists are per namespace, and some that one would look for stand in none.


def _cast_floating(types: Types, args: Sequence) -> list:
    """Return copies of the arguments, with floating-point tensors in these dtypes in turn."""
    given, number = [], 0
    for x in args:
        if isinstance(x, Tensor) and x.is_floating_point():
            x = x.to(types[number % len(types)], copy=True)
            number += 1
        given.append(x)
    return given


def _is(found: object, expected: object, units: int = 0) -> bool:
    """Whether it is the same type and the same numbers, but for so many roundings of the largest."""
    if not isinstance(found, Tensor) or not isinstance(expected, Tensor):
        return type(found) is type(expected) and found == expected
    if found.dtype is not expected.dtype or found.shape != expected.shape:
        return False
    if not units:
        return torch.equal(found, expected)
    error = (found - expected).abs().max().item()
    return error <= units * torch.finfo(found.dtype).eps * expected.abs().max().item()


def _offenders(
    lists: Mapping[object, Samples],
    cases: Sequence[tuple[Types, Types | str]],
    units: int = 0,
    in_place: bool = False,
) -> dict[str, object]:
    """Return the calls in which O1 differs from PyTorch.

    A case has the dtypes of the arguments under O1, and the dtypes with which PyTorch must give the same
    result, or the words of the expected error. An in-place call must also return its target.
    """
    wrong = {}
    for where, name, args, types, expected in [
        (where, name, args, *case)
        for where, samples in lists.items()
        for name, args in samples.items()
        for case in cases
    ]:
        given = _cast_floating(types, args)
        words = expected.format(name=name, plain=name[:-1]) if isinstance(expected, str) else None
        original = words or getattr(where, name)(*_cast_floating(expected, given))
        with casts(device_type="cpu"):
            try:
                found = getattr(where, name)(*given)
            except (RuntimeError, NotImplementedError) as error:
                found = f"{type(error).__name__}: {error}"
        is_right = words in str(found) if words else _is(found, original, units)
        if not is_right or (in_place and found is not given[0]):
            wrong[f"{where.__name__}.{name}{tuple(types)}"] = found
    return wrong


@pytest.fixture
def session() -> Iterator[None]:
    """Keep the wrappers installed from call to call, which is ten times as fast."""
    with install_wrappers():
        yield


def test_functions_of_the_half_list_run_in_fp16_for_any_dtype(session):
    assert _offenders(RUN_IN_HALF, [(types, [HALF]) for types in TURNS]) == {}


def test_functions_of_the_float_list_run_in_fp32_for_any_dtype(session):
    most = max(x.numel() for samples in RUN_IN_FLOAT.values() for x, *_ in samples.values())
    assert _offenders(RUN_IN_FLOAT, [(types, [FLOAT]) for types in TURNS], units=most) == {}


def test_promoting_functions_run_in_the_widest_dtype_of_their_arguments(session):
    mixes = [([HALF, FLOAT], [FLOAT]), ([FLOAT, HALF], [FLOAT]), ([FLOAT], [FLOAT])]
    assert _offenders(RUN_IN_WIDEST, mixes + [([t], [t]) for t in (HALF, DOUBLE, BFLOAT)]) == {}
    assert _offenders(REFLECTED_DIVISION, mixes) == {}


def test_promoting_functions_refuse_a_mix_with_double_and_name_both_types(session):
    message = "NotImplementedError: apex O1 does not know how to promote {{float32, float64}}"
    for lists in (RUN_IN_WIDEST, REFLECTED_DIVISION):
        assert _offenders(lists, [([FLOAT, DOUBLE], message), ([DOUBLE, FLOAT], message)]) == {}


def test_in_place_functions_cast_the_other_arguments_to_the_dtype_of_their_target(session):
    cases = [([own, other, other], [own]) for own in TYPES for other in TYPES]
    assert _offenders(MATCH, cases, in_place=True) == {}


def test_float_functions_refuse_to_write_into_half_and_write_into_other_types(session):
    message = (
        "NotImplementedError: apex O1 runs {plain} in float32, so {name} cannot write into a float16 tensor"
    )
    assert _offenders(REFUSE, [([HALF, FLOAT], message), ([HALF], message + "; use {plain},")]) == {}
    cases = [([own, HALF], [own, FLOAT]) for own in (FLOAT, DOUBLE, BFLOAT)]
    assert _offenders(REFUSE, cases, in_place=True) == {}


def test_only_names_that_are_tested_here_are_wrapped():
    expected = {F: {"binary_cross_entropy"}, torch: set(), Tensor: {"register_hook"}}
    for lists in (RUN_IN_HALF, RUN_IN_FLOAT, RUN_IN_WIDEST, REFLECTED_DIVISION, MATCH, REFUSE):
        expected = {where: names | lists.get(where, {}).keys() for where, names in expected.items()}
    before = {where: dict(vars(where)) for where in expected}
    with casts(device_type="cpu"):
        inside = {where: dict(vars(where)) for where in expected}
    assert {where: dict(vars(where)) for where in expected} == before
    for where, names in expected.items():
        assert {n for n, value in inside[where].items() if before[where].get(n) is not value} == names
