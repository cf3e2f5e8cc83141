"""YAML as plain values, whatever is in it: a file (a config, a sweep), a word of a command line."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from ampcompare.errors import UserError, reason

LARGEST = 1_000_000  # bytes of a file
MOST_NODES, DEEPEST = 100_000, 50
_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


class Exponent(str):
    """`1e-5` as it was typed: a number to YAML 1.2 and to people, a text to PyYAML, which follows 1.1. Where
    a text is wanted (a name such as 12e4) it is one.
    """

    __slots__ = ()


def read_yaml(path: Path) -> Any:
    """The content of the file; None of an empty one. Raises UserError naming file and line."""
    import yaml

    try:
        if path.stat().st_size > LARGEST:
            raise UserError(f"{path}: larger than {LARGEST:,} bytes, none is that is written by hand")
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_loader())  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        where = f"{path}, line {mark.line + 1}" if mark else str(path)
        raise UserError(f"{where}: not valid YAML: {problem.problem or problem.context}") from None
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as problem:  # ValueError: not UTF-8, a NUL
        raise UserError(f"{path}: cannot be read as YAML: {reason(problem)}") from None
    if not _is_finite(content):
        raise UserError(f"{path}: nested too deeply, or in itself, or with more than {MOST_NODES:,} values")
    return content


def read_text(text: str) -> Any:
    """A text as YAML, or written as Python writes lists and mappings, which W&B's agent does.

    Raises ValueError with the reason, one line.
    """
    import ast

    import yaml

    if text.startswith(("{", "[")):
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            return ast.literal_eval(text)
    try:
        content = yaml.load(text, Loader=_loader())  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as problem:
        raise ValueError(problem.problem or problem.context) from None
    except (yaml.YAMLError, TypeError) as problem:
        raise ValueError(reason(problem)) from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not _is_finite(content):
        raise ValueError("nested too deeply, or in itself, or with too many values")
    return content


@cache
def _loader() -> type:
    """YAML's safe loader, which takes the last of two equal keys in silence, made to refuse them. A date
    stays the text that it is.

    Not libyaml's, which OmegaConf 2.4 loads with: 100,000 brackets end the process with a segmentation fault.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                    if key.value in seen:
                        problem = f"{key.value} is there twice"
                        raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                    seen.add(key.value)
            return super().construct_mapping(node, deep)

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    Loader.add_implicit_resolver("!exponent", _EXPONENT, list("+-.0123456789"))
    Loader.add_constructor("!exponent", lambda loader, node: Exponent(node.value))
    return Loader


def _is_finite(content: Any) -> bool:
    """Whether the content, with every alias written out, stays within bounds: a few lines may hold 10**9."""
    left, stack = MOST_NODES, [(content, 0)]
    while stack:
        value, depth = stack.pop()
        left -= 1
        if left < 0 or depth > DEEPEST:
            return False
        if isinstance(value, dict | list):
            if len(value) > left:
                return False
            inner = value.values() if isinstance(value, dict) else value
            stack += [(part, depth + 1) for part in inner]
    return True
