"""The words of a batch system, `slurm.partition=gpu`: submitit's parameters. It refuses those it has not."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ampcompare.config.load import split_override
from ampcompare.config.trees import read_word
from ampcompare.errors import UserError

PREFIX = "slurm."
MINUTES = 240  # of a run, where nobody says; submitit's own 5 would end most trainings
ONE_PROCESS = ("nodes", "ntasks_per_node", "use_srun")
# The queue would not tell which jobs they are, or sbatch not what it has queued.
OURS = ("array", "clusters", "job-name", "parsable", "quiet", "test-only")
STRUCTURED = {"additional_parameters": dict, "setup": list, "teardown": list, "srun_args": list}
OF_RUNS = re.compile(r".*gpu|gres|tres|array_parallelism")  # not of the report
NUMBERS = ("array_parallelism", "signal_delay_s")
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", re.ASCII)


def split(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The batch system's words by name, and those of the runs."""
    pairs = [(word, *split_override(word)) for word in words]
    own = {key.removeprefix(PREFIX): value for _, key, value in pairs if key.startswith(PREFIX)}
    return own, [word for word, key, _ in pairs if not key.startswith(PREFIX)]


def parameters(given: Mapping[str, str], workers: int | None = None) -> dict[str, Any]:
    """The words as submitit's parameters; `workers` is the most runs at a time. Raises UserError for what
    submitit would take and an array cannot have.
    """
    found: dict[str, Any] = {"time": MINUTES}
    for name, text in given.items():
        said = f"{PREFIX}{name}={text!r}"
        if name in ONE_PROCESS:
            raise UserError(f"{said}: a run of the array is one process; leave it out")
        # sbatch reads them from lines of a script: a line break would begin another one, a command's.
        if not text.isprintable() or not text.strip():
            raise UserError(f"{said}: expected a printable word")
        # All else is a text, as sbatch has it: an account may begin with 0, a node be called 1e3.
        is_typed = text in ("true", "false") or text[0] in "[{" or name in NUMBERS
        found[name] = minutes(text) if name == "time" else read_word(said, text) if is_typed else text
        if not isinstance(found[name], STRUCTURED.get(name, object)):
            such = '{"reservation": "mine"}' if name == "additional_parameters" else '["module load cuda"]'
            raise UserError(f"{said}: expected JSON, such as {such}")
    extra = found.get("additional_parameters", {})
    if taken := [key for key in extra if key.replace("_", "-") in OURS]:
        said = f"{PREFIX}additional_parameters={extra!r}"
        raise UserError(f"{said}: goes without {taken[0]}, which is for this command to say")
    # true is an option without a value, false one that is left out, such as our requeue
    extra = {name: value for name, value in {"requeue": True, **extra}.items() if value is not False}
    return found | {"additional_parameters": extra} | ({"array_parallelism": workers} if workers else {})


def of_report(found: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of the job that makes the report: the runs' own, but for GPUs, however written."""

    def without(options: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in options.items() if not OF_RUNS.match(name)}

    return without(found) | {"additional_parameters": without(found["additional_parameters"])}


def minutes(text: str) -> int:
    """A time limit as sbatch takes it, in whole minutes, rounded up. Raises UserError.

    >>> minutes("1:30:00"), minutes("90"), minutes("1-12"), minutes("0:30")
    (90, 90, 2160, 1)
    """
    match = _TIME.fullmatch(text)
    days, parts = match and match[1], [int(part) for part in match.groups()[1:] if part] if match else []
    # days-hours[:minutes[:seconds]], hours:minutes:seconds; minutes[:seconds]
    units = (60, 1, 1 / 60) if days or len(parts) == 3 else (1, 1 / 60)
    total = 1440 * int(days or 0) + sum(unit * part for unit, part in zip(units, parts, strict=False))
    if not total:
        expected = "expected minutes, hours:minutes:seconds or days-hours, above 0"
        raise UserError(f"{PREFIX}time={text!r}: {expected}")
    return math.ceil(total)
