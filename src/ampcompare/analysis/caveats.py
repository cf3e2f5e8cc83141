"""Reasons not to trust the results too far: one sentence for each cause that applies, gravest first."""

from collections.abc import Callable, Iterable, Iterator

from ampcompare import metrics
from ampcompare.analysis import phrases
from ampcompare.analysis.baselines import MAX_KEYS
from ampcompare.analysis.chaos_control import describe_equal_losses, describe_unresolved
from ampcompare.analysis.claims import WITHIN_MARGIN, Finding
from ampcompare.analysis.findings import Findings
from ampcompare.analysis.grouping import run_table, validity_checks
from ampcompare.analysis.grouping.backend_info import display_name, list_tf32
from ampcompare.analysis.grouping.groups import BACKEND, Group, Kind, name_run, name_with_id
from ampcompare.analysis.grouping.run_metrics import (
    IMAGES,
    MEMORY,
    QUALITY,
    SCORE,
    SPEED,
    TO_TARGET,
    rows_at_target,
    separates_startup,
)
from ampcompare.analysis.grouping.run_table import OUTCOME, RUN, is_machine_shared
from ampcompare.analysis.grouping.training_length import has_early_stopping, unequal_lengths
from ampcompare.analysis.plan_deviations import describe_plan_deviations
from ampcompare.analysis.reasons import explain_degenerate, no_native_arithmetic
from ampcompare.analysis.scale import CHANGE
from ampcompare.analysis.statistics.multiplicity import highest_failure_rate
from ampcompare.precision.registry import PLAIN
from ampcompare.runs.run_state import RunState
from ampcompare.runtime import formatting
from ampcompare.runtime.formatting import listed, plural, some

MAX_NAMED = 4
MAX_PROBLEMS = 3  # problems of records, one sentence each
AGREE = 1e-6  # fraction of the resolution; smaller differences are rounding errors
CHOSEN = ". If poor runs were stopped, the finished runs look better than they should"
TF32_WORDS = dict(
    zip(metrics.TF32_SWITCHES, ("matrix products", "convolutions", "recurrent layers"), strict=True)
)
UNFINISHED: tuple[str, ...] = (
    *(RunState.FAILED, run_table.REFUSED, RunState.STOPPED),
    *(RunState.PREEMPTED, RunState.RUNNING, RunState.QUEUED),
)


def _compared_groups(findings: Findings) -> list[Group]:
    """Return the groups that are compared, each once and after its baseline, without controls."""
    pairs = [(c.group, c.baseline) for c in findings.comparisons if c.baseline is not None]
    return list({g.label: g for pair in pairs for g in reversed(pair) if not g.is_control}.values())


def _bench(findings: Findings) -> Iterator[str]:
    """Yield what a reader must know about the benchmark."""
    if findings.bench is None:
        return
    if not findings.has_bench_speed:
        yield "No arm of --bench has the backend, settings and device of these runs."
    yield from findings.bench.caveats(findings.groups)


def _control_drift(findings: Findings) -> Iterator[str]:
    """Yield that the speed of the A/A control changed while the runs were trained."""
    drifts = [c.drift for c in findings.comparisons if c.drift and c.drift.side_of(1.0)]
    if drifts:
        changed = CHANGE.value_and_interval(drifts[0])
        yield f"The throughput of the A/A control changed by {changed} from its first to its last runs."


def _arithmetic(findings: Findings) -> Iterator[str]:
    """Yield that a CPU has no 16-bit instructions, or that the records do not say whether it has them."""
    rows = findings.table
    slow = phrases.group_by_text(_compared_groups(findings), lambda group: no_native_arithmetic([group]))
    for labels, why in slow:
        yield f"The throughput of {labels} is not compared: {why}."
    on_cpu = rows[rows[run_table.ON_CPU]]
    unknown = (on_cpu[run_table.DTYPE_16BIT] != "") & (on_cpu[run_table.ARITHMETIC] == metrics.UNKNOWN)
    if unknown.any() and not slow:
        yield "The records do not say whether the CPU has instructions for 16-bit dtypes."


