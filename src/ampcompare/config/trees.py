"""Free trees of options (`model.kwargs`, `data.kwargs`): the names are somebody else's, the values as YAML
types them. Free of torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ampcompare.errors import UserError, reason
from ampcompare.program.yaml_file import read_text

NULL_WORDS = ("", "~", "null", "Null", "NULL", "None")  # YAML's, and what W&B's agent writes
MOST_SAID = 100  # characters of a value in a message


def read_word(key: str, text: str) -> Any:
    """A word of a command line as YAML types it, or as W&B's agent writes Python's values.

    `64` is a number, `"64"` a text, `[1, 2]` a list, `{'a': None}` a tree. Raises UserError.
    """
    if text.strip() in NULL_WORDS:
        return None
    try:
        value = read_text(text)
    except ValueError as problem:
        todo = f"write it as YAML does, a text in quotes: {key}='\"...\"'"
        raise UserError(f"{key}={text[:MOST_SAID]!r}: not YAML ({reason(problem)}); {todo}") from None
    return text if value is None else value  # `#ff0000` is a comment


def written(value: Any) -> str:
    """The value as a word that reads as the same value: a text that reads as something else is quoted."""
    if isinstance(value, str):
        try:
            is_plain = read_word("", value) == value
        except UserError:
            is_plain = False
        return value if is_plain else json.dumps(value, ensure_ascii=False)
    return "null" if value is None else str(value)


def flat(key: str, tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of a tree, an empty one inside it as a value, nothing of an empty one."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flat(f"{key}.{name}", value)
        else:
            yield f"{key}.{name}", value
