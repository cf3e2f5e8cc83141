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
NAME, GLOB_NAME, STEP, STEP_INDEX, SUMMARY, GOAL = "1", "2", "4", "5", "7", "8"
MIN, MAX, BEST = 1, 2, 4


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
        return cls._of(record.step_metric, record.goal, [number for number in summaries if summaries[number]])

    @classmethod
    def _of(cls, step: str, goal: Any, summaries: list[Any]) -> "MetricDefinition":
        """Return the definition; a summary of the largest or smallest value declares a goal, too.

        A summary with both of them, such as `min,max`, declares none.
        """
        by_summary = ""
        if (MAX in summaries) != (MIN in summaries):
            by_summary = "maximize" if MAX in summaries else "minimize"
        declared = GOALS.get(goal, "") if isinstance(goal, int) else ""
        return cls(step, declared or by_summary, any(number in summaries for number in (MIN, MAX, BEST)))

    @classmethod
    def from_config(cls, config: Any) -> "dict[str, MetricDefinition]":
        """Return the definitions in `_wandb` of a config from the server, which may hold anything."""
        entries = config.get("m") if isinstance(config, Mapping) else None
        records = entries if isinstance(entries, list) else []
        definitions = {}
        for record in records:
            if name := _text(record, NAME) or _text(record, GLOB_NAME):
                summary = record.get(SUMMARY)
                summaries = summary if isinstance(summary, list) else []
                definitions[name] = cls._of(_step(record, records), record.get(GOAL), summaries)
        return definitions


def _text(record: Any, field: str) -> str:
    value = record.get(field) if isinstance(record, Mapping) else None
    return value if isinstance(value, str) else ""


def _step(record: Mapping[str, Any], records: list[Any]) -> str:
    """Return the key that counts the steps. The record has the index of its definition, counted from 1."""
    if step := _text(record, STEP):
        return step
    index = record.get(STEP_INDEX)
    return _text(records[index - 1], NAME) if isinstance(index, int) and 0 < index <= len(records) else ""


def definition_of(key: str, definitions: dict[str, MetricDefinition]) -> MetricDefinition:
    """Return the definition of a key: its own, else the longest pattern's (`val/*`), else an empty one."""
    patterns = [name for name in definitions if "*" in name and fnmatchcase(key, name)]
    name = key if key in definitions else max(patterns, key=len, default="")
    return definitions.get(name, MetricDefinition())
