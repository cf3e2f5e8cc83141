"""The next step: what would decide the open claims, how long it takes, and the command."""

import json
import math
import shlex
from collections.abc import Iterator, Mapping

from ampcompare.analysis.external.inferred_grouping import SEED_IN_SETTINGS_FILE
from ampcompare.analysis.findings import Findings
from ampcompare.analysis.grouping.run_metrics import QUALITY, SPEED
from ampcompare.analysis.grouping.run_table import SEED
from ampcompare.config.schema import OPTIONS, SEQUENTIAL_LOOKS, SEQUENTIAL_SHARES
from ampcompare.identity.agreement import BENCHMARK
from ampcompare.identity.run_identity import written
from ampcompare.runs.nested import flatten
from ampcompare.runtime.formatting import count_range, listed, plural, some

MAX_NAMED = 4
UNTIL_DECIDED = "`ampcompare sweep FILE --until-decided`"
# Options that decide the work of a step. The command of a benchmark repeats those that are not the default.
BENCH_OPTIONS = tuple(
    key
    for key, spec in OPTIONS.items()
    if spec.role in BENCHMARK.roles or key in ("batch_size", "data.root", *BENCHMARK.reported_keys)
)
SECONDS_IN_ALL = "seconds_in_all"
TOO_UNCERTAIN = "the runs so far vary too much to say how many more seeds it takes"


def write_next_step(findings: Findings) -> str:
    """Return what would decide the open claims, "" if every claim is decided.

    A missing seed comes first: without it runs are not paired, and more runs are no answer to that.
    """
    if findings.is_baseline_at_chance:
        options = "optimizer.lr, recipe, epochs" if findings.is_own else "optimizer, learning rate, length"
        name = findings.compared_bases[0].display_name
        return f"More seeds do not help: first change the training so that {name} learns ({options})."
    if not findings.undecided:
        return ""
    seeds = _missing_seed(findings) or _further_seeds(findings)
    return " ".join([*seeds, *_benchmark(findings)])


def _missing_seed(findings: Findings) -> list[str]:
    """Return that runs are not paired, if none of them records a seed."""
    groups = [comparison.group for comparison in findings.comparisons]
    if not groups or any(group.rows[SEED].notna().any() for group in groups):
        return []
    if any(run.is_recorded for run in findings.table["run"]):
        return ["No run records a seed, so runs are not paired: Recorder(seed=...) pairs them."]
    return [
        "No run records a seed, so runs are not paired: --seed KEY pairs them by a setting, --run-name "
        f"'*{{seed}}' by the end of their names; if neither has the seed, {SEED_IN_SETTINGS_FILE}."
    ]


def _further_seeds(findings: Findings) -> list[str]:
    """Return how many more seeds would decide the open claims, how long they take, and the command."""
    by_range = _open_by_range(findings)
    sentences = [
        _describe_range(findings, some(subjects, MAX_NAMED), further, has_interval)
        for (further, has_interval), subjects in by_range.items()
    ]
    if by_range and findings.is_own:  # no sweep of ours can add runs to those of another program
        needed = [further[0] for further, _ in by_range if further is not None]
        sentences += _describe_sweep(findings, max(needed, default=0))
    return sentences


def _describe_range(
    findings: Findings, subject: str, further: tuple[int, int] | None, has_interval: bool
) -> str:
    """Return how many more seeds would decide the named claims.

    Args:
        subject: What the claims are about.
        further: The range of seeds; None if the runs vary too much to say.
        has_interval: Whether there is an interval already; else that is what the seeds are for.
    """
    if further is None:
        return f"Undecided: {subject}; {TOO_UNCERTAIN}."
    if not has_interval:
        missing = plural(further[0], "more seed" if findings.is_own else "more run")
        return f"A confidence interval for {subject} needs {missing}."
    unit = "seeds per backend" if findings.is_own else "runs per group"
    time = _duration(findings, *further)
    in_time = f" ({time})" if time else ""
    return f"About {count_range(*further)} more {unit}{in_time} would decide {subject}."


def _describe_sweep(findings: Findings, needed: int) -> Iterator[str]:
    """Yield the command that adds seeds, and what limits it.

    Args:
        needed: The number of further seeds that one of the claims needs at least; 0 if it is not known.
    """
    limit = _last_look(findings)
    if not findings.sweep_command and any(run.sweep_id for run in findings.table["run"]):
        yield (
            "W&B's server adds no seeds to a sweep: write further seeds into its file, create a second sweep "
            "(`wandb sweep FILE`), and compare both: `ampcompare report wandb:ENTITY/PROJECT`."
        )
    else:
        command = findings.sweep_command or UNTIL_DECIDED
        yield f"{command} adds seeds, up to {limit}, and ends when each claim is decided."
    spent = findings.plan.spent_until(findings.ended_seeds)
    if len(findings.plan.looks) == 1 and spent:
        error = 5 * (spent + SEQUENTIAL_SHARES[-1])
        yield (
            "One look was planned and has spent its error of 5%, so that both looks together err in up to "
            f"{error:.2g}%."
        )
    counted = [group.n for group in findings.groups if group.n]
    if needed and min(counted) + needed > limit:
        yield f"More than {limit} seeds need a new sweep with another plan.looks, or a wider --margin."


def _open_by_range(findings: Findings) -> dict[tuple[tuple[int, int] | None, bool], list[str]]:
    """Return the open claims that seeds decide, by the range of seeds and whether there is an interval.

    The throughput of our own training is decided by a benchmark instead.
    """
    nouns = {QUALITY: findings.metric.noun}
    if not findings.is_own:
        nouns[SPEED] = "throughput"
    by_range: dict[tuple[tuple[int, int] | None, bool], list[str]] = {}
    for comparison, claim in findings.undecided:
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
    counted = [group for group in findings.groups if group.n and not group.is_control]
    # The time of one more seed. Runs that record no time do not count; NaN if no run of a group does.
    hours = sum(float(group.rows[SECONDS_IN_ALL].mean()) for group in counted) / 3600
    if not math.isfinite(hours):
        return ""
    unit, per_seed = ("min", 60 * hours) if high * hours < 1 else ("h", hours)
    return f"{count_range(max(1, round(low * per_seed)), max(1, round(high * per_seed)))} {unit}"


def _benchmark(findings: Findings) -> list[str]:
    """Return how a benchmark decides the throughput of our own training."""
    labels = [
        c.group.display_name for c, claim in findings.undecided if claim.question == SPEED and claim.estimate
    ]
    if not labels or not findings.is_own or findings.bench is not None:
        return []
    command = " ".join(["ampcompare bench", *_bench_options(findings), "--json FILE"])
    return [
        f"To decide the throughput of {listed(labels)}, measure it with `{command}` and add `--bench FILE`."
    ]


def _bench_options(findings: Findings) -> list[str]:
    """Return the options with which a benchmark measures what all runs trained, as they are typed."""
    options = []
    for key in BENCH_OPTIONS:
        values = [run.option(key) for run in findings.table["run"] if run.option(key) is not None]
        if not values or any(value != values[0] for value in values) or values[0] == OPTIONS[key].default:
            continue
        # A report leaves this machine, so it does not name a folder.
        value = "PATH" if key == "data.root" else values[0]
        settings = flatten(value, f"{key}.") if isinstance(value, Mapping) else [(key, value)]
        for name, setting in settings:
            # A list is typed with brackets, other texts as YAML reads them.
            text = json.dumps(setting) if isinstance(setting, list) else written(setting)
            options.append(shlex.quote(f"{name}={text}"))
    return options
