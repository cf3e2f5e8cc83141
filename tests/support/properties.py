"""What is tried in both parts of the tests: a little of it in `make test`, all else in `make test-rest`."""

from __future__ import annotations

from collections.abc import Iterable

import pytest


def examples(few: int, many: int) -> pytest.MarkDecorator:
    """The test's argument `examples`: how many to try, in each of the two parts."""
    return pytest.mark.parametrize("examples", [few, pytest.param(many, marks=pytest.mark.slow)])


def backends(names: Iterable[str], few: tuple[str, ...] = ("native",)) -> pytest.MarkDecorator:
    """The test's argument `backend`: each of the names, all but a few of them in the rest."""
    rest = pytest.mark.slow
    return pytest.mark.parametrize(
        "backend", [name if name in few else pytest.param(name, marks=rest) for name in names]
    )
