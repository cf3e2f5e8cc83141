"""What a program declared of the keys that it logs: W&B's `define_metric`."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

GOALS = {1: "minimize", 2: "maximize"}  # W&B's enum; 0 is not set


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
        """Return what a protobuf MetricRecord declares; its summary of the largest value is a goal, too."""
        kept = record.summary
        goal = GOALS.get(record.goal, "") or ("maximize" if kept.max else "minimize" if kept.min else "")
        return cls(record.step_metric, goal, bool(kept.best or kept.min or kept.max))


def definition_of(key: str, definitions: dict[str, MetricDefinition]) -> MetricDefinition:
    """Return the definition of a key: its own, else the longest pattern's (`val/*`), else an empty one."""
    patterns = [name for name in definitions if "*" in name and fnmatchcase(key, name)]
    name = key if key in definitions else max(patterns, key=len, default="")
    return definitions.get(name, MetricDefinition())
