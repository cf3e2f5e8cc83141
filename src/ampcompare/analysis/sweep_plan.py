"""The plan of an experiment, which its sweep file wrote into every run's config before the first run."""

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
MAX_COUNT = 10_000  # largest number of seeds and looks; more is a typing error


@dataclass(frozen=True)
class Plan:
    """What was fixed beforehand; None or empty if it was not planned.

    Attributes:
        margin: Equivalence margin, in the shown unit of the metric.
        target: Target value of the metric, as logged.
        looks: Numbers of seeds at which the runs are analysed.
        max_seeds: The largest number of seeds.
        control: The A/A control.
        doubts: One sentence for each part of the plan that cannot be used.
    """

    margin: float | None = None
    target: float | None = None
    looks: tuple[int, ...] = ()
    max_seeds: int | None = None
    control: str = ""
    doubts: tuple[str, ...] = ()

    @property
    def has_control(self) -> bool:
        """Return whether an A/A control was planned."""
        return self.control not in ("", "none")

    @property
    def is_planned(self) -> bool:
        """Return whether anything was planned."""
        return any((self.margin, self.target, self.looks, self.max_seeds, self.has_control))


def read_plan(runs: Sequence[RunRecord]) -> Plan:
    """Return the plan that the runs share.

    A value counts if it is valid and the same in all runs that have it. All looks of all runs count.
    """
    values: dict[str, Any] = {}
    doubts: list[str] = []
    missing_in: dict[tuple[str, ...], list[str]] = {}  # fields by the names of the runs that lack them
    for name in FIELDS:
        recorded = {run.id: value for run in runs if (value := run.option(f"plan.{name}")) is not None}
        parsed = {_read(name, value) for value in recorded.values()}
        if len(parsed) > 1 or None in parsed:
            texts = dict.fromkeys(short(printable(as_text(value)), 24) for value in recorded.values())
            consequence = "no value is used"
            if name == "looks" and (
                looks := {look for parsed_looks in parsed for look in parsed_looks or ()}
            ):
                # The plan may have been extended. With fewer looks the intervals would be too narrow.
                values[name], consequence = tuple(sorted(looks)), "all of these looks count"
            doubts.append(
                f"The runs record different values of plan.{name} ({some(list(texts))}): {consequence}."
            )
        elif parsed:
            values[name] = parsed.pop()
            if missing := tuple(printable(run.name) for run in runs if run.id not in recorded):
                missing_in.setdefault(missing, []).append(f"plan.{name}")
    for names, fields in missing_in.items():
        doubts.append(f"Missing in the config of {some(list(dict.fromkeys(names)))}: {listed(fields)}.")
    return Plan(**values, doubts=tuple(doubts))


def describe_plan(plan: Plan, metric: ComparedMetric) -> str:
    """Return the plan in words, such as `planned: margin 0.5 points, looks at 3, 6 and 10 seeds`, or ""."""
    parts = []
    if plan.margin is not None:
        parts.append(f"margin {metric.with_unit(f'{plan.margin:g}')}")
    if plan.target is not None:
        parts.append(f"target {metric.show_value(metric.as_shown(plan.target))}")
    if plan.looks:
        parts.append(f"looks at {listed(plan.looks)} seeds")
    if plan.max_seeds is not None:
        parts.append(f"at most {plan.max_seeds} seeds")
    if plan.has_control:
        parts.append(f"A/A control ({plan.control})")
    return f"planned: {', '.join(parts)}" if parts else ""


def _read(name: str, value: Any) -> Any:
    """Convert a value as its option does; None if the option does not allow it."""
    spec = OPTIONS[f"plan.{name}"]
    try:
        converted = spec.convert(value)
        spec.check(converted, value)
    except UserError:
        return None
    if converted is None:  # an empty text
        return None
    kind: Any = int if name == "looks" else spec.type
    parts: list[Any] = converted if name == "looks" else [converted]
    if not 0 < len(parts) <= MAX_COUNT or any(
        type(p) is not kind or (kind is int and p > MAX_COUNT) for p in parts
    ):
        return None
    return tuple(sorted({*parts})) if name == "looks" else converted
