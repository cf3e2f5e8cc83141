"""How files and `key=value` words become the configuration of a run; `schema.py` has the options.

This module must stay free of torch: `--help` answers in under 0.5 s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ampcompare.config.check import check, has_recorded_type
from ampcompare.config.effect import DTYPE
from ampcompare.config.options import Leaf
from ampcompare.config.schema import GROUPS, KEY_HINTS, LEAVES, Config
from ampcompare.config.values import Values
from ampcompare.config.yaml_file import read_yaml
from ampcompare.errors import UserError, did_you_mean, reason
from ampcompare.program.place import as_typed, find_shipped, names_shipped


def load_config(
    name: str | None = None, overrides: Iterable[str] = (), *, of_several: bool = False
) -> Config:
    """The config from a YAML file and `key=value` words (or `--key=value`), the later word winning.

    `name` is a path, or the name of a file in `configs/` with or without `.yaml`; None: the defaults alone.
    `of_several`: see `check`.
    Raises UserError with one line that names key, value, what is allowed and what to do.
    """
    values = Values(Config)
    if name is not None:
        path = find_config(name)
        content = read_config(path)
        if "benchmark" in content:
            command = as_typed("ampcompare", "bench", content["benchmark"])
            raise UserError(f"{path}: the config of a benchmark; run it with: {command}")
        try:
            _put(values, content)
        except UserError as problem:
            raise UserError(f"{path.name}: {problem}") from None
    given = [split_override(word) for word in overrides]
    for key, value in given:
        _put(values, {key: value})
    config = values.finished()
    # A record's config has a type for fp32 too: a file may say so, people may not.
    check(config, of_several=of_several or (DTYPE not in dict(given) and has_recorded_type(config)))
    return config


def check_option(key: str, value: Any) -> None:
    """Raise UserError if there is no such option, or it would not take the value whatever the others are."""
    _put(Values(Config), {key: value})


def typed_values(config: Config, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options in a nested or flat tree, by dotted key, as they come out beside the config's others.

    Raises UserError.
    """
    values = Values(config)
    keys = _put(values, given)
    made = values.finished()
    return {key: made.value(key) for key in keys}


def _put(values: Values, tree: Mapping[Any, Any]) -> list[str]:
    """Set every option of a tree; returns their keys."""
    keys = []
    for leaf, value in _options(tree):
        values.put(leaf, value)
        keys.append(leaf.key)
    return keys


def find_config(name: str) -> Path:
    """The file that `--config` names."""
    try:
        found = find_shipped(name, "configs")
    except (OSError, ValueError) as problem:  # a name too long, a NUL in it, no right to look
        raise UserError(f"--config {name!r}: cannot be read ({reason(problem)})") from None
    if found:
        return found
    known = ", ".join(names_shipped("configs"))
    raise UserError(f"--config {name!r}: no such file; expected a path or one of {known}")


def read_config(path: Path) -> dict[Any, Any]:
    """A YAML file of options, as it is nested there. Raises UserError."""
    content = read_yaml(path)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected lines of the form key: value, found a {type(content).__name__}")
    if "method" in content and "parameters" in content:
        todo = f"run it with: {as_typed('ampcompare', 'sweep', path)} (or wandb sweep, then wandb agent)"
        raise UserError(f"{path}: this is a sweep, not a config; {todo}, or give --config a file of configs/")
    return content


def split_override(word: str) -> tuple[str, str]:
    """`key=value` or `--key=value` as key and text. Raises UserError."""
    key, equals, value = word.removeprefix("--").partition("=")
    if not equals or not key.strip():
        raise UserError(f"{word!r}: expected key=value, such as backend=native or optimizer.lr=0.05")
    return key.strip(), value


def _options(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[Leaf, Any]]:
    """The options in a tree, nested or with dotted keys, each with its value. Raises UserError."""
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if key in GROUPS:
            inner = _parse(value) if isinstance(value, str) else value
            if not isinstance(inner, Mapping | None):
                known = ", ".join(leaf.rpartition(".")[2] for leaf in LEAVES if leaf.startswith(f"{key}."))
                raise UserError(f"{key}={value!r}: a group of options; set one of them: {known}")
            yield from _options(inner or {}, f"{key}.")  # `optimizer:` may have nothing under it
        elif key in LEAVES:
            is_list = str(LEAVES[key].base).startswith("list")
            # A text stays as it is typed.
            yield LEAVES[key], _parse(value) if is_list and isinstance(value, str) else value
        else:
            raise _unknown(key)


def _parse(text: str) -> Any:
    """A word as YAML, else the text itself. W&B's agent writes lists and mappings as Python does."""
    import ast

    import yaml

    if text.startswith(("{", "[")):
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            return ast.literal_eval(text)
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError):
        return text


def _unknown(key: str) -> UserError:
    last = key.rpartition(".")[2]
    meant = KEY_HINTS.get(last.replace("-", "_"))
    near = f"did you mean {meant}?" if meant else did_you_mean(key, LEAVES)
    if not near:  # `lr` for `optimizer.lr`
        namesakes = [name for name in LEAVES if name.rpartition(".")[2] == last]
        near = f"did you mean {namesakes[0]}?" if namesakes else ""
    listed = f"{as_typed('ampcompare', 'run', '--help')} lists every key"
    return UserError(f"{key}: no such key; {near or listed}")
