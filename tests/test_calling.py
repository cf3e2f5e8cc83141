"""Other people's functions, called with the user's arguments, and the line for those not taken."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from ampcompare.calling import call
from ampcompare.errors import UserError


def plain(num_classes: int, width: int = 8) -> dict[str, int]:
    return {"num_classes": num_classes, "width": width}


def without_classes(width: int) -> dict[str, int]:
    return {"width": width}


def passes_on(num_classes: int, **kwargs: Any) -> dict[str, int]:
    return plain(num_classes, **kwargs)


def use(function: Any, **given: Any) -> Any:
    return call(function, given, key="model.kwargs", name="it", ours={"num_classes": 10})


def test_a_function_gets_the_users_arguments_and_ours_where_it_takes_them(subtests: pytest.Subtests):
    for function, given, made in [
        (plain, {}, {"num_classes": 10, "width": 8}),
        (plain, {"num_classes": 3, "width": 4}, {"num_classes": 3, "width": 4}),  # the user's own
        (without_classes, {"width": 4}, {"width": 4}),
        (passes_on, {"width": 2}, {"num_classes": 10, "width": 2}),
        (functools.partial(plain, 3), {"width": 2}, {"num_classes": 3, "width": 2}),
        (dict, {"a": 1}, {"num_classes": 10, "a": 1}),  # has no signature
    ]:
        with subtests.test(function=function, given=given, made=made):
            assert use(function, **given) == made


@pytest.mark.parametrize(
    ("function", "given", "said"),
    [
        (plain, {"widht": 4}, r"got an unexpected keyword argument 'widht'"),
        (without_classes, {}, r"missing a required argument: 'width'"),
    ],
)
def test_an_argument_that_it_does_not_take_or_lacks_is_one_line_with_its_signature(function, given, said):
    with pytest.raises(UserError, match=rf"^model.kwargs: it\(.*width: 'int'.*\) .*{said}$"):
        use(function, **given)


def test_what_a_function_that_passes_its_arguments_on_raises_is_its_own():
    with pytest.raises(TypeError, match="unexpected keyword argument 'widht'"):
        use(passes_on, widht=4)
