"""Other people's functions, called with the user's arguments: what they take, and the line for what they do
not."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from ampcompare.calling import call
from ampcompare.errors import UserError


class Net:
    def __init__(self, width: int = 3, *, depth: int = 1, act: str = "relu") -> None:
        self.given = {"width": width, "depth": depth, "act": act}


class Deaf:
    def __init__(self, width: int = 3, **anything: Any) -> None:
        self.given = {"width": width}


def plain(num_classes: int, width: int = 8) -> dict[str, int]:
    return {"num_classes": num_classes, "width": width}


def without_classes(width: int = 8) -> dict[str, int]:
    return {"width": width}


def needs(width: int) -> int:
    return width


def passes_on(num_classes: int, **kwargs: Any) -> dict[str, Any]:
    return Net(**kwargs).given


def takes_out(num_classes: int, **kwargs: Any) -> dict[str, Any]:
    size = kwargs.pop("image_size", 224)
    return {**Net(**kwargs).given, "size": size}


def sets(num_classes: int, **kwargs: Any) -> dict[str, Any]:
    return Net(width=5, **kwargs).given


def is_deaf(num_classes: int, **kwargs: Any) -> dict[str, Any]:
    return Deaf(**kwargs).given


def deaf_and_not(num_classes: int, **kwargs: Any) -> dict[str, Any]:
    Deaf(**kwargs)
    return Net(**kwargs).given


def deaf_itself(num_classes: int, width: int = 1, **kwargs: Any) -> int:
    return width


def reads(num_classes: int, **kwargs: Any) -> Any:
    return sum(value for key, value in kwargs.items())


def gets(num_classes: int, **kwargs: Any) -> Any:
    return kwargs.get("width", 8), kwargs["depth"] if "depth" in kwargs else kwargs.pop("act", None)


def reads_after(num_classes: int, **kwargs: Any) -> Any:
    return kwargs.get("width", 8), len(kwargs)


def gets_and_passes_on(num_classes: int, **kwargs: Any) -> Any:
    return gets(num_classes, **kwargs), takes_out(num_classes, **kwargs)


def merges(num_classes: int, **kwargs: Any) -> dict[str, Any]:
    return Net(**{"depth": 7, **kwargs}).given


@functools.wraps(passes_on)
def wrapped(*args: Any, **kwargs: Any) -> Any:
    return passes_on(*args, **kwargs)


class Odd:
    __signature__ = "no signature"

    def __call__(self, **kwargs: Any) -> dict[str, Any]:
        return kwargs


def use(function: Any, **given: Any) -> Any:
    return call(function, given, key="model.kwargs", name="it", ours={"num_classes": 10})


def test_a_function_gets_the_users_arguments_and_ours_where_it_takes_them(subtests: pytest.Subtests):
    for function, given, made in [
        (plain, {}, {"num_classes": 10, "width": 8}),
        (plain, {"num_classes": 3, "width": 4}, {"num_classes": 3, "width": 4}),  # the user's own
        (without_classes, {"width": 4}, {"width": 4}),
        (passes_on, {"depth": 2}, {"width": 3, "depth": 2, "act": "relu"}),
        (wrapped, {"depth": 2}, {"width": 3, "depth": 2, "act": "relu"}),
        (takes_out, {"image_size": 32}, {"width": 3, "depth": 1, "act": "relu", "size": 32}),
        (merges, {"act": "gelu"}, {"width": 3, "depth": 7, "act": "gelu"}),
        (deaf_and_not, {"depth": 2}, {"width": 3, "depth": 2, "act": "relu"}),
        (is_deaf, {"width": 2}, {"width": 2}),
        (reads, {"a": 1, "b": 2}, 3),
        (functools.partial(plain, width=2), {}, {"num_classes": 10, "width": 2}),
        (functools.partial(plain, 3), {"width": 2}, {"num_classes": 3, "width": 2}),
        (Odd(), {"a": 1}, {"num_classes": 10, "a": 1}),  # called as it is
    ]:
        with subtests.test(function=function, given=given, made=made):
            assert use(function, **given) == made


def test_an_argument_that_it_does_not_take_is_one_line_that_names_those_it_does(subtests: pytest.Subtests):
    for function, given, line in [
        (
            plain,
            {"widht": 4},
            "model.kwargs.widht: it has no such argument; it takes num_classes, width; did you mean width?",
        ),
        (without_classes, {"num_classes": 4}, "it has no such argument; it takes width"),
        (
            needs,
            {},
            "model.kwargs.width: missing, it cannot be called without it; set model.kwargs.width=",
        ),
        (passes_on, {"dept": 2}, "it takes num_classes, width, depth, act; did you mean depth?"),
        (wrapped, {"dept": 2}, "it takes num_classes, width, depth, act; did you mean depth?"),
        (
            takes_out,
            {"image": 2},
            "it takes num_classes, image_size, width, depth, act; did you mean",
        ),
        (sets, {"width": 4}, "model.kwargs.width: it sets it itself; leave it out"),
        (is_deaf, {"widht": 4}, "it takes num_classes, width; did you mean width?"),
        (deaf_and_not, {"widht": 4}, "it takes num_classes, width, depth, act; did you mean width?"),
        (deaf_itself, {"widht": 4}, "it takes num_classes, width; did you mean width?"),
        (functools.partial(plain, width=2), {"width": 3}, "it has no such argument; it takes num_classes"),
        (gets, {"widht": 4}, "it takes num_classes, width, depth, act; did you mean width?"),
        (deaf_itself, {"x": 4}, "model.kwargs.x: it has no such argument; it takes num_classes, width"),
    ]:
        with subtests.test(function=function, given=given, line=line):
            with pytest.raises(UserError) as caught:
                use(function, **given)
            (said,) = caught.value.lines
            assert line in said


def test_what_takes_single_names_out_of_its_arguments_is_given_them():
    assert use(gets, width=3, act="relu") == (3, "relu")
    assert use(gets, depth=3) == (8, 3)
    assert use(reads_after, anything=3) == (8, 1)
    assert use(gets_and_passes_on, depth=3, image_size=5)[1]["size"] == 5
