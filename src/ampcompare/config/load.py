"""The config of a run from files, `key=value` overrides, and what W&B's sweeps pass on.

This module must stay free of torch.
"""

import json
import os
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, NamedTuple

from ampcompare.config.compose import ConfigSource, compose, read_mapping, read_options
from ampcompare.config.publication_config import publication_sources
from ampcompare.config.recipes import RECIPE, recipe_settings, resolve_recipe
from ampcompare.config.schema import OPTIONS, Config, find_option
from ampcompare.config.validate import validate
from ampcompare.errors import UserError, did_you_mean, reason
from ampcompare.runtime.paths import find_shipped, list_shipped, shell_command
from ampcompare.runtime.yaml_io import flatten, parse_yaml_value, read_yaml

DEFAULT_CONFIG = "reference"
RESUME_VARIABLE = "AMPCOMPARE_RESUME"  # a sweep sets it for a run that it starts again


class Overrides(NamedTuple):
    """What a command line asks for: the file that `--config` names, and pairs of key and value."""

    config: str | None
    values: list[tuple[str, Any]]


def parse_overrides(arguments: Sequence[str]) -> Overrides:
    """Return the overrides in the arguments of a command; a later one wins.

    People and W&B's sweep macros write options as `key=value`, `--key=value`, Hydra's `+key=value`, `--flag`
    for true, a JSON object, or the name of a `.json` file with one. `--config NAME` names a config file.

    Raises:
        UserError: One line with the word and what is expected.
    """
    config: str | None = None
    values: list[tuple[str, Any]] = []
    rest = iter(arguments)
    for word in rest:
        key, equals, value = word.partition("=")
        option = find_option(word[2:]) if word.startswith("--") and not equals else None
        if key == "--config":
            config = value if equals else next(rest, "")
            if not config:
                raise UserError("--config: expected a name or a path after it, such as --config demo")
        elif word.startswith("{") or (word.endswith(".json") and not equals):
            values += _read_json(word).items()
        elif option and option[0].type is bool:
            values.append((word[2:], True))
        elif option:
            raise UserError(f"{word}: expected {word}=VALUE, {option[0].allowed}")
        else:
            values.append(parse_override(word))
    return Overrides(config, values)


def parse_override(word: str) -> tuple[str, Any]:
    """Return key and value of `key=value`, `--key=value` or `+key=value`. Raises UserError.

    The value is a text, which the option's type converts; YAML types it if it goes into a free-form mapping.
    """
    key, equals, value = split_override(word)
    if not equals or not key:
        near = did_you_mean(key, OPTIONS) if word.startswith("--") else ""
        hint = f"; {near}" if near else ""
        raise UserError(f"{word!r}: expected key=value, such as backend=native or optimizer.lr=0.05{hint}")
    option = find_option(key)
    if option and option[0].is_free_form:
        return key, parse_yaml_value(key, value)
    return key, value


def check_split_lists(words: Sequence[str], keys: Collection[str]) -> None:
    """Refuse a list whose values have spaces between them, as `backend=none native`.

    Args:
        words: The overrides.
        keys: The options of which the command takes several values.

    Raises:
        UserError: A word without a key is a value that the option before it takes.
    """
    for index, (before, word) in enumerate(pairwise(words), 1):
        key, equals, _ = split_override(before)
        if not equals or key not in keys or "=" in word or word.startswith(("-", "{")):
            continue
        try:
            if find_option(key):  # a program of the user's own has other options
                check_option(key, word)
        except UserError:
            continue
        rest = takewhile(lambda other: "=" not in other, words[index:])
        meant = shlex.quote(",".join([before, *rest]))
        raise UserError(f"{word!r}: expected key=value; separate values with commas: did you mean {meant}?")


def split_override(word: str) -> tuple[str, str, str]:
    """Return key, `=` and value of an override in any form; the last two are empty without a `=`."""
    key, equals, value = word.lstrip("+").removeprefix("--").partition("=")
    return key.strip(), equals, value


def _read_json(word: str) -> dict[str, Any]:
    """Return the options in a JSON object, or in the file of that name."""
    try:
        text = word if word.startswith("{") else Path(word).read_text(encoding="utf-8")
    except (OSError, ValueError) as problem:
        raise UserError(f"{word}: cannot be read ({reason(problem)})") from None
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise UserError(
            f'{word}: not valid JSON ({reason(problem)}); expected an object such as {{"backend": "native"}}'
        ) from None
    if not isinstance(content, dict):
        raise UserError(f"{word}: expected a JSON object of options, found a {type(content).__name__}")
    return content


