"""Of what is tried widely: a little in `make test`, all of it in `make test-all`."""

from collections.abc import Iterable

import pytest


def examples(few: int, many: int) -> pytest.MarkDecorator:
    """Parametrize the argument `examples`: how many to try, without and with the slow tests."""
    return pytest.mark.parametrize("examples", [few, pytest.param(many, marks=pytest.mark.slow)])


# What casts in a way of its own; the other backends are in the tests of their contract.
MECHANISMS = ("none", "native", "apex_o1", "apex_o2", "fp16")


def backends(names: Iterable[str], few: tuple[str, ...] = ("native",)) -> pytest.MarkDecorator:
    """Parametrize the argument `backend` with those of MECHANISMS among the names; most are slow tests."""
    return pytest.mark.parametrize(
        "backend",
        [
            name if name in few else pytest.param(name, marks=pytest.mark.slow)
            for name in names
            if name in MECHANISMS
        ],
    )
