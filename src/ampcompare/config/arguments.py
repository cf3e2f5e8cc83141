"""The command line of the entrypoint: every form in which people and W&B's sweep macros write options."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ampcompare.config.load import load_config
from ampcompare.config.schema import Config, find_option
from ampcompare.config.trees import written
from ampcompare.errors import UserError, reason

DEFAULT_CONFIG = "reference"
RESUME_VARIABLE = "AMPCOMPARE_RESUME"  # by which a sweep tells a run, of any program, that it is tried again


def parse(words: Sequence[str]) -> Config:
    """The config that the words ask for; the later word wins. Raises UserError.

    `key=value`, `--key=value`, `--flag` for true, a JSON object or the name of a `.json` file with one,
    Hydra's `+key=value`, and `--config NAME`.
    """
    name: str | None = None
    overrides: list[str] = []
    rest = iter(words)
    for word in rest:
        key, equals, value = word.partition("=")
        if key == "--config":
            name = value if equals else next(rest, "")
            if not name:
                raise UserError("--config: expected a name or a path after it, such as --config demo")
        elif word.startswith("{"):
            overrides += _words(word, word)
        elif equals:
            overrides.append(word.lstrip("+"))
        elif word.startswith("--") and (option := find_option(word[2:])):
            if option[0].base is not bool:
                raise UserError(f"{word}: expected {word}=VALUE, {option[0].allowed}")
            overrides.append(f"{word}=true")
        elif word.endswith(".json"):
            overrides += _words(_content(word), word)
        else:
            overrides.append(word)  # load_config says what is wrong with it
    return load_config(name, overrides, default=DEFAULT_CONFIG)


def _content(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as problem:
        raise UserError(f"{file}: cannot be read ({reason(problem)})") from None


def _words(text: str, origin: str) -> list[str]:
    """A JSON object of options as `key=value` words, written as W&B's macros write them."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as problem:
        expected = 'expected such as {"backend": "native"}'
        raise UserError(f"{origin}: not valid JSON ({reason(problem)}); {expected}") from None
    if not isinstance(content, dict):
        raise UserError(f"{origin}: expected a JSON object of options, found a {type(content).__name__}")
    return [f"{key}={_word(key, value)}" for key, value in content.items()]


def _word(key: str, value: Any) -> Any:
    """A value of JSON as a word: a text of a free tree in quotes, as it would be typed again."""
    found = find_option(key)
    return written(value) if found and found[0].is_tree else value
