"""How files and `key=value` words become the configuration of a run; `schema.py` has the options.

This module must stay free of torch: `--help` answers in under 0.5 s.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ampcompare.config.beside import PublishedConfig
from ampcompare.config.build import Given, build, parsed
from ampcompare.config.check import check
from ampcompare.config.publication import repeated
from ampcompare.config.schema import LEAVES, Config, find_option
from ampcompare.errors import UserError, did_you_mean, reason
from ampcompare.program.place import as_typed, find_shipped, names_shipped
from ampcompare.program.yaml_file import flat, read_word, read_yaml


def load_config(name: str | None = None, overrides: Iterable[str] = ()) -> Config:
    """The config from a YAML file and `key=value` words (or `--key=value`), the later word winning.

    `name` is a path, or the name of a file in `configs/` with or without `.yaml`; None: nothing but defaults.
    Raises UserError with one line that names key, value, what is allowed and what to do.
    """
    return configured(name, [dict([split_override(word)]) for word in overrides])


def configured(name: str | None, given: Sequence[Mapping[str, Any]], default: str | None = None) -> Config:
    """The same of trees of options, above those of the file `default` where none is named. The setting of a
    publication (`published.name`) lies below file and words, and above the defaults.
    """
    words: list[Given] = [("", tree) for tree in given]
    config = build(Config(), *_read(name or default), *words)
    if config.published != PublishedConfig():
        config = build(repeated(config.published), *_read(name), *words)
    check(config)
    return config


def _read(name: str | None) -> list[Given]:
    """The file that `--config` names, and its options as they are nested there. Raises UserError."""
    if name is None:
        return []
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
    return [(path.name, content)]


def split_override(word: str) -> tuple[str, Any]:
    """`key=value` or `--key=value` as key and value, typed as `typed_word` does. Raises UserError."""
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


def check_option(key: str, value: Any) -> None:
    """Raise UserError if there is no such option, or it would not take the value whatever the others are."""
    build(Config(), ("", {key: value}))


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
    # Of others nothing: a sweep notes some of its own in `plan`.
    read = {key: parsed(key, value) for key, value in chosen.items()}
    ours = {key: value for key, value in flat(read) if find_option(key)}
    for key, said in ours.items():
        given, value = config.value(key), build(config, ("", {key: said})).value(key)
        # In a free tree it has another type where it came as a word.
        if given != value and given != build(config, ("", {key: typed_word(key, str(said))})).value(key):
            why = f"the sweep chose {value!r} and its command did not pass that on"
            todo = "let the command end with ${args_no_hyphens}, which has every parameter"
            raise UserError(f"{key}={given!r}: {why}; {todo}")
