"""The words of a command line as keys and values, in each of the forms in which W&B's agent writes parameters.

`key=value`, `--key=value` (and Hydra's `+key=value`, `++key=value`), `--key value`, `--flag` for true, and one JSON
object with all of them: the macros `${args_no_hyphens}`, `${args}`, `${args_no_equals}`, `${args_no_boolean_flags}`,
`${args_json}` of a sweep's command.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ampcompare.errors import UserError
from ampcompare.options import FALSE_WORDS, TRUE_WORDS, Leaf


def read_words(words: Iterable[str], options: Mapping[str, Leaf]) -> Iterator[tuple[str, Any]]:
    """Keys and values in the order of the words; values are texts, or what a JSON object held. Raises UserError."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.lstrip().startswith("{"):
            yield from _read_json(word)
        elif word.startswith("--") and "=" not in word:
            key = word.removeprefix("--")
            is_flag = key in options and options[key].base is bool
            if rest and (not is_flag or rest[0].lower() in (*TRUE_WORDS, *FALSE_WORDS)):
                yield key, rest.pop(0)
            elif is_flag:
                yield key, True
            else:
                yield split_override(word)
        else:
            yield split_override(word)


def split_override(word: str) -> tuple[str, str]:
    """`key=value`, with or without `--`, `+` or `++` before it, as key and text. Raises UserError."""
    key, equals, value = word.removeprefix("--").lstrip("+").partition("=")
    if not equals or not key.strip():
        raise UserError(f"{word!r}: expected key=value, such as backend=native or optimizer.lr=0.05")
    return key.strip(), value


def _read_json(word: str) -> Iterator[tuple[str, Any]]:
    try:
        tree = json.loads(word)
    except (ValueError, RecursionError) as problem:
        raise UserError(f"{word!r}: not valid JSON: {problem}; expected an object of keys and values") from None
    yield from tree.items()
