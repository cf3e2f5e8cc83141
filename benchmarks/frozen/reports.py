"""The corpus of reports: what `analyse_runs` and `ampcompare report` say of the tests' and our runs.

Values: everything in comparison.json but its texts, and exit codes. Sentences: those texts, and what the
command prints and writes as Markdown.
"""

import json
import sys
import tempfile
import typing
from dataclasses import fields, is_dataclass
from datetime import datetime
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from records import calls, published
from values import command, plain, write

TEXTS = """verdict text notes numerics cautions intervals setting why outcome_because problems because method
    not_compared_because nothing_claimed_because caption doubts version""".split()


def made(kind: Any, value: Any) -> Any:
    """Return a value of a field's type from what `plain` made of it."""
    inner = typing.get_args(kind)
    if kind is datetime or datetime in inner:
        return value and datetime.fromisoformat(value)
    if is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        names = [field.name for field in fields(kind) if field.name in value]
        return kind(**{name: made(hints[name], value[name]) for name in names})  # type: ignore[operator]
    if typing.get_origin(kind) is dict and is_dataclass(inner[1]):
        return {key: made(inner[1], one) for key, one in value.items()}
    if typing.get_origin(kind) is tuple:
        return tuple(made(inner[0], one) for one in value)
    if any(typing.get_origin(one) is tuple for one in inner):
        return value and tuple(value)
    if isinstance(kind, type) and issubclass(kind, str | Path):
        return kind(value)
    return value


@cache
def content_of(folder: Path, name: str) -> str:
    """Return what was kept of a record."""
    return (folder / "runs" / f"{name}.json").read_text()


def run_of(folder: Path, name: str) -> Any:
    """Return a record that a test made in memory, each time a new one."""
    import numpy as np

    from ampcompare.runs import RunRecord

    content = json.loads(content_of(folder, name))
    columns = {}
    for key, (rows, column) in content.pop("logged").items():
        is_numeric = all(isinstance(one, float) for one in column)
        array = np.array(column, dtype=np.float64 if is_numeric else object)
        columns[key] = (np.array(rows, dtype=np.int64), array)
    run = made(RunRecord, content)
    run.logged = columns
    return run


def parted(value: Any, texts: list[str], key: str = "") -> Any:
    """Return a comparison without its texts, which are added to a list."""
    if key in TEXTS:
        texts.append(f"{key}: {json.dumps(value, ensure_ascii=False)}")
        return None
    if isinstance(value, dict):
        return {name: parted(inner, texts, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [parted(inner, texts) for inner in value]
    return value


def analysis_of(inputs: Path, call: dict[str, Any]) -> tuple[Any, list[str]]:
    """Return what an analysis says of runs in memory."""
    from ampcompare import analyse_runs
    from ampcompare.report.exports import to_json

    texts: list[str] = []
    try:
        runs = [run_of(inputs, name) for name in call["runs"]]
        analysis = json.loads(to_json(analyse_runs(runs, **call["options"])))
    except Exception as problem:
        return {"error": type(problem).__name__}, str(problem).splitlines()
    return parted(analysis, texts), texts


def report_of(words: list[str]) -> tuple[Any, list[str]]:
    """Return what the command says of files."""
    with tempfile.TemporaryDirectory() as folder:
        code, output = command([*words, "--out", folder, "--format", "json,md"])
        texts = output.replace(folder, "OUT").splitlines()
        found = {"exit code": code}
        if (Path(folder) / "comparison.json").exists():
            found |= parted(json.loads((Path(folder) / "comparison.json").read_text()), texts)
            texts += (Path(folder) / "comparison.md").read_text().splitlines()
        return found, texts


def main() -> None:
    """Write the corpus."""
    inputs = Path(sys.argv[2])
    values, sentences = {}, {}
    collected = calls(inputs, "analysis")
    with get_context("fork").Pool() as pool:
        found = pool.map(partial(analysis_of, inputs), collected, chunksize=10)
    for call, (analysis, texts) in zip(collected, found, strict=True):
        values[call["case"]], sentences[call["case"]] = analysis, texts
    lines = (inputs / "commands.jsonl").read_text().splitlines()
    commands = {f"{one['case']} (command)": one["words"] for one in map(json.loads, lines)}
    for folder in published(inputs):
        case = f"{folder.parent.name}/{folder.name}"
        results = inputs / "results" / folder.parent.name / folder.name
        commands[case] = ["report", str(folder)]
        if (results / "comparison.json").exists():
            committed = json.loads((results / "comparison.json").read_text())
            commands[case] += ["--baseline", committed["baseline"]]
        for file in sorted(results.glob("*.yaml")):
            if file.name != "sweep.yaml":
                commands[f"{case} reproduced"] = [*commands[case], "--reproduce", str(file)]
    for case, words in commands.items():
        values[case], sentences[case] = report_of(words)
    code, output = command(["reproduce"])
    values["publications"], sentences["publications"] = code, output.splitlines()
    write(plain(values), sentences)


if __name__ == "__main__":
    main()