def _tf32(findings: Findings) -> Iterator[str]:
    """Yield whether the baseline is strict fp32, which is not PyTorch's default on its GPU."""
    baseline = findings.baseline
    if baseline is None or baseline.value != PLAIN:
        return
    allowed = [list_tf32(run) for run in baseline.all_rows[RUN]]
    name = display_name(PLAIN)
    if allowed and all(switches == [] for switches in allowed):
        yield (
            f"The baseline {name} is strict fp32: TF32 is off. PyTorch's default for convolutions on this "
            "GPU is TF32."
        )
    used = [switch for switch in metrics.TF32_SWITCHES if any(switch in (own or ()) for own in allowed)]
    if used:
        where = listed(TF32_WORDS[switch] for switch in used)
        yield f"The baseline {name} is not strict fp32: PyTorch was allowed to use TF32 in {where}."


def _ended(findings: Findings) -> Iterator[str]:
    """Yield how many runs did not finish, by outcome and reason."""
    groups = findings.groups
    for outcome in UNFINISHED:
        counts = [text for text in (_count_ended(group, outcome) for group in groups) if text]
        if counts:
            is_refused = outcome == run_table.REFUSED
            title = "Refused before the first step" if is_refused else formatting.capital(outcome)
            tail = CHOSEN if outcome == RunState.STOPPED else ""
            yield f"{title}: {some(counts, MAX_NAMED)}{tail}."
    unfinished = some([group.display_name for group in groups if group.is_unfinished])
    if unfinished:
        yield f"No run of {unfinished} finished: the values shown are from unfinished runs."


def _count_ended(group: Group, outcome: str) -> str:
    """Return `2 of 5 runs of native (seed 1: out of memory)`; "" if no run had this outcome."""
    rows = group.all_rows[group.all_rows[OUTCOME] == outcome]
    pairs = ((name_run(group, row), row[run_table.WHY]) for _, row in rows.iterrows())
    reasons = formatting.group_by_reason(pairs, 3)
    if not reasons:
        return ""
    texts = "; ".join(f"{names}: {why}" if why else names for names, why in reasons[:3])
    return f"{len(rows)} of {plural(len(group.all_rows), 'run')} of {group.display_name} ({texts})"


def _learned(findings: Findings) -> Iterator[str]:
    """Yield the groups whose metric says nothing: at chance, or constant."""
    finished = [group for group in _compared_groups(findings) if not group.is_unfinished]
    for labels, why in phrases.group_by_text(
        finished, lambda group: reason.text if (reason := explain_degenerate(group)) else ""
    ):
        yield f"{findings.metric.title} is uninformative for {labels}: {why}."


def _flat_losses(findings: Findings) -> Iterator[str]:
    """Yield the groups with a run whose training loss has hardly moved from its first value."""
    flat = phrases.group_by_text(_compared_groups(findings), validity_checks.describe_flat_loss)
    if flat:
        parts = "; ".join(f"{labels} {change}" for labels, change in flat)
        yield (
            f"The training loss hardly moved: {parts}. Check optimizer, learning rate and length, unless the "
            "network was trained before."
        )


def _chaos(findings: Findings) -> Iterator[str]:
    """Yield what the baseline with changed last bits says about the other differences, and where nothing."""
    for comparison in findings.comparisons:
        control = comparison.group
        base = comparison.baseline
        if base is None or control.kind is not Kind.CHAOS:
            continue
        unresolved = describe_unresolved(control, base, findings.metric, comparison.estimates.get(QUALITY))
        if unresolved:
            yield unresolved
        equal_losses = describe_equal_losses(control, base)
        if equal_losses:
            yield equal_losses


