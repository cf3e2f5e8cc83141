"""What each rule does with each kind of argument."""

from __future__ import annotations

from collections import namedtuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ampcompare.precision.apex.casts import casts
from ampcompare.precision.apex.rules import RULES

HALF, FLOAT, DOUBLE, BFLOAT = torch.float16, torch.float32, torch.float64, torch.bfloat16
Pair = namedtuple("Pair", "first second")

# A rule that casts, what it casts to, and a type that it has to change for that.
CASTING = [("half", HALF, FLOAT), ("float", FLOAT, HALF)]
ALL = ["half", "float", "promote", "sequence", "match", "refuse", "banned"]


def _call(rule: str, *args: object, device_type: str = "cpu", **kwargs: object) -> tuple[tuple, dict]:
    """What a function under the rule is handed."""
    seen: list = []

    def function(*args: object, **kwargs: object) -> None:
        seen.append((args, kwargs))

    with casts(device_type=device_type):
        RULES[rule](function)(*args, **kwargs)
    return seen[0]


def _ones(dtype: torch.dtype) -> Tensor:
    return torch.ones(2, dtype=dtype)


def test_positional_and_keyword_arguments_are_cast():
    for rule, to, other in CASTING:
        (x,), kwargs = _call(rule, _ones(other), weight=_ones(other), bias=None)
        assert x.dtype is to
        assert kwargs["weight"].dtype is to
        assert kwargs["bias"] is None


@pytest.mark.parametrize("container", [list, tuple])
def test_lists_and_tuples_of_floating_tensors_are_cast(container):
    for rule, to, other in CASTING:
        (x,), kwargs = _call(rule, container([_ones(other), _ones(DOUBLE)]), more=container([_ones(other)]))
        assert type(x) is container
        assert type(kwargs["more"]) is container
        assert [t.dtype for t in [*x, *kwargs["more"]]] == [to] * 3


def test_nested_containers_are_cast_all_the_way_down():
    for rule, to, other in CASTING:
        (x,), _ = _call(rule, [(_ones(other), [_ones(other)]), _ones(to)])
        assert isinstance(x, list)
        assert isinstance(x[0], tuple)
        assert [x[0][0].dtype, x[0][1][0].dtype, x[1].dtype] == [to] * 3


def test_named_tuple_stays_one():
    for rule, to, other in CASTING:
        (pair,), _ = _call(rule, Pair(_ones(other), _ones(other)))
        assert type(pair) is Pair
        assert pair.second.dtype is to


def test_returned_pair_of_pytorch_stays_what_it_is():
    for rule, to, _other in CASTING:
        given = torch.linalg.qr(torch.eye(2))
        (pair,), _ = _call(rule, given)
        assert type(pair) is type(given)
        assert pair.Q.dtype is to


def test_list_with_anything_but_floating_tensors_is_left_alone():
    for rule, _to, other in CASTING:
        for extra in (
            1.0,
            None,
            "mean",
            torch.ones(2, dtype=torch.int64),
            [1],
            torch.ones(2, dtype=torch.complex64),
        ):
            given = [_ones(other), extra]
            (x,), kwargs = _call(rule, given, more=given)
            assert x is given
            assert kwargs["more"] is given
            assert given[0].dtype is other


def test_empty_container_is_returned_as_is():
    for empty in ([], (), [[]], ([], ())):
        for rule in ALL:
            (_, x), kwargs = _call(rule, _ones(FLOAT), empty, more=empty)
            assert x is empty
            assert kwargs["more"] is empty


OTHERS = [
    torch.ones(2, dtype=torch.int64),
    torch.ones(2, dtype=torch.uint8),
    torch.ones(2, dtype=torch.bool),
    torch.ones(2, dtype=torch.complex64),
    torch.tensor(3),
    None,
    True,
    3,
    2.5,
    1j,
    "sum",
    torch.float64,
    {"x": torch.ones(2)},
    torch.Size([2, 3]),
]


