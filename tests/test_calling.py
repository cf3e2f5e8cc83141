"""Other people's functions, called with the user's arguments: what they take, and the line for what they do
not."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from ampcompare.calling import call
from ampcompare.errors import UserError

HAS_NONE = "it has no such argument; it takes"


def plain(num_classes: int, width: int = 8) -> dict[str, int]:
    return {"num_classes": num_classes, "width": width}


def without_classes(width: int) -> dict[str, int]:
    return {"width": width}


def passes_on(num_classes: int, **kwargs: Any) -> dict[str, int]:
    return plain(num_classes, **kwargs)


def open_to_all(**kwargs: Any) -> dict[str, Any]:
    return kwargs


@functools.wraps(plain)
def wrapped(*args: Any, **kwargs: Any) -> Any:
    return plain(*args, **kwargs)


def use(function: Any, **given: Any) -> Any:
    return call(function, given, key="model.kwargs", name="it", ours={"num_classes": 10})


def test_a_function_gets_the_users_arguments_and_ours_where_it_takes_them(subtests: pytest.Subtests):
    for function, given, made in [
        (plain, {}, {"num_classes": 10, "width": 8}),
        (plain, {"num_classes": 3, "width": 4}, {"num_classes": 3, "width": 4}),  # the user's own
        (without_classes, {"width": 4}, {"width": 4}),
        (passes_on, {"width": 2}, {"num_classes": 10, "width": 2}),
        (open_to_all, {"width": 2}, {"num_classes": 10, "width": 2}),
        (functools.partial(plain, 3), {"width": 2}, {"num_classes": 3, "width": 2}),
        (dict, {"a": 1}, {"num_classes": 10, "a": 1}),  # has no signature
    ]:
        with subtests.test(function=function, given=given, made=made):
            assert use(function, **given) == made


def test_an_argument_that_it_does_not_take_is_one_line_that_names_those_it_does(subtests: pytest.Subtests):
    for function, given, line in [
        (
            plain,
            {"widht": 4},
            "widht: it has no such argument; it takes num_classes, width; did you mean width?",
        ),
        (wrapped, {"x": 4}, f"x: {HAS_NONE} num_classes, width"),
        (without_classes, {"num_classes": 4}, f"num_classes: {HAS_NONE} width"),
        (without_classes, {}, "width: missing, it cannot be called without it; set model.kwargs.width=..."),
    ]:
        with subtests.test(function=function, given=given, line=line):
            with pytest.raises(UserError) as caught:
                use(function, **given)
            assert caught.value.lines == [f"model.kwargs.{line}"]


def test_what_a_function_that_passes_its_arguments_on_raises_is_its_own():
    with pytest.raises(TypeError, match="unexpected keyword argument 'widht'"):
        use(passes_on, widht=4)
