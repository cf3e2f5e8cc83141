"""What tells the runs apart: settings that most others have otherwise, and the machines they ran on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ampcompare.config.schema import LEAVES
from ampcompare.records.tree import as_text, flatten
from ampcompare.report.runs.figures import RunFigures, environment_of
from ampcompare.report.runs.labels import NOT_SET
from ampcompare.report.runs.settings import pooling_settings, sets_apart
from ampcompare.report.words import some

MOST_VALUES = 3


@dataclass(frozen=True)
class Environment:
    """A machine with its software, and the runs that had it: names and values as they are shown."""

    device: str
    facts: dict[str, str]
    packages: dict[str, str]
    runs: list[RunFigures] = field(default_factory=list)


def config_differences(figures: Sequence[RunFigures]) -> list[list[tuple[str, str, str]]]:
    """For each run: (key, its value, the value that most runs have). An option at its default differs in
    nothing from one that its backend does not have.
    """
    settings = [pooling_settings(f) for f in figures]
    keys = dict.fromkeys(key for one in settings for key in one)
    counts = {key: Counter(one.get(key, NOT_SET) for one in settings) for key in keys}
    usual = {
        key: counter.most_common(1)[0][0]
        for key, counter in counts.items()
        if len(counter) > 1 and not counter.keys() <= {NOT_SET, _default(key)}
    }
    every = [[(key, one.get(key, NOT_SET), common) for key, common in usual.items()] for one in settings]
    return [[entry for entry in entries if entry[1] != entry[2]] for entries in every]


def _default(key: str) -> str:
    return as_text(LEAVES[key].default) if key in LEAVES else NOT_SET


def environments_of(figures: Sequence[RunFigures]) -> list[Environment]:
    """Each distinct environment once: device, software and numerics in effect. What else was recorded of it
    (the commit, the card and its state) sets none apart, and is shown with all its values.
    """
    found: dict[str, tuple[Environment, list[dict[str, Any]]]] = {}
    for one in figures:
        environment = environment_of(one.run)
        packages = environment.get("packages")
        shown = {as_text(k): _shown(v) for k, v in packages.items()} if isinstance(packages, Mapping) else {}
        facts = {k: v for k, v in flatten(environment) if v is not None and not k.startswith("packages")}
        own = sorted((k, _shown(v)) for k, v in facts.items() if sets_apart(k))
        place = found.setdefault(
            repr((own, sorted(shown.items()))), (Environment(one.device_words, {}, shown), [])
        )
        place[0].runs.append(one)
        place[1].append(facts)
    for shared, every in found.values():
        keys = dict.fromkeys(key for facts in every for key in facts)
        shared.facts.update({_words(key): _together([f.get(key) for f in every]) for key in keys})
    return [shared for shared, _ in found.values()]


def _words(key: str) -> str:
    return key.replace("_", " ").replace(".", " ")


def _together(values: Sequence[Any]) -> str:
    """The values of several runs: one, a range of numbers, or the first few."""
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool) and abs(v) < 1e15]
    if len(numbers) == len(values) and len(set(numbers)) > 1:
        return f"{min(numbers):g} to {max(numbers):g}"
    return some(list(dict.fromkeys("not recorded" if v is None else _shown(v) for v in values)), MOST_VALUES)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown, value)) or "none"
    return as_text(value)
