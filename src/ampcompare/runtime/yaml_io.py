"""YAML as plain values: of a file (a config, a sweep), or of one word of a command line.

OmegaConf reads it: 1e-5 is a number, a date is a text. Duplicate keys are refused, and so are aliases that
refer to themselves or expand to thousands of values.
"""

import copy
from ast import literal_eval
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from ampcompare.errors import UserError, reason

MAX_DEPTH = 50
NULL_WORDS = ("", "~", "null", "Null", "NULL", "None")  # YAML's, and what W&B's agent writes
MAX_SHOWN_CHARS = 100  # characters of a value in a message


def read_yaml(path: Path) -> Any:
    """Return the content of the file, None if it is empty.

    Raises:
        UserError: The file cannot be read as YAML, with file and line.
    """
    import yaml

    try:
        return _plain(path.read_text(encoding="utf-8"))
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        where = f"{path}, line {mark.line + 1}" if mark else str(path)
        raise UserError(f"{where}: not valid YAML: {problem.problem or problem.context}") from None
    except (OSError, ValueError, yaml.YAMLError) as problem:  # ValueError: not UTF-8
        raise UserError(f"{path}: cannot be read as YAML: {reason(problem)}") from None


def parse_yaml_value(key: str, text: str) -> Any:
    """Return a word of a command line with its YAML type.

    W&B's agent writes Python's lists and mappings, so these are understood too. `64` is a number, `"64"` a
    text, `[1, 2]` a list, `{'a': None}` a mapping.

    Args:
        key: The option, for the message.

    Raises:
        UserError: The word is not YAML.
    """
    import yaml

    if text.strip() in NULL_WORDS:
        return None
    if text.startswith(("{", "[")):
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            return literal_eval(text)
    try:
        value = _plain(text)
    except (ValueError, yaml.YAMLError) as problem:
        yaml_problem = getattr(problem, "problem", None) or getattr(problem, "context", None)
        raise UserError(
            f"{key}={text[:MAX_SHOWN_CHARS]!r}: not YAML ({yaml_problem or reason(problem)}); "
            f"write it as YAML, a text in quotes: {key}='\"...\"'"
        ) from None
    return text if value is None else value  # `#ff0000` is a comment


def flatten(tree: Mapping[str, Any], key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and values of nested mappings; an empty inner mapping is a value."""
    for name, value in tree.items():
        inner = f"{key}.{name}" if key else name
        if isinstance(value, Mapping) and value:
            yield from flatten(value, inner)
        else:
            yield inner, value


def _plain(text: str) -> Any:
    """Return the plain values of a YAML text, for the caller to keep. Raises what `_parse` raises."""
    return copy.deepcopy(_parse(text))


@lru_cache(maxsize=64)
def _parse(text: str) -> Any:
    """Return the plain values of a YAML text, the same object each time: the default config is read often.

    Raises:
        YAMLError: The text is not YAML.
        ValueError: OmegaConf refuses it, or it is nested too deeply.
    """
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):  # OmegaConf's loader would end the process
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    try:
        found: Any = OmegaConf.to_container(OmegaConf.from_dotlist([f"x={text}"]), resolve=False)
    except OmegaConfBaseException as problem:
        raise ValueError(reason(problem)) from None
    return found["x"]
