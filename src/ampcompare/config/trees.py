"""Free trees of options (`model.kwargs`, `data.kwargs`): the names are somebody else's, the values as YAML
types them. Free of torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from ampcompare.errors import UserError, reason
from ampcompare.program.yaml_file import Exponent, read_text

Tree = dict[str, Any]
DEEPEST, MOST_VALUES, LONGEST_NAME = 20, 1_000, 100
MOST_BITS = 63  # of a whole number: what a JSON reader anywhere takes
NULL_WORDS = ("", "~", "null", "Null", "NULL", "None")  # YAML's, and what W&B's agent writes
WHAT = "numbers, texts, true, false, null, lists and trees of these"


def read_word(key: str, text: str) -> Any:
    """A word of a command line as YAML types it, or as W&B's agent writes Python's values.

    `64` is a number, `"64"` a text, `[1, 2]` a list, `{'a': None}` a tree. Raises UserError.
    """
    try:
        value = None if text in NULL_WORDS else read_text(text)
    except ValueError as problem:
        todo = f"write it as YAML does, a text in quotes: {key}='\"...\"'"
        raise UserError(f"{key}={_short(text)}: not YAML ({reason(problem)}); {todo}") from None
    if value is None and text.strip() not in NULL_WORDS:  # `#ff0000` would be nothing
        return text
    return _plain(key, value, DEEPEST)


def written(value: Any) -> str:
    """The value as a word that reads as the same value: a text that reads as something else is quoted."""
    if isinstance(value, str):
        try:
            is_plain = len(value) <= LONGEST_NAME and read_word("", value) == value  # a record may hold any
        except UserError:
            is_plain = False
        return value if is_plain else json.dumps(value, ensure_ascii=False)
    return "null" if value is None else str(value)


def grow(tree: Tree, key: str, path: str, value: Any) -> list[str]:
    """Put a value into the tree of the option `key`, at a dotted path in it ("" for the whole).

    A mapping adds to what is there, anything else takes its place; null for the whole empties it. Returns the
    keys that were set, from the top. Raises UserError for what no tree may hold.
    """
    names = path.split(".") if path else []
    at = f"{key}.{path}" if path else key
    if len(names) > DEEPEST:
        raise UserError(f"{_short(at)}: more than {DEEPEST} names deep")
    for place, name in enumerate(names):
        _check_name(at, name, first=place == 0)
    checked = _plain(at, value, DEEPEST - len(names), first=not names)
    if not names:
        if checked is None:
            tree.clear()
            return [key]
        if not isinstance(checked, dict):
            such = f"such as {key}.width=64 or {key}='{{width: 64}}'"
            raise UserError(f"{key}={_short(value)}: expected names with values, {such}")
    for name in reversed(names):
        checked = {name: checked}
    _merge(tree, checked)
    if sum(1 for _ in leaves(key, tree)) > MOST_VALUES:
        raise UserError(f"{key}: more than {MOST_VALUES:,} values")
    return [full for full, _ in flat(key, checked)]


def flat(key: str, tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of a tree, an empty one inside it as a value, nothing of an empty one."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flat(f"{key}.{name}", value)
        else:
            yield f"{key}.{name}", value


def leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """All single values in a tree with their keys, those in a list by the list's."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from leaves(f"{key}.{name}", part)
    elif isinstance(value, list):
        for part in value:
            yield from leaves(key, part)
    else:
        yield key, value


def _merge(tree: Tree, more: Tree) -> None:
    for name, value in more.items():
        if isinstance(value, dict) and isinstance(inner := tree.get(name), dict):
            _merge(inner, value)
        else:
            tree[name] = value


def _plain(at: str, value: Any, depth: int, *, first: bool = False) -> Any:
    """The value, of plain types alone, names with dots as trees. Raises UserError."""
    if depth < 0:
        raise UserError(f"{at}: nested deeper than {DEEPEST} levels")
    if isinstance(value, Exponent):
        return float(value)
    if isinstance(value, Mapping):
        found: Tree = {}
        for name, inner in value.items():
            parts = name.split(".") if isinstance(name, str) else [name]
            for place, part in enumerate(parts):
                _check_name(f"{at}.{name}", part, first=first and place == 0)
            made = _plain(f"{at}.{name}", inner, depth - len(parts))
            for part in reversed(parts):
                made = {part: made}
            _merge(found, made)
        return found
    if isinstance(value, list | tuple):
        return [_plain(at, part, depth - 1) for part in value]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str) and all(c != "\0" and not "\ud800" <= c <= "\udfff" for c in value):
        return value
    if isinstance(value, int) and value.bit_length() <= MOST_BITS:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise UserError(f"{at}={_short(value)}: expected {WHAT}, finite and of at most {MOST_BITS} bits")


def _check_name(at: str, name: Any, *, first: bool) -> None:
    """Raise UserError for what is no name; the first one in a tree is that of an argument."""
    problem = ""
    if not isinstance(name, str):
        problem = f"{_short(name)} is no text"
    elif not name or not name.isprintable() or len(name) > LONGEST_NAME:
        problem = f"{_short(name)} is no name"
    elif first and not (name.isidentifier() and not (name.startswith("__") and name.endswith("__"))):
        problem = f"{_short(name)} is no name of an argument"
    if problem:
        raise UserError(f"{_short(at, '')}: {problem}; expected names such as width, with dots between them")


def _short(value: Any, quote: str = "'") -> str:
    try:
        text = repr(value) if quote else str(value)
    except (ValueError, RecursionError):  # a whole number of 5,000 digits
        return f"a {type(value).__name__}"
    return text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 3]}..."
