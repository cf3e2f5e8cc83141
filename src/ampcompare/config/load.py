"""How files and `key=value` words become the configuration of a run. The options themselves are in
`schema.py`.

This module must stay free of torch: `--help` answers in under 0.5 s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ampcompare.config.options import Leaf, build, convert, groups, leaves
from ampcompare.config.schema import KEY_HINTS, Config
from ampcompare.errors import UserError
from ampcompare.program.place import as_typed, find_shipped, names_shipped, shipped

CONFIG_DIR = shipped("configs")


def load_config(name: str | None = None, overrides: Iterable[str] = ()) -> Config:
    """The config from a YAML file and `key=value` words (or `--key=value`), the later word winning.

    `name` is a path, or the name of a file in `configs/` with or without `.yaml`; None means the defaults
    alone.
    Raises UserError with one line that names key, value, what is allowed and what to do.
    """
    values: dict[str, Any] = {}
    if name is not None:
        path = find_config(name)
        content = read_yaml(path)
        if "benchmark" in content:
            raise UserError(
                f"{path}: the config of a benchmark; run it with: "
                + as_typed("ampcompare", "bench", content["benchmark"])
            )
        _merge(values, content, origin=f"{path.name}: ")
    for word in overrides:
        key, value = split_override(word)
        _merge(values, _nest(key, value))
    return build(Config, values)


def check_option(key: str, value: Any) -> None:
    """Raise UserError if there is no such option, or it would not take the value whatever the others are."""
    _merge({}, _nest(key, value))


def find_config(name: str) -> Path:
    """The file that `--config` names."""
    try:
        found = find_shipped(name, "configs")
    except (OSError, ValueError) as problem:  # a name too long, a NUL in it, no right to look
        raise UserError(f"--config {name!r}: cannot be read ({problem})") from None
    if found:
        return found
    known = ", ".join(names_shipped("configs"))
    raise UserError(f"--config {name!r}: no such file; expected a path or one of {known}")


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file of options as nested dictionaries. Raises UserError naming file and line."""
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        content = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        where = f"{path}, line {mark.line + 1}" if mark else str(path)
        raise UserError(f"{where}: not valid YAML: {problem.problem or problem.context}") from None
    except (OSError, ValueError, RecursionError, yaml.YAMLError, OmegaConfBaseException) as problem:
        raise UserError(f"{path}: cannot be read as YAML: {problem}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected lines of the form key: value, found a {type(content).__name__}")
    if "method" in content and "parameters" in content:
        raise UserError(
            f"{path}: this is a sweep, not a config; run it with: {as_typed('ampcompare', 'sweep', path)} "
            "(or wandb sweep, then wandb agent), or give --config a file of configs/"
        )
    return {str(key): value for key, value in content.items()}


def split_override(word: str) -> tuple[str, str]:
    """`key=value` or `--key=value` as key and text. Raises UserError."""
    key, equals, value = word.removeprefix("--").partition("=")
    if not equals or not key.strip():
        raise UserError(f"{word!r}: expected key=value, such as backend=native or optimizer.lr=0.05")
    return key.strip(), value


def typed_values(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The options in a nested or flat tree, by dotted key. Raises UserError."""
    values: dict[str, Any] = {}
    _merge(values, tree)
    return values


def _nest(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def _merge(values: dict[str, Any], tree: Mapping[Any, Any], prefix: str = "", origin: str = "") -> None:
    """Convert a nested tree of raw values into `values`, keyed by dotted names."""
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if key in GROUPS:
            inner = _parse(value) if isinstance(value, str) else value
            if inner is None:
                continue  # `optimizer:` with nothing under it
            if not isinstance(inner, Mapping):
                known = ", ".join(leaf.rpartition(".")[2] for leaf in LEAVES if leaf.startswith(f"{key}."))
                raise UserError(f"{origin}{key}={value!r}: a group of options; set one of them: {known}")
            _merge(values, inner, f"{key}.", origin)
        elif key in LEAVES:
            values[key] = _convert(LEAVES[key], value, origin)
        elif "." in str(name):  # a flat key in a file: `optimizer.lr: 0.05`
            _merge(values, _nest(str(name), value), prefix, origin)
        else:
            raise _unknown(key, origin)


def _convert(leaf: Leaf, value: Any, origin: str) -> Any:
    if isinstance(value, str) and "${" in value:
        raise UserError(f"{origin}{leaf.key}={value!r}: interpolation is not supported; write the value out")
    # A text stays as it is typed; anything else in a word is read as YAML: lists, mappings, numbers.
    is_list = str(leaf.base).startswith("list")
    parsed = _parse(value) if isinstance(value, str) and is_list else value
    try:
        return convert(leaf, parsed)
    except UserError as problem:
        raise UserError(f"{origin}{problem}") from None


def _parse(text: str) -> Any:
    """A word as YAML, else the text itself. W&B's agent writes lists and mappings as Python does."""
    import ast

    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if text.startswith(("{", "[")):
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            return ast.literal_eval(text)
    try:
        return OmegaConf.to_container(OmegaConf.create(f"value: {text}"), resolve=False)["value"]  # type: ignore[index, call-overload]
    except (yaml.YAMLError, OmegaConfBaseException, ValueError, TypeError, KeyError, RecursionError):
        return text


def _unknown(key: str, origin: str) -> UserError:
    from difflib import get_close_matches

    elsewhere = KEY_HINTS.get(key.rpartition(".")[2].replace("-", "_"))
    near = [elsewhere] if elsewhere else get_close_matches(key, LEAVES, 1, 0.6)
    if not near:  # `lr` for `optimizer.lr`
        last = key.rpartition(".")[2]
        near = [name for name in LEAVES if name.rpartition(".")[2] == last]
    tail = (
        f"did you mean {near[0]}?" if near else f"{as_typed('ampcompare', 'run', '--help')} lists every key"
    )
    return UserError(f"{origin}{key}: no such key; {tail}")


LEAVES: dict[str, Leaf] = {leaf.key: leaf for leaf in leaves(Config)}
GROUPS: set[str] = groups(Config)
