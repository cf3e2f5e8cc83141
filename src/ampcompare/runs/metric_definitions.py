"""What a program declared about the keys that it logs, with W&B's `define_metric`.

A `.wandb` file has a protobuf MetricRecord for each definition. On the server, the definitions are a list in
the run's config (`_wandb`, there `m`): each is the same record as a mapping from field numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

GOALS = {1: "minimize", 2: "maximize"}  # W&B's enum; 0 is not set
# Field numbers of a MetricRecord, and of its summary.
NAME = "1"
GLOB_NAME = "2"
STEP = "4"
STEP_INDEX = "5"
SUMMARY = "7"
GOAL = "8"
MIN = 1
MAX = 2
BEST = 4


@dataclass(frozen=True)
class MetricDefinition:
    """The definition of one key, or of several by a pattern.

    Attributes:
        step: The key that counts the steps of this one, "" for W&B's own step.
        goal: `maximize` or `minimize`, "" where it is not declared.
        is_best: Whether the run's summary keeps the best value and not the last.
    """

    step: str = ""
    goal: str = ""
    is_best: bool = False

    @classmethod
    def from_record(cls, record: Any) -> "MetricDefinition":
        """Return what a protobuf MetricRecord declares."""
        summary = record.summary
        summaries = {MIN: summary.min, MAX: summary.max, BEST: summary.best}
        kept = [number for number, is_kept in summaries.items() if is_kept]
        return cls._from_numbers(record.step_metric, record.goal, kept)

    @classmethod
    def _from_numbers(cls, step: str, goal: Any, summaries: list[Any]) -> "MetricDefinition":
        """Return the definition; a summary of the largest or smallest value declares a goal, too.

        A summary with both of them, such as `min,max`, declares none.

        Args:
            goal: A key of GOALS, or anything else for no goal.
            summaries: Some of MIN, MAX and BEST.
        """
        declared = GOALS.get(goal, "") if isinstance(goal, int) else ""
        keeps_max = MAX in summaries
        keeps_min = MIN in summaries
        if not declared and keeps_max != keeps_min:
            declared = "maximize" if keeps_max else "minimize"
        return cls(step, declared, is_best=keeps_max or keeps_min or BEST in summaries)

    @classmethod
    def from_config(cls, config: Any) -> "dict[str, MetricDefinition]":
        """Return the definitions in `_wandb` of a config from the server, which may hold anything."""
        entries = config.get("m") if isinstance(config, Mapping) else None
        records = entries if isinstance(entries, list) else []
        definitions = {}
        for record in records:
            name = _text(record, NAME) or _text(record, GLOB_NAME)
            if not name:
                continue
            summaries = record.get(SUMMARY)
            if not isinstance(summaries, list):
                summaries = []
            definitions[name] = cls._from_numbers(_step(record, records), record.get(GOAL), summaries)
        return definitions


def _text(record: Any, field: str) -> str:
    value = record.get(field) if isinstance(record, Mapping) else None
    return value if isinstance(value, str) else ""


def _step(record: Mapping[str, Any], records: list[Any]) -> str:
    """Return the key that counts the steps. The record has the index of its definition, counted from 1."""
    step = _text(record, STEP)
    if step:
        return step
    index = record.get(STEP_INDEX)
    if not isinstance(index, int) or not 0 < index <= len(records):
        return ""
    return _text(records[index - 1], NAME)


def definition_of(key: str, definitions: dict[str, MetricDefinition]) -> MetricDefinition:
    """Return the definition of a key: its own, else the longest pattern's (`val/*`), else an empty one."""
    patterns = [name for name in definitions if "*" in name and fnmatchcase(key, name)]
    name = key if key in definitions else max(patterns, key=len, default="")
    return definitions.get(name, MetricDefinition())
