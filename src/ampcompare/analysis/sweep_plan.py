"""The plan of an experiment, which its sweep file wrote into every run's config before the first run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from ampcompare.analysis.grouping.compared_metric import ComparedMetric
from ampcompare.config.schema import OPTIONS, PLAN_RULE
from ampcompare.errors import UserError
from ampcompare.runs import RunRecord
from ampcompare.runs.nested import as_text
from ampcompare.runtime.formatting import listed, plural, printable, short, some

RULE = PLAN_RULE  # the version of the rule by which a comparison is decided now
OLD_RULE = 1  # of records of 0.3 that planned looks: every arm counts, also arms that cannot be told apart
FIELDS = ("margin", "target", "max_seeds", "control")
MAX_COUNT = 10_000  # largest number of seeds and looks; more is a typing error
SHARES_TOLERANCE = 1e-9


@dataclass(frozen=True)
class LookPlan:
    """When a comparison is looked at, and how much of the error each look may spend.

    Attributes:
        looks: Numbers of seeds, increasing. Empty without a plan: then there is one look.
        shares: The fraction of the error for each look. They add up to 1.
        rule: Version of the rule that decides.
    """

    looks: tuple[int, ...] = ()
    shares: tuple[float, ...] = ()
    rule: int = RULE

    def share_at(self, seeds: int) -> float:
        """Return the fraction of the error that the look at so many seeds may spend.

        A look that was not planned gets the smallest share.
        """
        if not self.looks:
            return 1.0
        return dict(zip(self.looks, self.shares, strict=True)).get(seeds, min(self.shares))

    @property
    def text(self) -> str:
        """The looks in words: `looks at 5 and 10 seeds (20% and 80% of the error)`."""
        if not self.looks:
            return "no planned looks"
        if len(self.looks) == 1:
            return f"one look at {self.looks[0]} seeds"
        percents = listed(f"{100 * share:.3g}%" for share in self.shares)
        spent = "" if len({*self.shares}) == 1 else f" ({percents} of the error)"
        return f"looks at {listed(self.looks)} seeds{spent}"


@dataclass(frozen=True)
class Plan:
    """What was fixed beforehand; None or empty if it was not planned.

    Attributes:
        margin: Equivalence margin, in the unit of the planned metric; after `for_metric`, in the unit in
            which the compared metric is shown.
        target: Target value of the metric, as logged.
        max_seeds: The largest number of seeds.
        control: The control of the baseline.
        look_plans: The different plans of looks that the runs record; one if all runs agree.
        doubts: One sentence for each part of the plan that cannot be used.
    """

    margin: float | None = None
    target: float | None = None
    max_seeds: int | None = None
    control: str = ""
    look_plans: tuple[LookPlan, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    def looks(self) -> tuple[int, ...]:
        """All numbers of seeds at which a look was planned."""
        return tuple(sorted({look for plan in self.look_plans for look in plan.looks}))

    @property
    def rule(self) -> int:
        """The version of the rule that decides: the oldest of the runs, which is the strictest."""
        return min((plan.rule for plan in self.look_plans), default=RULE)

    def share_at(self, seeds: int) -> float:
        """Return the fraction of the error for a look at so many seeds: the smallest of all plans."""
        return min((plan.share_at(seeds) for plan in self.look_plans), default=1.0)

    def spent_until(self, seeds: int) -> float:
        """Return the fraction of the error that all looks up to so many seeds may have spent together.

        It is above 1 if seeds were added after a plan had spent all of it.
        """
        if not self.looks:
            return 0.0
        planned = [dict(zip(plan.looks, plan.shares, strict=True)) for plan in self.look_plans]
        return sum(
            max((shares[look] for shares in planned if look in shares), default=self.share_at(look))
            for look in {*self.looks, seeds}
            if look <= seeds
        )

    def for_metric(self, metric: ComparedMetric, planned: ComparedMetric) -> Self:
        """Return the plan for the compared metric: its margin in the unit in which that metric is shown.

        A margin and a target count for the metric that they were planned for. A margin that covers every
        value of the metric does not count.

        Args:
            planned: The metric that the runs were planned for, in the unit of the plan.
        """
        if metric.key != planned.key:
            unused = describe_plan(Plan(self.margin, self.target), planned).removeprefix("planned: ")
            doubt = (
                f"The plan is for {planned.name} ({unused}), so it sets no margin and no target for "
                f"{metric.name}."
            )
            doubts = (*self.doubts, doubt) if unused else self.doubts
            return replace(self, margin=None, target=None, doubts=doubts)
        if self.margin is None:
            return self
        if reason := planned.describe_wide_margin(self.margin):
            doubt = f"plan.margin={self.margin:g} is not used: {reason}."
            return replace(self, margin=None, doubts=(*self.doubts, doubt))
        return replace(self, margin=float(f"{self.margin * metric.factor / planned.factor:.12g}"))

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

    A value counts if it is valid and the same in all runs that have it. Different plans of looks all count:
    the strictest level is used.
    """
    values: dict[str, Any] = {}
    doubts: list[str] = []
    for name in FIELDS:
        recorded = [value for run in runs if (value := run.option(f"plan.{name}")) is not None]
        parsed = {_read(name, value) for value in recorded}
        if len(parsed) > 1 or None in parsed:
            texts = dict.fromkeys(short(printable(as_text(value)), 24) for value in recorded)
            doubts.append(
                f"The runs record different values of plan.{name} ({some(list(texts))}): no value is used."
            )
        elif parsed:
            values[name] = parsed.pop()
    return Plan(**values, look_plans=_read_look_plans(runs, doubts), doubts=tuple(doubts))