def _lengths(findings: Findings) -> Iterator[str]:
    """Yield which groups trained for different lengths, and what that means for their quality."""
    for comparison, base in findings.arms:
        pair = (base, comparison.group)
        lengths = unequal_lengths(pair)
        # Where runs failed, that is the reason why nothing is claimed, and --best would change nothing.
        if not lengths or any(side.outcomes.failed for side in pair):
            continue
        if findings.metric.is_best:
            yield f"Runs have different lengths: {lengths}. The best value of each run is compared."
        elif has_early_stopping(pair):
            yield f"Runs have different lengths: {lengths}. Early stopping is recorded: all are compared."
        else:
            noun = findings.metric.noun
            yield f"No verdict on {noun}: {lengths}. Use --best to compare the best value of each run."


def _machine(findings: Findings) -> Iterator[str]:
    """Yield what makes the times of these runs incomparable."""
    compared = _compared_groups(findings)
    counts = [(group, int(is_machine_shared(group.rows).sum())) for group in compared]
    shared = [f"{k} of {plural(group.n, 'run')} of {group.display_name}" for group, k in counts if k]
    if shared:
        groups = some(shared, MAX_NAMED)
        yield f"Runs overlapped on the same GPU or CPU, so their times are left out: {groups}."
    if findings.has_bench_speed:  # which drift and other cards do not affect
        return
    sequential = listed(validity_checks.find_sequential_groups(compared))
    if sequential:
        yield f"{sequential} ran one after the other, so drift of the machine is part of the difference."
    on_other_cards = listed(validity_checks.find_groups_on_other_cards(compared))
    if on_other_cards:
        yield (
            f"{on_other_cards} ran on different devices, so differences between devices are part of the "
            "result."
        )


def _separate_groups(findings: Findings) -> Iterator[str]:
    """Yield why runs of one value are in several groups, and what differs between compared groups."""
    for value in dict.fromkeys(g.value for g in findings.groups):
        same_value = [g for g in findings.groups if g.value == value]
        # A single group has no distinguishing settings.
        keys = [key for key, _ in same_value[0].distinguishing_settings if key not in findings.keys]
        values = {
            key: [formatting.short(dict(g.distinguishing_settings)[key]) for g in same_value] for key in keys
        }
        shown = [f"{key} ({some([*dict.fromkeys(those)], MAX_NAMED)})" for key, those in values.items()]
        if shown:
            group = same_value[0]
            is_backend = findings.keys[0] == BACKEND
            name = group.kind.display_name_of(group.base_value) if is_backend else value
            yield f"Runs of {name} form {len(same_value)} groups, which differ in {some(shown, MAX_KEYS)}."
    uncontrolled = dict.fromkeys(key for c in findings.comparisons for key in c.uncontrolled_differences)
    if uncontrolled:
        differing = some([*uncontrolled], MAX_KEYS)
        yield f"The compared groups also differ in {differing}, which may explain part of the result."


def _speed(findings: Findings) -> Iterator[str]:
    """Yield the groups with another speed-up by their whole training time."""
    gaps = []
    for comparison, base in findings.arms:
        group = comparison.group
        if SPEED not in comparison.estimates or findings.has_bench_speed or len(comparison.devices) != 1:
            continue
        by_seconds = validity_checks.other_speedup(group, base)
        if by_seconds is not None:
            gaps.append(f"{formatting.ratio(by_seconds)} for {group.display_name}")
    if gaps:
        yield f"Including start-up and stalls, the speed-up is {some(gaps, MAX_NAMED)}."


def _ignored(findings: Findings) -> Iterator[str]:
    """Yield which settings --ignore leaves out."""
    if findings.ignored:
        yield f"Differences in {listed(sorted(findings.ignored))} are ignored, as --ignore says."


