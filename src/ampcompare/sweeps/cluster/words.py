"""The words of a batch system: `slurm.partition=gpu`, checked against what submitit hands to sbatch."""

from __future__ import annotations

import json
import math
import os
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
# sbatch would not name the job then, or the array would not be ours.
NOT_MORE = ("array", "parsable", "quiet", "test-only")
LEAST_DELAY = 30  # seconds: of them the run has those that ending the job leaves
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
    if found.get("signal_delay_s", LEAST_DELAY) < LEAST_DELAY:
        expected = f"expected {LEAST_DELAY} seconds or more, in which a run ends and is queued again"
        raise UserError(f"slurm.signal_delay_s={found['signal_delay_s']}: {expected}")
    # true is an option without a value, false one that is left out, such as our requeue
    found["additional_parameters"] = {
        name: value
        for name, value in {"requeue": True, **found.get("additional_parameters", {})}.items()
        if value is not False
    }
    return found


def clusters_of(found: Mapping[str, Any]) -> str:
    """The clusters that these parameters, or the variable that goes before them, name; "": the usual one."""
    return os.environ.get("SBATCH_CLUSTERS") or str(found["additional_parameters"].get("clusters", ""))


def marked(found: Mapping[str, Any], mark: str) -> dict[str, Any]:
    """With a mark by which the job is known in the queue: as its comment, or behind its name where the
    comment is the user's.
    """
    extra = found["additional_parameters"]
    if not (found.get("comment") or "comment" in extra or os.environ.get("SBATCH_COMMENT")):
        return {**found, "comment": mark}
    for key in ("job-name", "job_name"):
        if key in extra:
            return {**found, "additional_parameters": {**extra, key: f"{extra[key]}-{mark}"}}
    return {**found, "job_name": f"{found['job_name']}-{mark}"}


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
        return _more(text, value) if isinstance(value, dict) else _lines(name, text, value)
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if isinstance(default, bool):
        raise UserError(f"slurm.{name}={text!r}: expected true or false")
    if isinstance(default, int) and not (text.isascii() and text.isdigit() and int(text)):
        raise UserError(f"slurm.{name}={text!r}: expected a whole number above 0")
    return int(text) if isinstance(default, int) else text


def _lines(name: str, text: str, items: Sequence[Any]) -> list[str]:
    for item in items:
        if not isinstance(item, str) or not item.isprintable() or not item.strip():
            raise UserError(f"slurm.{name}={text!r}: expected printable words, one in a line, not {item!r}")
    return [*items]


def _more(text: str, options: Mapping[str, Any]) -> dict[str, Any]:
    said = f"slurm.additional_parameters={text!r}"
    for key, value in options.items():
        if key.replace("_", "-") in NOT_MORE:
            raise UserError(f"{said}: goes without {key}, which is for this command to say")
        is_word = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", key)
        if not is_word or not isinstance(value, str | int | float) or not str(value).isprintable():
            raise UserError(f"{said}: expected options of sbatch and printable words, not {key!r}: {value!r}")
    return {**options}


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
