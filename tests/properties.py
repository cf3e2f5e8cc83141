"""Properties with many examples: a few in `make test`, all of them in `make test-rest`."""

from __future__ import annotations

import pytest


def examples(few: int, many: int) -> pytest.MarkDecorator:
    """The test's argument `examples`: how many to try, in each of the two parts."""
    return pytest.mark.parametrize("examples", [few, pytest.param(many, marks=pytest.mark.rest)])
