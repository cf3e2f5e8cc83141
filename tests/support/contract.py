"""Golden files of the public surface: how they are read, compared and written."""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml


class Inline(dict[str, Any]):
    """A mapping that stands on one line of a golden file."""


class _Dumper(yaml.SafeDumper):
    pass


_Dumper.add_representer(
    Inline, lambda dumper, value: dumper.represent_mapping("tag:yaml.org,2002:map", value, flow_style=True)
)
_Dumper.ignore_aliases = lambda *_: True  # type: ignore[method-assign]


def key_paths(tree: Any, prefix: str = "") -> list[str]:
    """Return the dotted paths of all leaves, sorted.

    `[]` stands for the items of a list and for the integer keys of a mapping. A list without mappings is a
    leaf.

    >>> key_paths({"a": {"b": 1, "c": [{"d": 2}, {"e": 3}]}, "f": [1, 2]})
    ['a.b', 'a.c[].d', 'a.c[].e', 'f']
    """
    return sorted(set(_walk(tree, prefix)))


def _walk(tree: Any, path: str) -> Iterator[str]:
    if isinstance(tree, Mapping) and tree:
        for key, value in tree.items():
            inner = f"{path}[]" if isinstance(key, int) else f"{path}.{key}" if path else str(key)
            yield from _walk(value, inner)
    elif isinstance(tree, list | tuple) and any(isinstance(item, Mapping | list | tuple) for item in tree):
        for item in tree:
            yield from _walk(item, f"{path}[]")
    else:
        yield path


def dump(tree: Any) -> str:
    """Return the tree as the YAML of a golden file."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1_000)


def check(golden: Path, now: Any, folder: Path) -> None:
    """Fail with every line in which a golden file differs from what the code gives now.

    The text that the golden file would have now, with its comment, is written to `folder`.
    """
    text = golden.read_text(encoding="utf-8") if golden.exists() else ""
    old, new = (dump(yaml.safe_load(content)) for content in (text, dump(now)))
    if new == old:
        return
    comment = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
    file = folder / golden.name
    file.write_text(comment + dump(now), encoding="utf-8")
    place = str(golden.relative_to(golden.parents[3]))
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), place, str(file), n=1, lineterm="")
    raise AssertionError(
        "\n".join(
            [
                "the public surface has changed:",
                *lines,
                f"Is this intended? Then edit these lines in {place} and name the change in CHANGELOG.md.",
            ]
        )
    )


def imports_in(text: str) -> list[str]:
    """Return every `module:name` that is imported from this package in the text of a page or a script."""
    found = re.findall(r"from (ampcompare[\w.]*) import ([\w, ]+)", text)
    return [f"{module}:{name.strip()}" for module, names in found for name in names.split(",")]


def environment_variables(files: Iterable[Path]) -> list[str]:
    """Return the names of our environment variables in the files."""
    texts = (file.read_text(encoding="utf-8") for file in files)
    return sorted({name for text in texts for name in re.findall(r"AMPCOMPARE_[A-Z_]+[A-Z]", text)})
