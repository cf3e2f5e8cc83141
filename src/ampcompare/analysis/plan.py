"""The plan of an experiment, as its sweep file wrote it into every run's config before any of them began."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ampcompare.analysis.grouping.compared_metric import ComparedMetric
from ampcompare.config.schema import OPTIONS
from ampcompare.errors import UserError
from ampcompare.runs import RunRecord
from ampcompare.runs.nested import as_text
from ampcompare.runtime.formatting import listed, printable, short, some

FIELDS = ("margin", "target", "looks", "max_seeds", "control")
MAX_COUNT = 10_000  # seeds, and looks: more is a slip of the keyboard


@dataclass(frozen=True)
class Plan:
    """What was laid down beforehand; None or empty is not planned.

    `margin` is in the metric's shown unit and `target` in the logged one, as in the options; `looks` the
    numbers of seeds at which the runs are looked at. `doubts` are sentences: what of it cannot be used.
    """

    margin: float | None = None
    target: float | None = None
    looks: tuple[int, ...] = ()
    max_seeds: int | None = None
    control: str = ""
    doubts: tuple[str, ...] = ()

    @property
    def has_control(self) -> bool:
        return self.control not in ("", "none")

    @property
    def is_planned(self) -> bool:
        return any((self.margin, self.target, self.looks, self.max_seeds, self.has_control))


def read_plan(runs: Sequence[RunRecord]) -> Plan:
    """The plan that the runs share. Used is only what is such a value, and the same in all that have it; of
    looks all that any run has.
    """
    found: dict[str, Any] = {}
    doubts: list[str] = []
    for name in FIELDS:
        said = {run.id: value for run in runs if (value := run.option(f"plan.{name}")) is not None}
        read = {_read(name, value) for value in said.values()}
        if len(read) > 1 or None in read:
            shown = dict.fromkeys(short(printable(as_text(value)), 24) for value in said.values())
            use = "none of these is used"
            if name == "looks" and (looks := {look for one in read for look in one or ()}):
                # As of a plan that was extended: with fewer looks the intervals would be too narrow.
                found[name], use = tuple(sorted(looks)), "every look of these counts"
            doubts.append(f"The runs' plan.{name} is {some(list(shown))}: {use}.")
        elif read:
            found[name] = read.pop()
            if without := [printable(run.name) for run in runs if run.id not in said]:
                doubts.append(f"plan.{name} is not in the config of {some(without)}.")
    return Plan(**found, doubts=tuple(doubts))


def describe_plan(plan: Plan, metric: ComparedMetric) -> str:
    """`planned: margin 0.5 points, looks at 3, 6 and 10 seeds`; nothing where nothing was."""
    said = []
    if plan.margin is not None:
        said.append(f"margin {metric.with_unit(f'{plan.margin:g}')}")
    if plan.target is not None:
        said.append(f"target {metric.show_value(metric.as_shown(plan.target))}")
    if plan.looks:
        said.append(f"looks at {listed(plan.looks)} seeds")
    if plan.max_seeds is not None:
        said.append(f"{plan.max_seeds} seeds at most")
    if plan.has_control:
        said.append(f"the baseline once more as a control ({plan.control})")
    return f"planned: {', '.join(said)}" if said else ""


def _read(name: str, value: Any) -> Any:
    """The value as the option takes it; None where it can be none of that name."""
    spec = OPTIONS[f"plan.{name}"]
    try:
        read = spec.convert(value)
        spec.check(read, value)
    except UserError:
        return None
    if read is None:  # an empty text
        return None
    kind: Any = int if name == "looks" else spec.type
    parts: list[Any] = read if name == "looks" else [read]
    if not 0 < len(parts) <= MAX_COUNT or any(
        type(p) is not kind or (kind is int and p > MAX_COUNT) for p in parts
    ):
        return None
    return tuple(sorted({*parts})) if name == "looks" else read
