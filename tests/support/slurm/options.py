"""Options of sbatch and srun; the words that Slurm has for arrays, signals, dependencies and file names."""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

SHORT = {
    "A": "account",
    "a": "array",
    "C": "constraint",
    "c": "cpus-per-task",
    "D": "chdir",
    "d": "dependency",
    "e": "error",
    "G": "gpus",
    "H": "hold",
    "J": "job-name",
    "M": "clusters",
    "l": "label",
    "N": "nodes",
    "n": "ntasks",
    "o": "output",
    "p": "partition",
    "q": "qos",
    "t": "time",
    "u": "unbuffered",
    "v": "verbose",
    "w": "nodelist",
    "x": "exclude",
}
FLAGS = set("exclusive hold label no-requeue parsable requeue unbuffered verbose".split())
FLAGS |= set("contiguous kill-on-bad-exit overcommit overlap quiet wait".split())
VALUED = {*SHORT.values(), *"comment cpu-bind cpus-per-gpu export gpus-per-node gpus-per-task".split()}
VALUED |= set("gpu-bind gres kill-on-invalid-dep mail-type mail-user mem mem-per-cpu mem-per-gpu".split())
VALUED |= set("mem-bind nice ntasks-per-node ntasks-per-gpu open-mode reservation signal wckey wrap".split())
VALUED |= set("clusters mpi licenses time-min distribution threads-per-core".split())
VALUED -= FLAGS


class BadOption(Exception):
    """What Slurm would refuse, in its words."""


def parse(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Options (flags as "") and what is behind them: the first word that is none, and all that follow it."""
    found: dict[str, str] = {}
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            name, given, value = word[2:].partition("=")
        else:
            name, given, value = SHORT.get(word[1], word[1:]), word[2:], word[2:]
        if name in FLAGS:
            found[name] = ""
        elif name in VALUED:
            if not given and not rest:
                raise BadOption(f"option '--{name}' requires an argument")
            found[name] = value if given else rest.pop(0)
        else:
            raise BadOption(f"unrecognized option '{word}'")
    return found, rest


def of_script(text: str) -> list[str]:
    """The words of its `#SBATCH` lines, which end at the first command."""
    if not text.startswith("#!"):
        raise BadOption("This does not look like a batch script.  The first line must start with #!")
    words: list[str] = []
    for line in text.splitlines()[1:]:
        if line.strip() and not line.startswith("#"):
            break
        if line.startswith("#SBATCH"):
            words += shlex.split(line.removeprefix("#SBATCH"), comments=True)
    return words


def array(words: str) -> tuple[list[int], int]:
    """Indices of `0-9:2,20%4`, and how many may run at a time (0: any number)."""
    listed, _, most = words.partition("%")
    indices: list[int] = []
    for part in listed.split(","):
        matched = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if not matched or (most and not most.isdigit()):
            raise BadOption("Invalid job array specification")
        first, last, step = matched.groups()
        indices += range(int(first), int(last or first) + 1, int(step or 1))
    return sorted(set(indices)), int(most or 0)


@dataclass(frozen=True)
class Warning:
    """`--signal=B:USR1@120`: which signal, whether the batch shell alone gets it, how long before the end."""

    number: int
    to_batch: bool = False
    seconds: int = 60

    @staticmethod
    def of(words: str) -> Warning:
        matched = re.fullmatch(r"(?:([RB]+):)?(?:SIG)?(\w+)(?:@(\d+))?", words)
        if not matched:
            raise BadOption(f"Invalid --signal specification: {words}")
        where, name, seconds = matched.groups()
        try:
            number = int(name) if name.isdigit() else signal.Signals[f"SIG{name.upper()}"]
        except KeyError:
            raise BadOption(f"Invalid --signal specification: {words}") from None
        return Warning(int(number), "B" in (where or ""), int(seconds or 60))


@dataclass(frozen=True)
class Dependency:
    """One of `afterany:12:13,afterok:14`: all have to hold."""

    kind: str
    ids: tuple[str, ...] = field(default=())

    @staticmethod
    def all_of(words: str) -> list[Dependency]:
        found = []
        for part in filter(None, words.split(",")):
            kind, *ids = part.split(":")
            if kind not in ("after", "afterany", "afterok", "afternotok", "singleton"):
                raise BadOption(f"Job dependency problem: {words}")
            found.append(Dependency(kind, tuple(ids)))
        return found


def file_name(pattern: str, names: dict[str, object]) -> str:
    """A pattern such as `%A_%a.out`, `%4j` too; an unknown letter stays."""

    def replaced(found: re.Match[str]) -> str:
        width, letter = found.groups()
        if letter == "%":
            return "%"
        value = names.get(letter)
        return found[0] if value is None else str(value).zfill(int(width or 0))

    return re.sub(r"%(\d*)([a-zA-Z%])", replaced, pattern)


def numbered(ids: Iterable[str]) -> list[str]:
    """Ids of `12,13_4`."""
    return [one for word in ids for one in word.split(",") if one]
