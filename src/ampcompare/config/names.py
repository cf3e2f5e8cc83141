"""A list of names as people, files and W&B's agent write it: `layer4.2,*.bn3,fc`, and no YAML, to which a
star is an alias.
"""

from __future__ import annotations

import ast
from contextlib import suppress
from typing import Any


def listed(value: Any) -> list[str] | None:
    """The names in a text with commas between them, or in a list; each once, None of none at all.

    A text may also be a list as Python or JSON write it, or have brackets around it. A whole number is a name
    (of `nn.Sequential`). Raises ValueError for what holds anything else: 1.10 is the number 1.1 by then.

    >>> listed("layer4.2, *.bn3,fc"), listed(["*.bn3", 0]), listed("['a', 'b']"), listed("[a,b]")
    (['layer4.2', '*.bn3', 'fc'], ['*.bn3', '0'], ['a', 'b'], ['a', 'b'])
    """
    found: list[str] = []
    for part in _parts(value):
        if isinstance(part, bool) or not isinstance(part, str | int):
            raise ValueError(f"{part!r} is no name")
        found += [name for piece in str(part).split(",") if (name := piece.strip().strip("'\""))]
    return list(dict.fromkeys(found)) or None


def _parts(value: Any) -> list[Any]:
    if value is None or isinstance(value, list | tuple):
        return list(value or ())
    text = value.strip() if isinstance(value, str) else value
    if isinstance(text, str) and _is_wrapped(text):
        if "'" in text or '"' in text:  # else `00` and `1e5` are names, and no numbers
            with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
                return list(ast.literal_eval(text))
        return [text[1:-1]]
    return [text]


def _is_wrapped(text: str) -> bool:
    """Whether brackets are around all of it: `[a,b]`, not `[ab]*,[cd]`."""
    if len(text) < 2 or text[0] != "[" or text[-1] != "]":
        return False
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if depth == 0:
            return place == len(text) - 1
    return False
