"""A plugin of pytest: keep what tests give to `load_runs`, `analyse_runs` and `ampcompare report`.

The folder that FROZEN_INPUTS names gets `runs/HASH.json` for each record in memory, `files/HASH/NAME` for
each source, and `calls.jsonl` and `commands.jsonl`. Of each test at most MOST_CALLS calls of a kind are kept.
"""

import dataclasses
import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from values import plain

import ampcompare
import ampcompare.cli
import ampcompare.runs

MOST_CALLS = 3
MOST_BYTES = 5_000_000
OUTPUTS = ("--out", "--format", "--publish", "--summary", "--port")  # options with a word that is no input
INPUTS = Path(os.environ["FROZEN_INPUTS"])
counts: Counter[str] = Counter()


def main_file(name: str) -> Path:
    """Return a file of the folder, which is made."""
    path = INPUTS / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def case_of(kind: str) -> str:
    """Return the name of a call, "" for one that is not kept."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "in a fixture").rpartition(" (")[0]
    counts[f"{kind} {test}"] += 1
    number = counts[f"{kind} {test}"]
    return f"{test} {number}" if test and number <= MOST_CALLS else ""


def note(file: str, **entry: Any) -> None:
    """Append a line to a file."""
    with main_file(file).open("a") as opened:
        opened.write(json.dumps(plain(entry)) + "\n")


def keep(path: Path) -> str:
    """Copy a source; return the path of the copy, "" for one that is too large."""
    files = sorted(file for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file())
    if sum(file.stat().st_size for file in files) > MOST_BYTES:
        return ""
    content = hashlib.sha256(str(path.name).encode())
    for file in files:
        content.update(str(file.relative_to(path)).encode() + file.read_bytes())
    copy = INPUTS / "files" / content.hexdigest()[:16] / path.name
    if not copy.exists():
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy) if path.is_file() else shutil.copytree(path, copy)
    return str(copy)


def keep_word(word: str) -> str:
    """Return a word in which a path is that of a copy: a source, ARM=SOURCE, or a file."""
    name, equals, source = word.rpartition("=")
    for before, text in (("", word), (name + equals, source)):
        if text and not text.startswith("wandb:") and len(text) < 1000 and Path(text).exists():
            return before + keep(Path(text).resolve())
    return word


def keep_run(run: Any) -> str:
    """Write a record in memory; return its name."""
    fields = {field.name: getattr(run, field.name) for field in dataclasses.fields(run)}
    text = json.dumps(plain(fields))
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    main_file(f"runs/{name}.json").write_text(text)
    return name


def analysed(runs: Any, *positional: Any, **named: Any) -> None:
    """Keep a call of `analyse_runs`."""
    case = case_of("analysis")
    if not case:
        return
    options = dict(zip(("baseline",), positional, strict=False)) | named
    given = options.pop("options", None)
    if given is not None:
        options = {field.name: getattr(given, field.name) for field in dataclasses.fields(given)} | options
    for name in ("bench", "reproduce"):
        if isinstance(options.get(name), str | Path):
            options[name] = keep_word(str(options[name]))
    note("calls.jsonl", kind="analysis", case=case, runs=[*map(keep_run, runs)], options=options)


def loaded(sources: Any, **named: Any) -> None:
    """Keep a call of `load_runs`."""
    given = [sources] if isinstance(sources, str | Path) else [*sources]
    case = case_of("load")
    if case and not any(str(source).startswith("wandb:") for source in given):
        words = [keep_word(str(source)) for source in given]
        note("calls.jsonl", kind="load", case=case, sources=words, options=named)


def called(words: Any = None, *_: Any) -> None:
    """Keep a call of `ampcompare report`."""
    words = [*map(str, words or ())]
    if words[:1] != ["report"] or "--watch" in words or any("wandb:" in word for word in words):
        return
    case = case_of("command")
    kept, rest = ["report"], iter(words[1:])
    for word in rest:
        if word in OUTPUTS:
            next(rest, None)
        else:
            kept.append(keep_word(word))
    if case:
        note("commands.jsonl", case=case, words=kept)


def recording(function: Callable[..., Any], record: Callable[..., None]) -> Callable[..., Any]:
    """Return a function that is recorded before it is called."""

    def call(*positional: Any, **named: Any) -> Any:
        if positional and iter_only(positional[0]):
            positional = ([*positional[0]], *positional[1:])
        try:
            record(*positional, **named)
        except (OSError, TypeError, ValueError) as problem:  # hostile inputs of tests: nothing to keep
            note("left_out.jsonl", test=os.environ.get("PYTEST_CURRENT_TEST", ""), why=repr(problem))
        return function(*positional, **named)

    return call


def iter_only(value: Any) -> bool:
    """Return whether a value can be read only once."""
    return hasattr(value, "__next__")


ampcompare.analyse_runs = recording(ampcompare.analyse_runs, analysed)
ampcompare.load_runs = ampcompare.runs.load_runs = recording(ampcompare.load_runs, loaded)
ampcompare.cli.main = recording(ampcompare.cli.main, called)
main_file("calls.jsonl").touch()
main_file("commands.jsonl").touch()
