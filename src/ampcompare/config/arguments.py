"""The command line of the entrypoint: every form in which people and W&B's sweep macros write options."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ampcompare.config.load import configured, split_override
from ampcompare.config.schema import Config, find_option
from ampcompare.errors import UserError, reason

DEFAULT_CONFIG = "reference"
RESUME_VARIABLE = "AMPCOMPARE_RESUME"  # by which a sweep tells a run, of any program, that it is tried again


def parse(words: Sequence[str]) -> Config:
    """The config that the words ask for; the later word wins. Raises UserError.

    `key=value`, `--key=value`, `--flag` for true, a JSON object or the name of a `.json` file with one,
    Hydra's `+key=value`, and `--config NAME`.
    """
    name: str | None = None
    given: list[tuple[str, Any]] = []
    rest = iter(words)
    for word in rest:
        key, equals, value = word.partition("=")
        option = find_option(word[2:]) if word.startswith("--") and not equals else None
        if key == "--config":
            name = value if equals else next(rest, "")
            if not name:
                raise UserError("--config: expected a name or a path after it, such as --config demo")
        elif word.startswith("{") or (word.endswith(".json") and not equals):
            given += _of_json(word)
        elif option and option[0].base is bool:
            given.append((word[2:], True))
        elif option:
            raise UserError(f"{word}: expected {word}=VALUE, {option[0].allowed}")
        else:
            given.append(split_override(word.lstrip("+")))
    try:
        return configured(name, given, DEFAULT_CONFIG)
    except RecursionError:  # JSON of a thousand levels
        raise UserError("the options are nested too deeply; write fewer brackets") from None


def _of_json(word: str) -> list[tuple[str, Any]]:
    """The options in a JSON object, or in the file of that name."""
    try:
        text = word if word.startswith("{") else Path(word).read_text(encoding="utf-8")
    except (OSError, ValueError) as problem:
        raise UserError(f"{word}: cannot be read ({reason(problem)})") from None
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as problem:
        expected = 'expected such as {"backend": "native"}'
        raise UserError(f"{word}: not valid JSON ({reason(problem)}); {expected}") from None
    if not isinstance(content, dict):
        raise UserError(f"{word}: expected a JSON object of options, found a {type(content).__name__}")
    return [*content.items()]