def test_what_is_no_floating_tensor_is_untouched():
    for value in OTHERS:
        for rule in ALL:
            (_, x), kwargs = _call(rule, _ones(FLOAT), value, more=value)
            assert x is value
            assert kwargs["more"] is value


def test_what_has_the_right_type_is_returned_as_is():
    for rule, to, _other in CASTING:
        right, many = _ones(to), [_ones(to), (_ones(to),)]
        args, kwargs = _call(rule, right, many, keyword=right, more=many)
        assert args[0] is right
        assert args[1] is many
        assert kwargs["keyword"] is right
        assert kwargs["more"] is many


@pytest.mark.parametrize("dtype", [DOUBLE, BFLOAT], ids=str)
def test_double_and_bfloat_go_down_too(dtype):
    for rule, to, _other in CASTING:
        (x, (y,)), kwargs = _call(rule, _ones(dtype), [_ones(dtype)], more=_ones(dtype))
        assert [x.dtype, y.dtype, kwargs["more"].dtype] == [to] * 3


def test_tensor_without_dimensions_is_cast():
    for rule, to, other in CASTING:
        (x,), _ = _call(rule, torch.tensor(1.5, dtype=other))
        assert x.dtype is to
        assert x.shape == ()


def test_tensor_without_elements_is_cast():
    for rule, to, other in CASTING:
        (x,), _ = _call(rule, torch.empty(0, 3, dtype=other))
        assert x.dtype is to
        assert x.shape == (0, 3)


def test_arguments_of_the_caller_are_never_changed():
    for rule in ALL:
        half, single = _ones(HALF), _ones(FLOAT)
        sequence = [_ones(FLOAT), _ones(FLOAT)] if rule == "banned" else [half, single]
        options = {"more": [single, single], "weight": single, "out": single}
        copies = list(sequence), {k: list(v) if isinstance(v, list) else v for k, v in options.items()}
        _call(rule, single, sequence, **options)
        assert [id(x) for x in sequence] == [id(x) for x in copies[0]]
        assert [id(x) for x in options["more"]] == [id(x) for x in copies[1]["more"]]
        assert options["weight"] is single
        assert (half.dtype, single.dtype) == (HALF, FLOAT)


def test_out_is_where_the_result_goes_and_is_left_alone():
    for rule in ALL:
        for dtype in (FLOAT, DOUBLE, BFLOAT):
            out = _ones(dtype)
            _, kwargs = _call(rule, _ones(FLOAT), _ones(FLOAT), out=out)
            assert kwargs["out"] is out


def test_result_lands_in_out():
    out = torch.zeros(2, 2, dtype=HALF)
    with casts(device_type="cpu"):
        assert torch.mm(torch.eye(2), torch.ones(2, 2), out=out) is out
        wide = torch.zeros(2)
        assert torch.exp(torch.zeros(2, dtype=HALF), out=wide) is wide
        assert torch.add(torch.ones(2, dtype=HALF), torch.ones(2), out=wide) is wide
    assert torch.equal(out, torch.ones(2, 2, dtype=HALF))
    assert torch.equal(wide, torch.full((2,), 2.0))


def test_tensors_of_another_device_are_untouched():
    for rule in ALL:
        half, single = _ones(HALF), _ones(FLOAT)
        sequence = [half, single]
        args, kwargs = _call(rule, half, single, sequence, device_type="cuda", other=_ones(DOUBLE))
        assert args[0] is half
        assert args[1] is single
        assert args[2] is sequence
        assert kwargs["other"].dtype is DOUBLE


def test_each_tensor_of_a_list_is_judged_by_its_own_device():
    elsewhere = torch.ones(2, device="meta")
    (x,), _ = _call("half", [_ones(FLOAT), elsewhere])
    assert x[0].dtype is HALF
    assert x[1] is elsewhere


