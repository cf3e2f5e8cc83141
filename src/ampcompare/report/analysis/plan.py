"""The plan of an experiment, as its sweep file wrote it into every run's config before any of them began."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ampcompare.records import RunRecord
from ampcompare.report.runs.metric import ComparedMetric
from ampcompare.report.words import listed, plural, printable, short, some

GROUP = "plan"
CONTROLS = ("none", "bookends")
MOST_LOOKS = 100
MOST_SEEDS = 10_000  # more is a slip of the keyboard


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
    def is_there(self) -> bool:
        """Whether anything was planned."""
        return any((self.margin, self.target, self.looks, self.max_seeds, self.has_control))

    @property
    def number_of_looks(self) -> int:
        """How often it was planned to look, each time with a chance to err."""
        return max(1, len(self.looks))

    @property
    def has_control(self) -> bool:
        """Whether an A/A arm was planned."""
        return self.control not in ("", "none")


def plan_of(runs: Sequence[RunRecord]) -> Plan:
    """The plan that the runs share. Used is only what is such a value, and the same wherever it is said."""
    found: dict[str, Any] = {}
    doubts: list[str] = []
    for name, (read, allowed) in FIELDS.items():
        said = [(run, value) for run in runs if (value := run.option(f"{GROUP}.{name}")) is not None]
        known = [(run, read(value)) for run, value in said]
        odd = [(run, raw) for (run, value), (_, raw) in zip(known, said, strict=True) if value is None]
        if odd:
            shown = listed(dict.fromkeys(repr(short(printable(raw), 24)) for _, raw in odd[:3]))
            doubts.append(
                f"{GROUP}.{name} of {some([printable(run.name) for run, _ in odd])} is {shown}, not "
                f"{allowed}: not used."
            )
        values = list(dict.fromkeys(value for _, value in known if value is not None))
        if len(values) > 1:
            which = some([_shown(value) for value in values])
            doubts.append(f"The runs disagree about {GROUP}.{name} ({which}): none of these is used.")
        elif values:
            found[name] = values[0]
            if without := [printable(run.name) for run in runs if run.option(f"{GROUP}.{name}") is None]:
                doubts.append(
                    f"{GROUP}.{name} ({_shown(values[0])}) is not in the config of {some(without)}."
                )
    return Plan(**found, doubts=tuple(doubts))


def planned_words(plan: Plan, metric: ComparedMetric) -> str:
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


def deviations(
    plan: Plan, metric: ComparedMetric, target: float | None, seeds: int, is_open: bool, has_control: bool
) -> list[str]:
    """In what the comparison is not as it was planned. `seeds` are the fewest of any compared group."""
    found = []
    if plan.margin is not None and metric.margin != plan.margin:
        found.append(f"the margin is {metric.tolerance}")
    if plan.target is not None and target is not None and target != metric.as_shown(plan.target):
        found.append(f"the target is {metric.show_value(target)}")
    if plan.looks and seeds and seeds not in plan.looks:
        found.append(f"{plural(seeds, 'seed')} so far is no planned look")
    if plan.max_seeds is not None and seeds < plan.max_seeds and is_open:
        found.append(f"{plural(seeds, 'seed')} of {plan.max_seeds}, with claims still undecided")
    if plan.max_seeds is not None and seeds > plan.max_seeds:
        found.append(f"{seeds} seeds were run")
    if plan.has_control and not has_control:
        found.append("there is no control")
    return found


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # a whole number beyond 1e308
        return None
    return number if math.isfinite(number) else None


def _above_0(value: Any) -> float | None:
    number = _number(value)
    return number if number is not None and number > 0 else None


def _seeds(value: Any) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number == int(number) and 2 <= number <= MOST_SEEDS else None


def _looks(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, list | tuple) or not 0 < len(value) <= MOST_LOOKS:
        return None
    looks = [_seeds(one) for one in value]
    whole = tuple(sorted({look for look in looks if look is not None}))
    return whole if None not in looks else None


def _control(value: Any) -> str | None:
    return value if isinstance(value, str) and value in CONTROLS else None


def _shown(value: Any) -> str:
    return (
        listed(value)
        if isinstance(value, tuple)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


FIELDS = {  # of the config's group -> how it is read, and what it may be
    "margin": (_above_0, "a number above 0"),
    "target": (_number, "a number"),
    "looks": (_looks, f"a list of up to {MOST_LOOKS} numbers of seeds from 2"),
    "max_seeds": (_seeds, "a number of seeds from 2"),
    "control": (_control, "none or bookends"),
}
