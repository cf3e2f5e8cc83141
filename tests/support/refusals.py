"""The one line that a user's mistake gets."""

from collections.abc import Callable
from typing import Any

import pytest

from ampcompare.errors import UserError


def line_of(use: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """Return the error of a wrong use, which is one printable line."""
    with pytest.raises(UserError) as caught:
        use(*args, **kwargs)
    (line,) = caught.value.lines
    assert line.isprintable()
    return line
