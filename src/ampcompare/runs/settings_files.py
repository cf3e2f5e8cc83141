"""The settings file that a trainer or a user's own loop writes beside its log."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from ampcompare.errors import reason

# File names of trainers; a folder with one of them is one run.
KNOWN_NAMES = ("metrics.csv", "summary.csv", "progress.csv")
SETTINGS = ("hparams.yaml", "args.yaml", "hparams.yml")  # written by Lightning, timm, accelerate
# Written by users' own loops. They count beside a single log only, because they may belong to several.
CONFIGS = ("config.json", "config.yaml", "config.yml", "hparams.json", "args.json", "params.json")
MAX_BYTES = 4_000_000  # of a settings file
MAX_VALUES = 300_000  # pieces of JSON in a settings file
# The last three: yaml raises them for tags with invalid values, such as `!!bool maybe` or `!!int ""`.
UNREADABLE = (OSError, ValueError, yaml.YAMLError, RecursionError, TypeError, LookupError, AttributeError)


def run_folder(path: Path) -> Path:
    """Return the path by which the run in a table is named: its folder, if it is the only trainer's table."""
    is_alone = path.name in KNOWN_NAMES and sum((path.parent / name).is_file() for name in KNOWN_NAMES) < 2
    return path.parent if is_alone else path.with_suffix("")


def read_settings_of(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the settings beside a log, and the problems of their file."""
    return read_settings_in(path.parent, CONFIGS if _is_only_log(path) else ())


def _is_only_log(path: Path) -> bool:
    """Return whether the settings in the folder of a log are its own: no other log of its kind is there."""
    if path.name in KNOWN_NAMES:
        return True
    files = (file for file in path.parent.iterdir() if file.name not in CONFIGS)
    return not any(file.suffix == path.suffix and file != path for file in files)


class _Loader(yaml.SafeLoader):
    """A loader that reads YAML tagged as a Python object (Lightning writes such) as plain values."""


def _construct_untagged(loader: yaml.SafeLoader, _: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return node.value


_Loader.add_multi_constructor("", _construct_untagged)


def read_settings_in(folder: Path, configs: Sequence[str] = ()) -> tuple[dict[str, Any], list[str]]:
    """Return the settings in the settings file of a folder, and its problems; both empty without one.

    Args:
        folder: The folder of a log.
        configs: Further names of settings files, read if there is none of a known trainer.
    """
    path = next((folder / name for name in (*SETTINGS, *configs) if (folder / name).is_file()), None)
    if path is None:
        return {}, []
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"it is larger than {MAX_BYTES:,} bytes")
        settings = _parse_settings(path)
        if not isinstance(settings, dict):
            raise ValueError(f"it is a {type(settings).__name__}")
        return _as_json(settings), []
    except UNREADABLE as problem:
        return {}, [f"{path.name} cannot be read: {reason(problem)}."]


def _parse_settings(path: Path) -> Any:
    """Return the content of a settings file; an empty one has no settings."""
    text = path.read_bytes()
    if path.suffix == ".json":  # not all JSON is YAML: tabs, and numbers such as 1e-05
        return json.loads(text)
    return yaml.load(text, _Loader) or {}  # noqa: S506 - a SafeLoader


def _as_json(settings: dict[Any, Any]) -> dict[str, Any]:
    """Return the settings as JSON values.

    Raises:
        ValueError: They contain themselves, or have more than MAX_VALUES values with references written out.
    """
    chunks = list(itertools.islice(json.JSONEncoder(default=str).iterencode(settings), MAX_VALUES))
    if len(chunks) == MAX_VALUES:
        raise ValueError(f"it holds more than {MAX_VALUES:,} values")
    return json.loads("".join(chunks))
