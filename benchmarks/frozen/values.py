"""What the corpora share: plain values, their differences, a command with what it prints and writes."""

import contextlib
import dataclasses
import io
import itertools
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

ABSENT = "(absent)"


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it; numbers keep all digits and their types."""
    if isinstance(value, Enum):
        return plain(value.value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if isinstance(value, datetime):
        return value.isoformat()
    is_json = value is None or isinstance(value, bool | int | float | str)
    return value if is_json else str(value)


def differences(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """Yield a line for each value that differs: its path, the old and the new value."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from differences(old.get(key, ABSENT), new.get(key, ABSENT), f"{path}{key} / ")
    elif isinstance(old, list) and isinstance(new, list):
        pairs = itertools.zip_longest(map(named, old), map(named, new), fillvalue=("", ABSENT))
        for number, ((name, before), (_, after)) in enumerate(pairs):
            yield from differences(before, after, f"{path}{name or number} / ")
    elif repr(old) != repr(new):
        yield f"{path.removesuffix(' / ')}: {shown(old)} -> {shown(new)}"


def named(item: Any) -> tuple[str, Any]:
    """Return an item of a list with the name that it goes by: its label or id."""
    if isinstance(item, dict):
        return str(item.get("label") or item.get("id") or ""), item
    return "", item


def shown(value: Any) -> str:
    """Return a value on one line."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 300 else f"{text[:300]}..."


def command(words: list[str]) -> tuple[int, str]:
    """Run `ampcompare` with these words in this process; return the exit code and what it printed."""
    from ampcompare.cli import main

    output = io.StringIO()
    code: Any = 0
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            main(words)
        except SystemExit as ended:
            code = ended.code
        except Exception as problem:
            print(f"{type(problem).__name__}: {problem}")
            code = "an exception"
    return code or 0, output.getvalue()


def forked(function: Callable[[], Any]) -> Any:
    """Return what a function returns in a fork of this process; the signal's number if one ends the fork.

    The fork has loaded what this process has loaded, and leaves nothing behind in it.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        child = os.fork()
        if not child:
            code = 1
            try:
                result.write_text(json.dumps(plain(function())))
                code = 0
            except Exception:
                traceback.print_exc()
            finally:
                os._exit(code)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return json.loads(result.read_text()) if result.exists() else status


def write(values: dict[str, Any], sentences: dict[str, Any]) -> None:
    """Write a corpus to the file that the last argument names."""
    Path(sys.argv[3]).write_text(json.dumps({"values": plain(values), "sentences": plain(sentences)}))