def _records(findings: Findings) -> Iterator[str]:
    """Yield problems of the records."""
    problems = []
    for _, row in findings.table.iterrows():
        # The reason of a failure already says what a run without history lacks.
        is_complete = row[run_table.ROWS] and row[OUTCOME] != RunState.FAILED
        own = row[run_table.PROBLEMS] if is_complete else row[RUN].problems
        problems += [(name_with_id(row), problem) for problem in own]
    reasons = formatting.group_by_reason(dict.fromkeys(problems), MAX_NAMED)
    for names, problem in reasons[:MAX_PROBLEMS]:
        yield f"Record of {names}: {problem}"
    hidden = len(reasons) - MAX_PROBLEMS
    if hidden > 0:
        yield f"The page's table of runs lists {plural(hidden, 'further problem')} of records."


def _versions(findings: Findings) -> Iterator[str]:
    """Yield that the runs are of several states of the code."""
    runs = findings.table[RUN]
    recorded = (run.environment.get("git_commit") for run in runs)
    heads = [one.partition("-") for one in recorded if isinstance(one, str) and one]
    commits = list(dict.fromkeys(f"{head[:7]}{dash}{rest}" for head, dash, rest in heads))
    if len(commits) > 1:
        is_recorded = any(run.is_recorded for run in runs)
        # The recorder does not record the code of a user's loop.
        code = "AMP Compare" if is_recorded else "the code"
        yield f"The runs used {len(commits)} versions of {code} ({some(commits, 3)}) and are pooled."


def _reached(findings: Findings) -> Iterator[str]:
    """Yield how many runs reached the target."""
    metric = findings.metric
    if metric.target is None:
        return
    target = metric.show_value(metric.target)
    scored = [g for g in findings.groups if not g.is_control and g.rows[SCORE].notna().any()]
    counts = [(g, sum(len(rows_at_target(run, metric)) > 0 for run in g.records)) for g in scored]
    short = [f"{count} of {plural(g.n, 'run')} of {g.display_name}" for g, count in counts if count < g.n]
    if short:
        yield (
            f"Only {some(short, MAX_NAMED)} reached the target of {target}, so their time to target is not "
            "compared."
        )


def _startup(findings: Findings) -> Iterator[str]:
    """Yield the groups whose time to target includes start-up, where that is long or differs from others."""
    timed = [g for g in findings.groups if not g.is_control and g.rows[TO_TARGET].notna().any()]
    including = [group for group in timed if not all(map(separates_startup, group.records))]
    runs = [run for group in timed for run in group.records]
    is_compiled = any(run.option("execution") not in (None, "eager") for run in runs)
    # Without compilation, start-up is the first step. It is the same in all groups if none records it.
    if including and (is_compiled or any(map(separates_startup, runs))):
        labels = some([group.display_name for group in including], MAX_NAMED)
        yield (
            f"The time to target of {labels} includes start-up, such as compilation, which was not recorded "
            "separately."
        )


def _test_set(findings: Findings) -> Iterator[str]:
    """Yield that the intervals do not cover the choice of the test set."""
    counts = {int(count) for group in _compared_groups(findings) for count in group.rows[IMAGES].dropna()}
    if counts:
        samples = formatting.count_range(min(counts), max(counts))
        yield (
            f"All intervals are for this test set of {samples} samples: they cover the variation between "
            "seeds, not that between test sets."
        )


def _rare_failures(findings: Findings) -> Iterator[str]:
    """Yield which rate of failure the good runs behind a claim do not exclude."""
    by_runs: dict[int, list[str]] = {}
    for comparison in findings.comparisons:
        claim = comparison.claims.get(QUALITY)
        if claim and claim.finding in {Finding.NOT_WORSE, *WITHIN_MARGIN}:
            by_runs.setdefault(comparison.group.n, []).append(comparison.group.display_name)
    for runs, labels in sorted(by_runs.items()):
        rate = 100 * highest_failure_rate(runs)
        yield (
            f"{runs} good runs of {some(labels, MAX_NAMED)} do not exclude that up to {rate:.0f}% of runs "
            "fail (95% confidence)."
        )


