"""The corpus of records: every field of each `RunRecord` that `load_runs` makes of files."""

import dataclasses
import json
import logging
import sys
import tarfile
from pathlib import Path
from typing import Any

from values import plain, write


class Listener(logging.Handler):
    """Keeps what the package logs."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def fields_of(run: Any) -> dict[str, Any]:
    """Return every field of a record."""
    return {field.name: plain(getattr(run, field.name)) for field in dataclasses.fields(run)}


def read(sources: list[str], step: str | None = None) -> tuple[Any, list[str]]:
    """Return the records in the sources, or the kind of the error; and every message."""
    from ampcompare import load_runs

    listener = Listener()
    logging.getLogger("ampcompare").addHandler(listener)
    logging.getLogger("ampcompare").setLevel(logging.INFO)
    found: Any
    try:
        found = [fields_of(run) for run in load_runs(sources, step=step)]
    except Exception as problem:
        found = {"error": type(problem).__name__}
        listener.messages.append(str(problem))
    logging.getLogger("ampcompare").removeHandler(listener)
    problems = []
    if isinstance(found, list):
        problems = [problem for run in found for problem in run.pop("problems", [])]
    return found, [*listener.messages, *problems]


def published(folder: Path) -> list[Path]:
    """Unpack the archives of the published results once; return the folder of each comparison."""
    unpacked = []
    for archive in sorted((folder / "results").glob("*/records.tar.xz")):
        place = folder / "published" / archive.parent.name
        if not place.exists():
            with tarfile.open(archive) as packed:
                packed.extractall(place, filter="data")
        unpacked += sorted(path for path in place.iterdir() if path.is_dir())
    return unpacked


def calls(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Return the calls of a kind that were collected."""
    lines = map(json.loads, (folder / "calls.jsonl").read_text().splitlines())
    return [call for call in lines if call["kind"] == kind]


def main() -> None:
    """Write the corpus."""
    inputs = Path(sys.argv[2])
    values, sentences = {}, {}
    for call in calls(inputs, "load"):
        values[call["case"]], sentences[call["case"]] = read(call["sources"], **call["options"])
    for folder in published(inputs):
        case = f"{folder.parent.name}/{folder.name}"
        values[case], sentences[case] = read([str(folder)])
    write(values, sentences)


if __name__ == "__main__":
    main()
