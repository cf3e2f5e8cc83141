"""What each run's setting has that the others' have not."""

from __future__ import annotations

from collections import Counter

from ampcompare.report.analysis.settings import settings_of
from ampcompare.report.analysis.verdict import Analysis

NOT_SET = "not set"


def config_differences(analysis: Analysis) -> list[list[tuple[str, str, str]]]:
    """For each run, in the order of `analysis.figures`: (key, its value, the value that most runs have)."""
    settings = [settings_of(f) for f in analysis.figures]
    counts: dict[str, Counter[str]] = {}
    for one in settings:
        for key in one:
            counts.setdefault(key, Counter())
    for key, counter in counts.items():
        counter.update(one.get(key, NOT_SET) for one in settings)
    usual = {key: counter.most_common(1)[0][0] for key, counter in counts.items() if len(counter) > 1}
    return [
        [
            (key, one.get(key, NOT_SET), common)
            for key, common in usual.items()
            if one.get(key, NOT_SET) != common
        ]
        for one in settings
    ]
