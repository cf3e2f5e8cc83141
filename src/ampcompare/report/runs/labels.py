"""What groups are called: the value that is compared, and what sets groups of one value apart."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ampcompare.report.runs.settings import follows

BACKEND = "backend"
NOT_SET, NULL = "not set", "null"
KEPT = "precision.keep_fp32"
WORDS_THAT_TELL = ("execution", "memory_format", "model.name")
NAMES = {
    "optimizer.fused": "fused optimizer",
    "environment.fused": "fused optimizer",
    "environment.backend_source": "source",
    "environment.model_source": "source of the model",
    "environment.model_parameters": "parameters",
}
SUFFIX_CHARS = 24  # of a longer list of what sets a group apart, a letter stands in


def noun(key: str, many: bool = False) -> str:
    """What is compared, in a sentence: `backend`, `value of batch_size`; or several of it."""
    if key == BACKEND:
        return f"{key}s" if many else key
    return f"value{'s' if many else ''} of {key}"


def differing_keys(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """Keys whose values are not the same in all."""
    keys = dict.fromkeys(key for one in settings for key in one)
    return [key for key in keys if len({one.get(key) for one in settings}) > 1]


def names_of(
    value: str, settings: Sequence[Mapping[str, str]], always: Sequence[str], differing: Sequence[str]
) -> list[str]:
    """A label for each of the groups of one value: `always` are keys that every label shows."""
    # Another backend has other precision settings; its name says enough.
    told = tuple(begins for key in differing for begins in follows(key))
    telling = [key for key in differing if not key.startswith(told)]
    shown = [*always, *(key for key in telling if key not in always)]
    names = []
    for number, one in enumerate(settings):
        parts = [_part(key, one.get(key, NOT_SET)) for key in shown]
        suffix = ", ".join(parts)
        if len(suffix) > SUFFIX_CHARS + sum(len(part) + 2 for part in parts[: len(always)]):
            suffix = ", ".join([*parts[: len(always)], f"setting {number + 1}"])
        names.append(f"{value} · {suffix}" if suffix else value)
    return names


def _part(key: str, value: str) -> str:
    """A setting in a label, briefly: `channels_last`, `tf32 on`, `lr 0.009` for 0.009000000000000001, `fc in
    fp32` or `nothing in fp32` of the modules that were kept so.
    """
    if key == KEPT:
        return f"{'nothing' if value in (NULL, NOT_SET) else value} in fp32"
    if key in WORDS_THAT_TELL:
        return value
    name = NAMES.get(key, key.rpartition(".")[2])
    if value in ("True", "False"):
        return f"{name} {'on' if value == 'True' else 'off'}"
    try:
        return f"{name} {float(value):.6g}" if "." in value else f"{name} {value}"
    except ValueError:
        return f"{name} {value}"


def unique(names: Sequence[str], taken: Collection[str]) -> list[str]:
    """The names, each with a number behind it as long as another group has it."""
    found: list[str] = []
    for name in names:
        free, number = name, 1
        while free in taken or free in found:
            number += 1
            free = f"{name} ({number})"
        found.append(free)
    return found
