"""Several runs in one process, one after the other: `ampcompare run KEY=VALUE ... --runs FILE`.

The runs may differ only in the seed. Each is a run of its own: it has its own id, record, log lines,
checkpoints and end. The runs share what takes long at the start of a process: imports, data in memory, and
compiled code. FILE is a JSON list with an entry for each run:

    [{"overrides": ["seed=1"]},
     {"overrides": ["seed=2"], "environment": {"WANDB_RUN_ID": "abc"}, "log": "logs/abc.log"}]

`overrides` are added to those of the command line, `environment` to the environment during this run. A run
with a `log` writes its output there. The process ends at the first run that does not finish, with the exit
code of that run. FILE.progress tells how far the process came: it gets a line `begin N` before run number N
(from 0) and a line `end N` once that run has finished.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ampcompare.errors import UserError, reason

if TYPE_CHECKING:
    from ampcompare.config.load import Config

FLAG = "--runs"
NEEDS_VARIABLE = "AMPCOMPARE_SWEEP_NEEDS"  # what a sweep needs of the machine, for its first processes
# Options in which the runs of one process may differ: none of them changes what a seed trains.
PER_RUN = ("seed", "resume", "wandb", "plan")
SHAPE = '[{"overrides": ["seed=1"]}, {"overrides": ["seed=2"]}]'


@dataclass(frozen=True)
class SeriesRun:
    """What distinguishes one run of a series.

    Attributes:
        overrides: Overrides that are added to those of the command line.
        environment: Variables of the environment during the run.
        log: The file for the output of the run; "" leaves the output where it is.
    """

    overrides: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    log: str = ""

    @contextmanager
    def environment_set(self) -> Iterator[None]:
        """Add the variables of the run to the environment while the body runs."""
        before = {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value

    def redirect_output(self) -> None:
        """Write stdout and stderr to the log from here on."""
        if not self.log:
            return
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        path = Path(self.log)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            for descriptor in (1, 2):
                os.dup2(file.fileno(), descriptor)


class SeriesProgress:
    """Writes how far a series of runs has come, for the program that started it.

    Args:
        runs_file: The file that lists the runs.
    """

    def __init__(self, runs_file: Path) -> None:
        self.path = progress_file(runs_file)
        self.path.unlink(missing_ok=True)

    def begin(self, number: int) -> None:
        """Note that a run begins."""
        self._write(f"begin {number}")

    def end(self, number: int) -> None:
        """Note that a run has finished with exit code 0."""
        self._write(f"end {number}")

    def _write(self, line: str) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def progress_file(runs_file: Path) -> Path:
    """Return the file in which a series of runs notes its progress."""
    return runs_file.with_name(f"{runs_file.name}.progress")


def read_progress(runs_file: Path) -> tuple[list[int], list[int]]:
    """Return the numbers of the runs that have begun, and of those that have finished."""
    try:
        lines = progress_file(runs_file).read_text(encoding="utf-8").split("\n")[:-1]  # whole lines
    except OSError:
        lines = []
    events = [line.partition(" ") for line in lines]
    begun, ended = ([int(number) for event, _, number in events if event == e] for e in ("begin", "end"))
    return begun, ended


def take_runs_file(arguments: Sequence[str]) -> tuple[list[str], Path | None]:
    """Return the words of a command line without `--runs FILE`, and the file.

    Raises:
        UserError: The file is not named.
    """
    words, file = [], None
    rest = iter(arguments)
    for word in rest:
        key, equals, value = word.partition("=")
        if key != FLAG:
            words.append(word)
            continue
        value = value if equals else next(rest, "")
        if not value:
            raise UserError(f"{FLAG}: expected a JSON file after it, with {SHAPE}")
        file = Path(value)
    return words, file


def read_runs(file: Path) -> list[SeriesRun]:
    """Return the runs that a file lists.

    Raises:
        UserError: The file cannot be read, or has another shape.
    """
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise UserError(f"{FLAG} {file}: cannot be read ({reason(problem)}); expected {SHAPE}") from None
    if not isinstance(entries, list) or not entries:
        raise UserError(f"{FLAG} {file}: expected a list of runs, {SHAPE}")
    runs = []
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict) or not _is_run(entry):
            raise UserError(
                f"{FLAG} {file}: entry {number} is {entry!r}; expected an object with the keys overrides "
                "(a list of texts), environment (texts by name) and log (a path)"
            )
        runs.append(SeriesRun(**entry))
    return runs


def _is_run(entry: Mapping[str, object]) -> bool:
    overrides, environment = entry.get("overrides", []), entry.get("environment", {})
    return (
        entry.keys() <= set(SeriesRun.__dataclass_fields__)
        and isinstance(overrides, list)
        and isinstance(environment, dict)
        and all(isinstance(text, str) for text in (*overrides, *environment.values(), entry.get("log", "")))
    )


def check_only_seeds_differ(configs: Sequence[Config], file: Path) -> None:
    """Raise UserError unless the runs of a series differ only in the seed."""
    first = configs[0].to_dict()
    for number, config in enumerate(configs):
        own = config.to_dict()
        for key in own:
            if key not in PER_RUN and own[key] != first[key]:
                raise UserError(
                    f"{FLAG} {file}: {key} is {own[key]!r} in entry {number} and {first[key]!r} in entry 0; "
                    "the runs of one process may differ only in the seed"
                )