def _read_look_plans(runs: Sequence[RunRecord], doubts: list[str]) -> tuple[LookPlan, ...]:
    """Return each distinct plan of looks; add a sentence to the doubts if there are several."""
    plans: dict[LookPlan, None] = {}
    invalid: dict[str, None] = {}
    for run in runs:
        recorded = run.option("plan.looks")
        looks = () if recorded is None else _read("looks", recorded)
        if looks is None:
            invalid[short(printable(as_text(recorded)), 24)] = None
        elif looks or _rule(run) == OLD_RULE:
            plans[_look_plan(run, looks)] = None
    if invalid:
        doubts.append(f"plan.looks ({some([*invalid])}) is no list of numbers of seeds, and is not used.")
    texts = list(dict.fromkeys(plan.text for plan in plans))
    if len(texts) > 1:
        doubts.append(f"The runs record different plans ({some(texts)}): the strictest level is used.")
    return tuple(plans)


def _look_plan(run: RunRecord, looks: tuple[int, ...]) -> LookPlan:
    """Return the plan of one run; invalid or missing shares are equal shares."""
    recorded_shares = run.option("plan.shares")
    shares = _read("shares", recorded_shares) if recorded_shares is not None else None
    if shares is None or len(shares) != len(looks) or abs(sum(shares) - 1) > SHARES_TOLERANCE:
        shares = tuple(1 / len(looks) for _ in looks)
    return LookPlan(looks, shares, _rule(run))


def _rule(run: RunRecord) -> int:
    """Return the version of the rule that a run was planned for.

    Records of our own training before 0.4 have all options of the plan but this one.
    """
    recorded = run.option("plan.rule")
    if isinstance(recorded, int) and not isinstance(recorded, bool) and OLD_RULE <= recorded <= RULE:
        return recorded
    return OLD_RULE if run.option("plan.control") is not None else RULE


def describe_plan(plan: Plan, metric: ComparedMetric) -> str:
    """Return the plan in words, such as `planned: margin 0.5 points, one look at 5 seeds`, or ""."""
    parts = []
    if plan.margin is not None:
        parts.append(f"margin {metric.with_unit(f'{plan.margin:g}')}")
    if plan.target is not None:
        parts.append(f"target {metric.show_value(metric.as_shown(plan.target))}")
    if plan.looks:
        texts = dict.fromkeys(look_plan.text for look_plan in plan.look_plans if look_plan.looks)
        parts.append(" or ".join(texts))
    if plan.max_seeds is not None and plan.looks != (plan.max_seeds,):
        parts.append(f"at most {plural(plan.max_seeds, 'seed')}")
    if plan.has_control:
        is_chaos = plan.control == "chaos"
        parts.append("control chaos" if is_chaos else f"A/A control ({plan.control})")
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
    is_list = name in ("looks", "shares")
    kind: Any = {"looks": int, "shares": float}.get(name, spec.type)
    parts: list[Any] = converted if is_list else [converted]
    if not 0 < len(parts) <= MAX_COUNT or any(type(part) is not kind for part in parts):
        return None
    if kind is int and max(parts) > MAX_COUNT:
        return None
    if name == "looks":
        return tuple(sorted({*parts}))
    return tuple(parts) if is_list else converted