def _controls(findings: Findings) -> Iterator[str]:
    """Yield how each control of the baseline differs from it in throughput and memory."""
    names = {SPEED: "throughput", MEMORY: "peak memory"}
    for control in findings.comparisons:
        if not control.is_control or control.baseline is None:
            continue
        ratios = [
            f"{name} {CHANGE.value_and_interval(control.estimates[question])}"
            for question, name in names.items()
            if question in control.estimates
        ]
        parts = listed(ratios) or "nothing was measured"
        if control.drift:
            drift = CHANGE.value_and_interval(control.drift)
            parts = f"{parts}; throughput from its first to its last runs {drift}"
        yield f"{control.group.display_name}, relative to the baseline: {parts}."


def _correlations(findings: Findings) -> Iterator[str]:
    """Yield how far the quality of a seed is common to a group and its baseline.

    Pairing by seed narrows an interval only as far as the two correlate; near 0 it gains nothing.
    """
    texts = [
        f"{comparison.group.display_name} {formatting.signed(comparison.seed_correlation)}"
        for comparison in findings.comparisons
        if comparison.seed_correlation is not None and not comparison.is_control
    ]
    if texts:
        noun = findings.metric.noun
        yield f"Correlation of {noun} with that of the baseline over the seeds: {some(texts)}."


def _identical_arms(findings: Findings) -> Iterator[str]:
    """Yield which groups cannot be told apart by their quality and count as one comparison."""
    noun = findings.metric.noun
    for members in findings.identical_arms:
        labels = listed(group.display_name for group in members)
        yield f"{labels} have exactly the same {noun} at every shared seed and count as one comparison of it."


def _assumed_spreads(findings: Findings) -> Iterator[str]:
    """Yield whose confidence intervals assume the resolution of the metric as their standard deviation."""
    metric = findings.metric
    rounding = AGREE * metric.resolution
    measured: dict[str, float] = {}
    for comparison in findings.comparisons:
        group = comparison.group
        base = comparison.baseline
        estimate = comparison.estimates.get(QUALITY)
        if base is None or estimate is None or not estimate.has_interval:
            continue
        samples = {side.display_name: side.sample(SCORE) for side in (group, base)}
        if estimate.is_paired:
            samples = {group.display_name: (group.sample(SCORE) - base.sample(SCORE)).dropna()}
        measured |= {label: sample.std() for label, sample in samples.items()}
    smaller = [label for label, spread in measured.items() if spread < metric.resolution - rounding]
    if not smaller:
        return
    source = "the last logged decimal"
    images = findings.table[IMAGES].dropna()
    if metric.counts_samples and len(images):
        # Throughput may count something else, such as steps.
        item = findings.quantities.item if findings.quantities.item in ("image", "sample") else "sample"
        source = f"one of {int(images.min()):,} test {item}s"
    size = metric.with_unit(f"{metric.resolution:.3g}")
    assumed_for = some([f"{label} (measured: {measured[label]:.2g})" for label in smaller], MAX_NAMED)
    yield (
        f"The confidence interval of {metric.name} assumes a standard deviation of {size} ({source}) for "
        f"{assumed_for}."
    )


Rule = Callable[[Findings], Iterable[str]]
# Gravest first.
CAVEATS: tuple[Rule, ...] = (
    _ended,
    _learned,
    lambda findings: findings.reading_doubts,  # about how runs of other programs were read
    _chaos,
    _flat_losses,
    _lengths,
    describe_plan_deviations,
    _bench,
    _separate_groups,
    _machine,
    _control_drift,
    _arithmetic,
    _tf32,
    _speed,
    _records,
    _versions,
    _ignored,
    _reached,
    _assumed_spreads,
    _startup,
)
# A fact that holds of every comparison of this size is no reason to doubt this one.
NOTES: tuple[Rule, ...] = (_controls, _correlations, _identical_arms, _rare_failures, _test_set)
