"""The next step: what would decide the open claims, how long it takes, and the command."""

import math

import numpy as np

from ampcompare.analysis.findings import Findings
from ampcompare.analysis.grouping.groups import Group
from ampcompare.analysis.grouping.run_metrics import QUALITY, SPEED
from ampcompare.analysis.grouping.run_table import SEED
from ampcompare.analysis.grouping.validity_checks import explain_chance
from ampcompare.config.schema import SEQUENTIAL_LOOKS, SEQUENTIAL_SHARES
from ampcompare.runtime.formatting import count_range, listed, plural, some

MAX_NAMED = 4
UNTIL_DECIDED = "`ampcompare sweep FILE --until-decided`"
BENCH_COMMANDS = "`ampcompare bench --json FILE` and add `--bench FILE`"
SECONDS_IN_ALL = "seconds_in_all"
TOO_UNCERTAIN = "the runs so far vary too much to say how many more seeds it takes"


def write_next_step(findings: Findings) -> str:
    """Return what would decide the open claims, "" if every claim is decided.

    A missing seed comes first: without it runs are not paired, and more runs are no answer to that.
    """
    if chance := _baseline_at_chance(findings):
        return chance
    if not findings.undecided:
        return ""
    seeds = _missing_seed(findings) or _further_seeds(findings)
    return " ".join([*seeds, *_benchmark(findings)])


def _baseline_at_chance(findings: Findings) -> str:
    """Return what to change if the baselines have not learned, "" otherwise. More seeds would not help."""
    bases = [c.baseline for c in findings.comparisons if c.baseline is not None]
    if not bases or not all(map(explain_chance, bases)):
        return ""
    options = "optimizer.lr, recipe, epochs" if findings.is_own else "optimizer, learning rate, length"
    name = bases[0].display_name
    return f"More seeds do not help: first change the training so that {name} learns ({options})."


def _missing_seed(findings: Findings) -> list[str]:
    """Return that runs are not paired, if none of them records a seed."""
    groups = [group for comparison in findings.comparisons for group in (comparison.group,)]
    if not groups or any(group.rows[SEED].notna().any() for group in groups):
        return []
    option = "Recorder(seed=...)" if _has_recorded_runs(findings) else "--seed KEY"
    return [f"No run records a seed, so runs are not paired: {option} pairs them."]


def _has_recorded_runs(findings: Findings) -> bool:
    return any(run.is_recorded for run in findings.table["run"])


def _further_seeds(findings: Findings) -> list[str]:
    """Return how many more seeds would decide the open claims, how long they take, and the command."""
    by_range = _open_by_range(findings)
    if not by_range:
        return []
    unit = "seeds per backend" if findings.is_own else "runs per group"
    counted = [group.n for group in findings.groups if group.n]
    sentences = []
    for (further, has_interval), subjects in by_range.items():
        subject = some(subjects, MAX_NAMED)
        if further is None:
            sentences.append(f"Undecided: {subject}; {TOO_UNCERTAIN}.")
            continue
        if not has_interval:
            missing = plural(further[0], "more seed" if findings.is_own else "more run")
            sentences.append(f"A confidence interval for {subject} needs {missing}.")
            continue
        time = _duration(findings, *further)
        more = f"About {count_range(*further)} more {unit}"
        sentences.append(f"{more}{time and f' ({time})'} would decide {subject}.")
    if not findings.is_own:  # no sweep of ours can add runs to those of another program
        return sentences
    command, limit = findings.sweep_command or UNTIL_DECIDED, _last_look(findings)
    sentences.append(f"{command} adds seeds, up to {limit}, and ends when each claim is decided.")
    spent = findings.plan.spent_until(findings.ended_seeds)
    if len(findings.plan.looks) == 1 and spent:
        error = 5 * (spent + SEQUENTIAL_SHARES[-1])
        sentences.append(
            f"One look was planned and has spent its error of 5%, so that both looks together err in up to "
            f"{error:.2g}%."
        )
    needed = [min(counted) + further[0] for further, _ in by_range if further is not None]
    if needed and max(needed) > limit:
        sentences.append(
            f"More than {limit} seeds need a new sweep with another plan.looks, or a wider --margin."
        )
    return sentences


def _open_by_range(findings: Findings) -> dict[tuple[tuple[int, int] | None, bool], list[str]]:
    """Return the open claims that seeds decide, by the range of seeds and whether there is an interval.

    The throughput of our own training is decided by a benchmark instead.
    """
    nouns = {QUALITY: findings.metric.noun}
    if not findings.is_own:
        nouns[SPEED] = "throughput"
    by_range: dict[tuple[tuple[int, int] | None, bool], list[str]] = {}
    for comparison in findings.comparisons:
        for claim in comparison.open_claims:
            if claim.question in nouns and claim.estimate is not None:
                subject = f"the {nouns[claim.question]} of {comparison.group.display_name}"
                key = (claim.more_seeds, claim.estimate.has_interval)
                by_range.setdefault(key, []).append(subject)
    return by_range


def _last_look(findings: Findings) -> int:
    """Return the number of seeds at which `--until-decided` ends."""
    looks = findings.plan.looks
    if findings.plan.max_seeds:
        return findings.plan.max_seeds
    return looks[-1] if len(looks) > 1 else max((SEQUENTIAL_LOOKS[-1], *looks))


def _duration(findings: Findings, low: int, high: int) -> str:
    """Return how long so many more seeds of every group take, one run after the other; "" if unknown."""
    seconds = [_seconds_per_run(group) for group in findings.groups if group.n and not group.is_control]
    if not seconds or not all(map(math.isfinite, seconds)):
        return ""
    hours = [count * sum(seconds) / 3600 for count in (low, high)]
    if hours[1] < 1:
        return f"{count_range(*(max(1, round(60 * time)) for time in hours))} min"
    return f"{count_range(*(max(1, round(time)) for time in hours))} h"


def _seconds_per_run(group: Group) -> float:
    """Return the mean duration of a run in seconds; NaN if it is not recorded."""
    values = group.rows[SECONDS_IN_ALL].dropna()
    return float(np.mean(values)) if len(values) else math.nan


def _benchmark(findings: Findings) -> list[str]:
    """Return how a benchmark decides the throughput of our own training."""
    labels = [
        comparison.group.display_name
        for comparison in findings.comparisons
        for claim in comparison.open_claims
        if claim.question == SPEED and claim.estimate is not None
    ]
    if not labels or not findings.is_own or findings.bench is not None:
        return []
    return [f"To decide the throughput of {listed(labels)}, measure it with {BENCH_COMMANDS}."]
