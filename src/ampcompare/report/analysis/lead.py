"""The report's first sentence: what was done here, for a reader who knows nothing of the project."""

from __future__ import annotations

from collections.abc import Sequence

from ampcompare.precision.backends import REGISTRY
from ampcompare.records import RunRecord
from ampcompare.report import words
from ampcompare.report.runs.arithmetic import half_type
from ampcompare.report.runs.groups import BACKEND, Group
from ampcompare.report.runs.settings import NO_DATA, Setting

MOST_NAMED = 6
FULL, HALF, OTHER = "with 32-bit numbers", "with 16-bit numbers where that is safe", "in other ways"
ALL_HALF = "with 16-bit numbers throughout"
SAID = (FULL, HALF, ALL_HALF, OTHER)
ANSWER = "Here is what that changed in speed, memory and {}."


def lead(groups: Sequence[Group], setting: Setting, key: str, quality: str = "accuracy") -> str:
    """What was trained on what, and what was done otherwise each time; `key` is the compared one, `quality`
    what the compared metric is called.

    Of backends: which computed with 32-bit numbers and which with 16-bit ones, as the runs recorded it.
    """
    what = f"A neural network ({setting.model})" if setting.model else "A neural network"
    is_known = setting.data not in ("", NO_DATA)
    learned = f" on {setting.data}" if is_known else ""
    shown = [group for group in groups if not group.is_control]
    if key != BACKEND:
        values = words.some(list(dict.fromkeys(group.value for group in shown)), MOST_NAMED)
        return f"{what} was trained{learned} with {key} {values}. {ANSWER.format(quality)}"
    found: dict[str, list[str]] = {}
    for group in shown:
        found.setdefault(_bits(group), []).append(group.label)
    parts = [f"{said} ({words.some(found[said], MOST_NAMED)})" for said in SAID if said in found]
    return f"{what} was trained{learned} {words.listed(parts)}. {_why(found)}{ANSWER.format(quality)}"


def _why(found: dict[str, list[str]]) -> str:
    """What 16-bit numbers are for, where there are any."""
    is_half = HALF in found or ALL_HALF in found
    return "16 bits can be faster and take less memory, but are less exact. " if is_half else ""


def _bits(group: Group) -> str:
    """Which numbers its runs computed with; of runs that do not agree, or do not say, OTHER."""
    said = {_of_run(figures.run) for figures in group.runs}
    return said.pop() if len(said) == 1 else OTHER


def _of_run(run: RunRecord) -> str:
    backend = REGISTRY.get(str(run.option("backend")))
    if backend and backend.is_fp32:
        return FULL
    if half_type(run) not in ("fp16", "bf16"):
        return OTHER
    return ALL_HALF if backend and backend.updates_half else HALF
