"""What tells the runs apart: settings that most others have otherwise, and the machines they ran on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ampcompare.report.analysis.figures import RunFigures, environment_of
from ampcompare.report.analysis.settings import pooling_settings

NOT_SET = "not set"


@dataclass(frozen=True)
class Environment:
    """A machine with its software, and the runs that had it: names and values as they are shown."""

    device: str
    facts: dict[str, str]
    packages: dict[str, str]
    runs: list[RunFigures] = field(default_factory=list)


def config_differences(figures: Sequence[RunFigures]) -> list[list[tuple[str, str, str]]]:
    """For each run: (key, its value, the value that most runs have)."""
    settings = [pooling_settings(f) for f in figures]
    keys = dict.fromkeys(key for one in settings for key in one)
    counts = {key: Counter(one.get(key, NOT_SET) for one in settings) for key in keys}
    usual = {key: counter.most_common(1)[0][0] for key, counter in counts.items() if len(counter) > 1}
    every = [[(key, one.get(key, NOT_SET), common) for key, common in usual.items()] for one in settings]
    return [[entry for entry in entries if entry[1] != entry[2]] for entries in every]


def environments_of(figures: Sequence[RunFigures]) -> list[Environment]:
    """Each distinct environment once."""
    found: dict[str, Environment] = {}
    for one in figures:
        environment = dict(environment_of(one.run))
        key = json.dumps(environment, sort_keys=True, default=str)
        packages = environment.pop("packages", None)
        facts = {str(k).replace("_", " "): _shown(v) for k, v in environment.items() if v is not None}
        shown = {str(k): _shown(v) for k, v in packages.items()} if isinstance(packages, dict) else {}
        found.setdefault(key, Environment(one.device_words, facts, shown)).runs.append(one)
    return list(found.values())


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)
