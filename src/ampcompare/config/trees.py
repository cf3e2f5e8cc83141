"""Free trees of options (`model.kwargs`, `data.kwargs`): the names are somebody else's, the values as YAML
types them. Free of torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from ampcompare.errors import UserError, reason
from ampcompare.program.yaml_file import read_text

Tree = dict[str, Any]
DEEPEST, LONGEST_NAME = 20, 100
MOST_BITS = 63  # of a whole number: what a JSON reader anywhere takes
NULL_WORDS = ("", "~", "null", "Null", "NULL", "None")  # YAML's, and what W&B's agent writes
WHAT = "numbers, texts, true, false, null, lists and trees of these"


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
        raise UserError(f"{key}={_short(text)}: not YAML ({reason(problem)}); {todo}") from None
    return text if value is None else value  # `#ff0000` is a comment


def written(value: Any) -> str:
    """The value as a word that reads as the same value: a text that reads as something else is quoted."""
    if isinstance(value, str):
        try:
            is_plain = len(value) <= LONGEST_NAME and read_word("", value) == value
        except UserError:
            is_plain = False
        return value if is_plain else json.dumps(value, ensure_ascii=False)
    return "null" if value is None else str(value)


def grow(tree: Tree, key: str, path: str, value: Any) -> None:
    """Put a value into the tree of the option `key`, at a dotted path in it ("" for the whole).

    A mapping adds to what is there, anything else takes its place; null for the whole empties it. Raises
    UserError for what no tree may hold.
    """
    if not path and value is None:
        tree.clear()
        return
    if not path and not isinstance(value, Mapping):
        such = f"such as {key}.width=64 or {key}='{{width: 64}}'"
        raise UserError(f"{key}={_short(value)}: expected names with values, {such}")
    _merge(tree, _plain(key, {path: value} if path else value, 0))


def flat(key: str, tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of a tree, an empty one inside it as a value, nothing of an empty one."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flat(f"{key}.{name}", value)
        else:
            yield f"{key}.{name}", value


def _merge(tree: Tree, more: Tree) -> None:
    for name, value in more.items():
        if isinstance(value, dict) and isinstance(inner := tree.get(name), dict):
            _merge(inner, value)
        else:
            tree[name] = value


def _plain(at: str, value: Any, depth: int) -> Any:
    """The value, of plain types alone, names with dots as trees. Raises UserError."""
    if depth > DEEPEST:
        raise UserError(f"{_short(at, '')}: nested deeper than {DEEPEST} levels")
    if isinstance(value, Mapping):
        found: Tree = {}
        for name, inner in value.items():
            first, dot, rest = name.partition(".") if isinstance(name, str) else ("", "", "")
            if not (
                first.isprintable() and 0 < len(first) <= LONGEST_NAME and (depth or _is_argument(first))
            ):
                such = "expected names such as width, with dots between them"
                raise UserError(
                    f"{_short(at, '')}.{_short(name, '')}: {_short(first or name)} is no name; {such}"
                )
            _merge(found, {first: _plain(f"{at}.{first}", {rest: inner} if dot else inner, depth + 1)})
        return found
    if isinstance(value, list | tuple):
        return [_plain(at, part, depth + 1) for part in value]
    is_plain = value is None or isinstance(value, bool)
    is_plain |= isinstance(value, str) and all(c != "\0" and not "\ud800" <= c <= "\udfff" for c in value)
    is_plain |= isinstance(value, int) and value.bit_length() <= MOST_BITS
    is_plain |= isinstance(value, float) and math.isfinite(value)
    if not is_plain:
        raise UserError(f"{at}={_short(value)}: expected {WHAT}, finite and of at most {MOST_BITS} bits")
    return value


def _is_argument(name: str) -> bool:
    return name.isidentifier() and not name.startswith("__")


def _short(value: Any, quote: str = "'") -> str:
    try:
        text = repr(value) if quote else str(value)
    except ValueError:  # a whole number of 5,000 digits
        return f"a {type(value).__name__}"
    return text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 3]}..."