def test_rule_does_nothing_outside_a_context():
    for rule in RULES:
        half, single = _ones(HALF), _ones(FLOAT)
        given = [half, single]
        seen: list = []
        wrapped = RULES[rule](lambda *args, to=seen, **kwargs: to.extend([*args, *kwargs.values()]))
        wrapped(half, single, given, other=half)
        assert seen[0] is half
        assert seen[1] is single
        assert seen[2] is given
        assert seen[3] is half


def test_gradient_flows_back_through_a_cast():
    weight = torch.ones(2, requires_grad=True)  # no Parameter: cast, not cached
    (x,), _ = _call("half", weight)
    (x * 3).sum().backward()
    assert weight.grad.dtype is FLOAT
    assert torch.equal(weight.grad, torch.full((2,), 3.0))


# Promotion


@pytest.mark.parametrize("rule", ["promote", "sequence"])
def test_half_and_float_go_to_float(rule):
    if rule == "sequence":
        (x,), _ = _call(rule, (_ones(HALF), _ones(FLOAT)))
    else:
        x, _ = _call(rule, _ones(HALF), _ones(FLOAT))
    assert [t.dtype for t in x] == [FLOAT, FLOAT]


def test_promotion_looks_at_types_not_at_dimensions():
    x, _ = _call("promote", _ones(HALF), torch.tensor(2.0))
    assert [t.dtype for t in x] == [FLOAT, FLOAT]


def test_promotion_looks_at_keywords_and_into_lists():
    (x,), kwargs = _call("promote", _ones(HALF), other=_ones(FLOAT))
    assert [x.dtype, kwargs["other"].dtype] == [FLOAT, FLOAT]
    (x, pair), _ = _call("promote", _ones(HALF), [_ones(HALF), _ones(FLOAT)])
    assert [x.dtype, *(t.dtype for t in pair)] == [FLOAT] * 3


@pytest.mark.parametrize("dtype", [HALF, FLOAT, DOUBLE, BFLOAT], ids=str)
def test_promotion_leaves_one_type_alone(dtype):
    a, b = _ones(dtype), _ones(dtype)
    x, _ = _call("promote", a, b, 2, torch.ones(2, dtype=torch.int64))
    assert x[0] is a
    assert x[1] is b


@pytest.mark.parametrize(
    "mix",
    [(HALF, DOUBLE), (FLOAT, DOUBLE), (HALF, BFLOAT), (BFLOAT, FLOAT), (HALF, FLOAT, DOUBLE)],
    ids=lambda mix: "-".join(str(t).removeprefix("torch.") for t in mix),
)
def test_any_other_mix_raises_and_names_the_types(mix):
    with pytest.raises(NotImplementedError) as error:
        _call("promote", *(_ones(t) for t in mix))
    assert all(str(t).removeprefix("torch.") in str(error.value) for t in mix)


def test_out_does_not_count_as_an_argument_to_promote():
    a = _ones(HALF)
    x, kwargs = _call("promote", a, a, out=_ones(FLOAT))
    assert x[0] is a
    assert kwargs["out"].dtype is FLOAT


def test_mix_on_another_device_is_none_of_ours():
    x, _ = _call("promote", _ones(HALF), _ones(DOUBLE), torch.ones(2, dtype=torch.int64), device_type="cuda")
    assert [t.dtype for t in x[:2]] == [HALF, DOUBLE]


def test_an_integer_tensor_does_not_make_a_foreign_mix_ours():
    elsewhere = [torch.ones(2, dtype=t, device="meta") for t in (HALF, DOUBLE)]
    x, _ = _call("promote", *elsewhere, torch.ones(2, dtype=torch.int64))
    assert [t.dtype for t in x[:2]] == [HALF, DOUBLE]


def test_sequence_of_one_type_is_handed_on_as_it_is():
    given = [_ones(HALF), _ones(HALF)]
    (x,), _ = _call("sequence", given)
    assert x is given


