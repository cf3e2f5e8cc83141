"""What W&B's schema of a sweep cannot know: whether the training takes these options and logs that metric."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path

from ampcompare import metrics
from ampcompare.arguments import parse
from ampcompare.config import check_option, split_override
from ampcompare.errors import UserError
from ampcompare.sweeps.command import build_command
from ampcompare.sweeps.definition import Sweep, violations_error
from ampcompare.sweeps.parameters import nested

ENTRYPOINT = "run_experiment.py"


def trains_here(sweep: Sweep) -> bool:
    """Whether the sweep runs our own entrypoint, whose options and metrics are known."""
    return sweep.program is not None and Path(sweep.program).name == ENTRYPOINT and "${program}" in sweep.command


def check_sweep(sweep: Sweep, words: Sequence[str]) -> None:
    """Raise UserError for a program that is not there, options it would not take, a metric it never logs.

    `words` are the `key=value` words that go behind every command.
    """
    problems = list(_problems(sweep, words))
    if problems:
        raise violations_error(sweep.path, problems)


def _problems(sweep: Sweep, words: Sequence[str]) -> Iterator[str]:
    if sweep.program and "${program}" in sweep.command and not Path(sweep.program).is_file():
        yield (
            f"program={sweep.program!r}: no such file in {Path.cwd()}; start the sweep from the folder that has it, "
            "or write the path out"
        )
    varied = {parameter.key for parameter in sweep.parameters}
    for word in words:
        key, _ = split_override(word)
        if key in varied:
            yield f"{word}: the sweep varies {key}; take it out of the file or out of the command line"
    if not trains_here(sweep):
        return
    told: set[str] = set()
    for parameter in sweep.parameters:
        where = "parameters." + ".parameters.".join(parameter.path)
        for value in parameter.examples():
            try:
                check_option(parameter.key, str(value))  # as the program will see it
            except UserError as problem:
                if str(problem) not in told:
                    told.add(str(problem))
                    yield f"{where}: {problem}"
    if not told:
        # The words of the command and of the command line, with the first value of everything.
        try:
            parse(_first_command(sweep, words))
        except UserError as problem:
            yield f"the first run would end at once: {problem}"
    name = sweep.metric.name if sweep.metric else None
    if name is not None and not metrics.is_history(name) and name not in metrics.SUMMARY:
        known = sorted(metrics.HISTORY | metrics.SUMMARY)
        near = get_close_matches(name, known, 1, 0.5)
        tail = f"did you mean {near[0]}?" if near else "docs/metrics.md lists every metric"
        yield f"metric.name={name!r}: the training never logs it; {tail}"


def _first_command(sweep: Sweep, words: Sequence[str]) -> list[str]:
    """What the program of the first run would be given, without the program."""
    parameters = nested(sweep.parameters, [parameter.examples()[0] for parameter in sweep.parameters])
    with tempfile.TemporaryDirectory() as folder:
        command = build_command(sweep.command, sweep.program, parameters, Path(folder) / "parameters.json")
        given = command[command.index(str(sweep.program)) + 1 :]
        # A file that is read here and now stands for the words in it.
        texts = [Path(word).read_text() if word.startswith(folder) else word for word in given]
    return [*texts, *words]
