"""How files and `key=value` words become the configuration of a run; `schema.py` has the options.

This module must stay free of torch: `--help` answers in under 0.5 s.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ampcompare.config.beside import PublishedConfig
from ampcompare.config.build import build, named_in, options_in
from ampcompare.config.check import check
from ampcompare.config.publication import repeated
from ampcompare.config.schema import GROUPS, LEAVES, Config, find_option
from ampcompare.config.trees import flat, read_word, written
from ampcompare.errors import UserError, did_you_mean, reason
from ampcompare.program.place import as_typed, find_shipped, names_shipped
from ampcompare.program.yaml_file import read_yaml


def load_config(name: str | None = None, overrides: Iterable[str] = ()) -> Config:
    """The config from a YAML file and `key=value` words (or `--key=value`), the later word winning.

    `name` is a path, or the name of a file in `configs/` with or without `.yaml`; None: nothing but defaults.
    Raises UserError with one line that names key, value, what is allowed and what to do.
    """
    return configured(name, [split_override(word) for word in overrides])


def configured(name: str | None, given: Sequence[tuple[str, Any]], default: str | None = None) -> Config:
    """The same of options by their keys, above those of the file `default` where none is named. The setting
    of a publication (`published.name`) lies below file and words, and above the defaults.
    """
    config = _from(Config(), name or default, given)
    if config.published != PublishedConfig():
        config = _from(repeated(config.published), name, given)
    check(config)
    return config


def _from(base: Config, name: str | None, words: Sequence[tuple[str, Any]]) -> Config:
    given = [pair for word in words for pair in options_in(dict([word]))]
    file, content = _read(name) if name is not None else ("", {})
    with named_in(file):
        of_file = [*options_in(content)]
    return build(base, given, of_file, file)


def _read(name: str) -> tuple[str, dict[Any, Any]]:
    """The file that `--config` names, and its options as they are nested there. Raises UserError."""
    try:
        path = find_shipped(name, "configs")
    except (OSError, ValueError) as problem:  # a name too long, a NUL in it, no right to look
        raise UserError(f"--config {name!r}: cannot be read ({reason(problem)})") from None
    if not path:
        known = ", ".join(names_shipped("configs"))
        raise UserError(f"--config {name!r}: no such file; expected a path or one of {known}")
    content = read_yaml(path) or {}
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected lines of the form key: value, found a {type(content).__name__}")
    if "method" in content and "parameters" in content:
        todo = f"run it with: {as_typed('ampcompare', 'sweep', path)} (or wandb sweep, then wandb agent)"
        raise UserError(f"{path}: this is a sweep, not a config; {todo}, or give --config a file of configs/")
    return path.name, content


def check_option(key: str, value: Any) -> None:
    """Raise UserError if there is no such option, or it would not take the value whatever the others are."""
    build(Config(), options_in({key: value}))


def typed_values(config: Config, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options in a nested or flat tree, by dotted key, as they come out beside the config's others; of a
    free tree each value in it. Raises UserError.
    """
    pairs = [*options_in(given)]
    made = build(config, pairs)
    parts = [flat(key, value) if isinstance(value, Mapping) else [(key, value)] for key, value in pairs]
    return {key: made.value(key) for part in parts for key, _ in part}


def split_override(word: str) -> tuple[str, Any]:
    """`key=value` or `--key=value` as key and text, or the value as YAML types it where the key is of a free
    tree. Raises UserError.
    """
    key, equals, value = word.removeprefix("--").partition("=")
    if not equals or not key.strip():
        near = did_you_mean(key, LEAVES) if word.startswith("--") else ""
        such = "such as backend=native or optimizer.lr=0.05"
        raise UserError(f"{word!r}: expected key=value, {such}{near and '; ' + near}")
    return key.strip(), typed_word(key.strip(), value)


def typed_word(key: str, text: str) -> Any:
    """What a command's word gives an option: the text, which its type reads, or in a free tree what it is as
    YAML. Raises UserError.
    """
    found = find_option(key)
    return read_word(key, text) if found and found[0].is_tree else text


def check_chosen(config: Config) -> None:
    """Under a sweep: compare the config with what an agent left for W&B's client. Raises UserError where they
    differ.

    W&B shows the sweep's values in the run's config, whatever the program was given. A command without
    `${args}`, or with `${args_no_boolean_flags}` and a false parameter that is true by default, would train
    one thing and show another.
    """
    path = os.environ.get("WANDB_SWEEP_PARAM_PATH")
    if path and Path(path).is_file():
        content = read_yaml(Path(path))
        entries = content.items() if isinstance(content, Mapping) else ()
        check_parameters(
            config, {k: v["value"] for k, v in entries if isinstance(v, Mapping) and "value" in v}
        )


def check_parameters(config: Config, chosen: Mapping[str, Any]) -> None:
    """Raise UserError where the config has another value than the sweep chose."""
    ours = {name: value for name, value in chosen.items() if name in GROUPS or find_option(name)}
    if isinstance(plan := ours.get("plan"), Mapping):  # with what a sweep notes there of its own
        ours["plan"] = {name: value for name, value in plan.items() if f"plan.{name}" in LEAVES}
    for key, value in typed_values(config, ours).items():
        given, found = config.value(key), find_option(key)
        is_same = given == value
        if found and found[0].is_tree:  # in which a word may have come to another type
            is_same = written(given) in (written(value), written(typed_word(key, str(value))))
        if not is_same:
            why = f"the sweep chose {value!r} and its command did not pass that on"
            todo = "let the command end with ${args_no_hyphens}, which has every parameter"
            raise UserError(f"{key}={given!r}: {why}; {todo}")