@pytest.mark.parametrize("mix", [(HALF, DOUBLE), (FLOAT, DOUBLE), (BFLOAT, FLOAT)], ids=repr)
def test_other_mixes_in_a_sequence_are_pytorchs_to_judge(mix):
    given = [_ones(t) for t in mix]
    (x,), _ = _call("sequence", given)
    assert x is given


def test_half_in_a_sequence_with_integers_stays_for_pytorch():
    given = [_ones(HALF), torch.ones(2, dtype=torch.int64)]
    (x,), _ = _call("sequence", given)
    assert x is given


# In place


def test_target_may_come_as_the_keyword_input():
    """PyTorch takes torch.exp_(input=x); so it must while the wrappers are there, casts in force or not."""
    x = torch.zeros(2)
    with casts(device_type="cpu"):
        assert torch.exp_(input=x) is x
        with pytest.raises(NotImplementedError):
            torch.exp_(input=torch.zeros(2, dtype=HALF))
        y = torch.zeros(2, dtype=HALF)
        torch.addmv_(input=y, mat=torch.eye(2), vec=torch.ones(2))
    assert torch.equal(x, torch.ones(2))
    assert torch.equal(y, torch.ones(2, dtype=HALF))


def test_target_that_is_no_floating_tensor_leaves_all_alone():
    for target in (torch.ones(2, dtype=torch.int64), 3, None):
        half = _ones(HALF)
        (_, x), _ = _call("match", target, half)
        assert x is half


def test_weight_given_to_an_in_place_half_function_is_cast():
    weight = nn.Parameter(torch.eye(2))
    target = torch.zeros(2, 2, dtype=HALF)
    with casts(device_type="cpu"):
        target = target.addmm_(torch.ones(2, 2, dtype=HALF), weight)
    target.float().sum().backward()
    assert weight.grad.dtype is FLOAT


# Banned


def _probabilities(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return torch.full((3,), 0.25, dtype=dtype), torch.ones(3, dtype=dtype)


@pytest.mark.parametrize("half_first", [True, False])
def test_banned_function_refuses_half_and_names_the_way_out(half_first):
    arguments = [_probabilities(HALF)[0], _probabilities(FLOAT)[1]]
    if not half_first:
        arguments = [_probabilities(FLOAT)[0], _probabilities(HALF)[1]]
    with casts(device_type="cpu"):
        with pytest.raises(NotImplementedError, match="binary_cross_entropy_with_logits"):
            F.binary_cross_entropy(*arguments)
        with pytest.raises(NotImplementedError, match="allow_banned"):
            F.binary_cross_entropy(input=arguments[0], target=arguments[1])
        with pytest.raises(NotImplementedError):
            nn.BCELoss()(*arguments)


def test_banned_function_refuses_half_in_a_list():
    with pytest.raises(NotImplementedError):
        _call("banned", [_ones(FLOAT), _ones(HALF)])


@pytest.mark.parametrize("dtype", [FLOAT, DOUBLE], ids=str)
def test_banned_function_runs_as_it_is_without_half(dtype):
    with casts(device_type="cpu"):
        assert F.binary_cross_entropy(*_probabilities(dtype)).dtype is dtype


@pytest.mark.parametrize("dtype", [HALF, FLOAT, DOUBLE], ids=str)
def test_banned_function_runs_in_float_where_it_is_allowed(dtype):
    with casts(device_type="cpu", allow_banned=True):
        result = F.binary_cross_entropy(*_probabilities(dtype))
    assert result.dtype is FLOAT
    assert result.item() == pytest.approx(-torch.tensor(0.25).log().item())


def test_wrapper_looks_like_the_function():
    original = F.softmax
    with casts(device_type="cpu"):
        assert F.softmax is not original
        assert F.softmax.__name__ == "softmax"
        assert F.softmax.__doc__ == original.__doc__
        assert F.softmax.__wrapped__ is original
