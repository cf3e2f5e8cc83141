"""The words of a batch system: `slurm.partition=gpu`, checked against what submitit hands to sbatch."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ampcompare.config.load import split_override
from ampcompare.errors import UserError, did_you_mean

PREFIX = "slurm."
MINUTES = 240  # of a run, where nobody says; submitit's own 5 would end most trainings
STRUCTURED = {"additional_parameters": dict, "setup": list, "teardown": list, "srun_args": list}
# A point is one process; an array's own options are not for a word.
OURS = ("nodes", "ntasks_per_node", "use_srun")
_GPU = ("gpus_per_node", "gpus_per_task", "num_gpus", "gres", "mem_per_gpu", "cpus_per_gpu")
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


def split(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The batch system's words by name, and those of the runs."""
    pairs = [(word, *split_override(word)) for word in words]
    own = {key.removeprefix(PREFIX): value for _, key, value in pairs if key.startswith(PREFIX)}
    return own, [word for word, key, _ in pairs if not key.startswith(PREFIX)]


def parameters(given: Mapping[str, str], known: Mapping[str, Any], workers: int | None) -> dict[str, Any]:
    """The words as submitit's parameters. `known` are those that it takes, with their defaults; `workers` is
    the most runs at a time. Raises UserError.
    """
    allowed = sorted(known.keys() - {*OURS})
    found: dict[str, Any] = {}
    for name, text in given.items():
        if name not in allowed:
            if name in OURS:
                raise UserError(f"slurm.{name}={text!r}: a run of the array is one process; leave it out")
            near = did_you_mean(name, allowed)
            expected = f"expected one of {', '.join(allowed)}"
            raise UserError(f"slurm.{name}={text!r}: {expected}{'; ' if near else ''}{near}")
        found[name] = _typed(name, text, known[name])
    if workers is not None and "array_parallelism" in found:
        what = f"slurm.array_parallelism={found['array_parallelism']} and --workers {workers}"
        raise UserError(f"{what}: both say how many run at a time; leave one out")
    if workers is not None:
        found["array_parallelism"] = workers
    found.setdefault("time", MINUTES)
    found["additional_parameters"] = {"requeue": True, **found.get("additional_parameters", {})}
    return found


def of_report(found: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of the job that makes the report: the runs' own, without a GPU."""
    kept = {name: value for name, value in found.items() if name not in (*_GPU, "array_parallelism")}
    extra = kept["additional_parameters"]
    named = {name.replace("_", "-") for name in _GPU} | {"gpus"}
    return kept | {"additional_parameters": {name: v for name, v in extra.items() if name not in named}}


def _typed(name: str, text: str, default: Any) -> Any:
    # sbatch reads them from lines of a script: a line break would begin another one, a command's.
    if not text.isprintable() or not text.strip():
        raise UserError(f"slurm.{name}={text!r}: expected a printable word")
    if name == "time":
        return minutes(text)
    if kind := STRUCTURED.get(name):
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        if not isinstance(value, kind):
            example = '{"reservation": "mine"}' if kind is dict else '["module load cuda"]'
            raise UserError(f"slurm.{name}={text!r}: expected JSON, such as {example}")
        return value
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if isinstance(default, bool):
        raise UserError(f"slurm.{name}={text!r}: expected true or false")
    if isinstance(default, int) and not (text.isascii() and text.isdigit() and int(text)):
        raise UserError(f"slurm.{name}={text!r}: expected a whole number above 0")
    return int(text) if isinstance(default, int) else text


def minutes(text: str) -> int:
    """A time limit as sbatch takes it, in whole minutes, rounded up. Raises UserError.

    >>> minutes("1:30:00"), minutes("90"), minutes("1-12"), minutes("0:30")
    (90, 90, 2160, 1)
    """
    match = _TIME.fullmatch(text) if text.isascii() else None
    if not match:
        expected = "expected minutes, hours:minutes:seconds or days-hours"
        raise UserError(f"slurm.time={text!r}: {expected}")
    days, *rest = (None if part is None else int(part) for part in match.groups())
    first, second, third = rest
    if days is not None:  # days-hours[:minutes[:seconds]]
        total = days * 1440 + (first or 0) * 60 + (second or 0) + (third or 0) / 60
    elif third is not None:  # hours:minutes:seconds
        total = (first or 0) * 60 + (second or 0) + third / 60
    else:  # minutes[:seconds]
        total = (first or 0) + (second or 0) / 60
    if not total:
        raise UserError(f"slurm.time={text!r}: expected a time above 0")
    return math.ceil(total)