def config_from_cli(arguments: Sequence[str]) -> Config:
    """Return the config that the arguments of a command ask for. Raises UserError."""
    name, values = parse_overrides(arguments)
    return _load(name, values, DEFAULT_CONFIG)


def load_config(name: str | None = None, overrides: Iterable[str] = ()) -> Config:
    """Return the config from a YAML file and `key=value` overrides, the later one winning.

    Args:
        name: A path, or the name of a file in `configs/` with or without `.yaml`. None: the defaults.
        overrides: Such as `optimizer.lr=0.05`.

    Raises:
        UserError: One line with key, value, what is allowed and what to do.
    """
    return _load(name, [parse_override(word) for word in overrides])


def _load(name: str | None, values: Iterable[tuple[str, Any]], default: str | None = None) -> Config:
    # From the lowest: the default file, the recipe, a publication, the file that was named, the overrides.
    base = _read_file(default) if name is None else []
    explicit = [*_read_file(name), *(ConfigSource({key: value}) for key, value in values)]
    try:
        config = compose(*base, *explicit)
        if config.published != Config().published:
            base = []
            explicit = [*publication_sources(config.published), *explicit]
            config = compose(*explicit)
        recipe = resolve_recipe(config)
        keys = {spec.key for source in explicit for spec, _ in read_options(source.values)}
        settings = ConfigSource(recipe_settings(recipe, config, keys))
        config = compose(*base, settings, *explicit, ConfigSource({RECIPE: recipe}))
    except RecursionError:  # JSON of a thousand levels
        raise UserError("the options are nested too deeply; write fewer brackets") from None
    validate(config)
    config.not_given = frozenset(OPTIONS) - keys  # type: ignore[misc]  # this instance's own
    return config


def _read_file(name: str | None) -> list[ConfigSource]:
    """Return the file that `--config` names as a source. Raises UserError."""
    if name is None:
        return []
    try:
        path = find_shipped(name, "configs")
    except (OSError, ValueError) as problem:  # a name too long, a NUL in it, no right to look
        raise UserError(f"--config {name!r}: cannot be read ({reason(problem)})") from None
    if not path:
        known = ", ".join(list_shipped("configs"))
        raise UserError(f"--config {name!r}: no such file; expected a path or one of {known}")
    content = read_yaml(path) or {}
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected lines of the form key: value, found a {type(content).__name__}")
    if "method" in content and "parameters" in content:
        command = shell_command("ampcompare", "sweep", path)
        raise UserError(
            f"{path}: this is a sweep, not a config; run it with: {command} "
            "(or wandb sweep, then wandb agent), or give --config a file of configs/"
        )
    return [ConfigSource(content, path.name)]


def check_option(key: str, value: Any) -> None:
    """Raise UserError if there is no such option, or it does not take the value whatever the others are."""
    compose(ConfigSource({key: value}))


def check_sweep_values(config: Config) -> None:
    """Raise UserError if the config of a run differs from what W&B's agent chose for it.

    W&B shows the sweep's values in the run's config, whatever the program was given. A command without
    `${args}`, or with `${args_no_boolean_flags}` and a false parameter that is true by default, would train
    one thing and show another.
    """
    path = os.environ.get("WANDB_SWEEP_PARAM_PATH")
    if not path or not Path(path).is_file():
        return
    content = read_yaml(Path(path))
    entries = content if isinstance(content, Mapping) else {}
    chosen = {
        key: entry["value"]
        for key, entry in entries.items()
        if isinstance(entry, Mapping) and "value" in entry
    }
    check_parameters(config, chosen)


def check_parameters(config: Config, chosen: Mapping[str, Any]) -> None:
    """Raise UserError if the config has another value than the sweep chose; keys of others are ignored."""
    recorded = ConfigSource(config.to_dict())

    def read(key: str, value: Any) -> Any:
        composed = compose(recorded, ConfigSource({key: value}))
        composed.recipe = resolve_recipe(composed)  # auto in a sweep is stable or adamw in a run
        return composed.value(key)

    for key, value in flatten({key: read_mapping(key, value) for key, value in chosen.items()}):
        if not find_option(key):
            continue
        actual = config.value(key)
        expected = read(key, value)
        # On the command line, a word in a free-form mapping has YAML's type.
        if actual == expected or actual == read(*parse_override(f"{key}={value}")):
            continue
        raise UserError(
            f"{key}={actual!r}: the sweep chose {expected!r}, but its command did not pass this value to the "
            "run; end the command: of the sweep file with ${args_no_hyphens}, which passes every parameter"
        )
