"""The report of a sweep: at its end, and at the interim looks on the way."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from ampcompare import metrics
from ampcompare.analysis.comparison import Comparison
from ampcompare.analysis.external.metric_choice import is_quality
from ampcompare.analysis.grouping.compared_metric import (
    GOALS,
    MAXIMIZE,
    own_goal,
)
from ampcompare.analysis.grouping.logged_keys import is_logged, logged_keys, nearest_key, sample_of
from ampcompare.analysis.grouping.run_metrics import QUALITY, SPEED
from ampcompare.analysis.options import AnalysisOptions
from ampcompare.analysis.run_ranking import RankedRun, RunRanking, rank_runs
from ampcompare.config.schema import OPTIONS
from ampcompare.config.task_spec import compared_key
from ampcompare.errors import UserError, one_line
from ampcompare.identity.agreement import REPEAT
from ampcompare.identity.run_identity import RunIdentity, role_of
from ampcompare.report.options import FORMATS, PICTURES, ReportOptions
from ampcompare.report.pipeline import make_report
from ampcompare.report.ranking import write_ranking
from ampcompare.runs import RunRecord, load_runs
from ampcompare.runs.nested import as_text, flatten, lookup
from ampcompare.runs.run_state import RunState
from ampcompare.runtime.console import print_line
from ampcompare.runtime.formatting import count_range, listed, plural, some
from ampcompare.sweeps.decisions import Look
from ampcompare.sweeps.distributions import Parameter, whole
from ampcompare.sweeps.journal import SweepRun, read_journal
from ampcompare.sweeps.sweep import BACKEND, BASELINE, Sweep, baseline_of
from ampcompare.sweeps.training_options import trains_here

PUBLISHED = "published.name"
EXIT_NO_REPORT = 1
MAX_LOGGED = 12  # keys in a message


def report_options(sweep: Sweep, folder: Path, bench: str | None = None) -> ReportOptions:
    """Return the report of a sweep.

    What the sweep varies is compared, first the backend; or a publication's arms, where it repeats one.

    Args:
        folder: Its output folder.
        bench: A file of `ampcompare bench --json` with the speed.
    """
    is_own_training = trains_here(sweep)
    listed_parameters = {p.key: p for p in sweep.parameters if p.is_listed}
    published = listed_parameters.get(PUBLISHED)
    if is_own_training and published is not None and published.grid_size() == 1:
        repeated = AnalysisOptions(reproduce=str(published.grid_value(0)), bench=bench)
        return ReportOptions([str(folder)], str(folder / "report"), repeated)
    keys = [p.key for p in sweep.varied if role_of(p.key) in REPEAT.roles]
    by = sorted(keys, key=lambda key: key != BACKEND) or [BACKEND]
    if is_own_training:  # records have the keys in a mapping as settings of their own
        inner = {p.key: _keys_of_values(p) for p in sweep.varied}
        by = [by[0], *(name for key in by[1:] for name in inner[key])]
    # A grid has the same values under every backend, so runs with equal values are compared.
    groups = by if sweep.is_grid else [BACKEND]
    if not sweep.is_grid and BACKEND not in keys and not is_own_training:  # which has no such setting
        groups = [*(key for key in keys if key in listed_parameters), *by][:1]
    # The baseline is the value that a control repeats. Of drawn values the report takes one.
    baseline = BASELINE if groups[0] == BACKEND else None
    if (first := listed_parameters.get(groups[0])) is not None:
        baseline = _setting_text(first, first.grid_value(baseline_of(first)), is_own_training)
    metric = _metric(sweep)
    # Where the file has no goal, the metric's name tells more than W&B's default, minimize.
    goal = (sweep.raw.get("metric") or {}).get("goal")
    compared = AnalysisOptions(
        baseline=baseline,
        group_by=groups,
        metric=f"{metric}:{goal}" if metric and goal else metric,
        bench=bench,
    )
    formats = ",".join(name for name in FORMATS if name not in PICTURES)
    return ReportOptions([str(folder)], str(folder / "report"), compared, formats=formats)


def _metric(sweep: Sweep) -> str | None:
    """Return the metric of quality of a sweep; None for eval accuracy, the report's default."""
    name = None if sweep.metric is None else sweep.metric.name
    is_taken = name == metrics.EVAL_ACCURACY and trains_here(sweep)
    return name if name is not None and not is_taken and is_quality(name) else None


def _keys_of_values(parameter: Parameter) -> list[str]:
    """Return the dotted keys that the values of a parameter set: its own, or those in its mappings."""
    values = parameter.values() if parameter.is_listed else []
    if not any(isinstance(value, Mapping) for value in values):
        return [parameter.key]
    mappings = [value for value in values if isinstance(value, Mapping)]
    return list(dict.fromkeys(key for value in mappings for key, _ in flatten(value, f"{parameter.key}.")))


def _setting_text(parameter: Parameter, value: Any, is_own_training: bool) -> str:
    """Return a value of a parameter as the analysis of records writes it.

    Of our own options null has its meaning. Records have whole numbers without a decimal point.
    """
    spec = OPTIONS.get(parameter.key) if is_own_training else None
    if spec is not None and not spec.is_free_form:
        value = RunIdentity.of_run({spec.key: spec.convert(value)}).options.get(spec.key, value)
    values = value if isinstance(value, list) and spec is not None else [value]
    return ",".join(as_text(whole(one)) for one in values)


def report(console: Console, sweep: Sweep, folder: Path, bench: str | None = None) -> int:
    """Make the report of a sweep that has ended.

    It compares the runs with the baseline. Without a usable baseline it is a table of the runs.

    Returns:
        The exit code of the report; EXIT_NO_REPORT if there is none, or if no run logged the sweep's metric.
    """
    code = 0
    try:
        state = read_journal(folder)
        runs = [*state.runs.values()] if state else []
        if problem := _metric_problem(sweep, folder, runs):
            print_line(console, one_line(problem))
            code = EXIT_NO_REPORT
        reason = f"the runs wrote no W&B record under {folder}" if not _records(folder) else ""
        is_reproduction = False
        if not reason:
            reason = _baseline_problem(sweep, runs)
        if not reason:
            try:
                options = report_options(sweep, folder, bench)
                is_reproduction = options.analysis.reproduce is not None
                return make_report(options, console) or code
            except UserError as problem:
                if is_reproduction or not runs:  # a table of runs does not say whether they reproduce it
                    raise
                reason = str(problem)
        if not runs:
            raise UserError(reason)
        write_ranking(_ranking(sweep, folder, runs, reason), folder / "report", console)
    except UserError as problem:
        print_line(console, one_line(f"no report: {problem}"))
        return EXIT_NO_REPORT
    return code


def _metric_problem(sweep: Sweep, folder: Path, runs: Sequence[SweepRun]) -> str:
    """Return that no run logged the sweep's metric as a number, and what it may be called; "" if one did."""
    if sweep.metric is None or sweep.on_server:
        return ""
    name = sweep.metric.name
    ended = [run for run in runs if run.state is RunState.FINISHED and not run.is_external]
    records = _load_records(folder) if ended and all(run.value is None for run in ended) else {}
    finished = [records[run.run_id] for run in ended if run.run_id in records]
    if not finished or is_logged(name, finished):
        return ""
    logged = logged_keys(finished)
    hint = nearest_key(name, logged) or f"set metric.name in {sweep.path} to a logged key"
    keys = some(logged, MAX_LOGGED) or "nothing"
    if sample := sample_of(name, finished):
        return (
            f"error: metric.name={name!r}: its values are no numbers, such as {sample}; {hint} logged: {keys}"
        )
    return f"error: metric.name={name!r}: no run logged this metric; {hint} logged: {keys}"


def _baseline_problem(sweep: Sweep, runs: Sequence[SweepRun]) -> str:
    """Return why the runs of a sweep cannot be compared with a baseline; "" if they can."""
    listed = {p.key: p for p in sweep.parameters if p.is_listed}
    if not runs or (trains_here(sweep) and PUBLISHED in listed):
        return ""
    key = (report_options(sweep, Path()).analysis.group_by or [BACKEND])[0]
    parameter = listed.get(key)
    if parameter is None or parameter.grid_size() == 1:
        if sweep.is_grid:
            return ""
        if key == BACKEND:
            return "the search does not vary the backend"
        return f"the search draws {key} from a range, so no value has several runs"
    baseline = parameter.grid_value(baseline_of(parameter))
    if any(isinstance(value, Mapping) for value in parameter.values()):
        return f"the values of {key} are mappings, which are not compared"
    if not any(lookup(run.parameters, key) == baseline for run in runs):
        return f"no run has the baseline, {key}={as_text(baseline)}"
    drawn = [p.key for p in sweep.parameters if not p.is_listed and role_of(p.key) in REPEAT.roles]
    if drawn and not sweep.is_grid:
        return f"the search draws {some(drawn)} from a range, so no two runs differ in {key} alone"
    return ""


def _ranking(sweep: Sweep, folder: Path, runs: Sequence[SweepRun], reason: str) -> RunRanking:
    """Return the runs of a sweep by its metric, best first."""
    keys = [p.key for p in sweep.varied]
    ranked = [
        RankedRun(run.run_id, run.state, run.value, {key: lookup(run.parameters, key) for key in keys})
        for run in sorted(runs, key=lambda run: run.index)
    ]
    metric = sweep.metric.name if sweep.metric else ""
    if not metric and trains_here(sweep) and (records := _load_records(folder)):
        first = next(iter(records.values()))
        metric = compared_key(*(first.option(f"task.{name}") for name in ("loss", "metrics", "metric")))
        last = {run_id: record.values(metric)[-1:] for run_id, record in records.items()}
        ranked = [replace(run, value=next(map(float, last.get(run.run_id, ())), None)) for run in ranked]
    goal = own_goal(metric) or GOALS.get(metrics.guess_direction(metric))
    maximize = sweep.is_higher_better if sweep.metric else goal == MAXIMIZE
    return rank_runs(sweep.name, metric, ranked, keys, maximize=maximize, reason=reason)


def _load_records(folder: Path) -> dict[str, RunRecord]:
    try:
        return {run.id: run for run in load_runs([str(folder)])}
    except UserError:
        return {}


def _records(folder: Path) -> set[str]:
    """Return the ids of the runs that left a record."""
    return {path.stem.removeprefix("run-") for path in (folder / "wandb").glob("*run-*/run-*.wandb")}


def look_at_runs(sweep: Sweep, folder: Path, runs: Sequence[SweepRun], bench: str | None = None) -> Look:
    """Return whether the report has decided every claim.

    Args:
        folder: Its output folder.
        bench: A file of `ampcompare bench --json` with the speed.

    Raises:
        UserError: If the record of a finished run is missing, or no run logged the metric.
    """
    seeds = plural(sweep.seeds, "seed")
    ended = [run.run_id for run in runs if run.state is RunState.FINISHED]
    recorded_ids = _records(folder)
    if missing := [run for run in ended if run not in recorded_ids]:
        raise UserError(
            f"{folder}: the record of a finished run is missing under output_dir ({missing[0]}); "
            "--until-decided needs an output_dir on a drive that all workers share"
        )
    analysis = report_options(sweep, folder, bench).analyse()
    if not analysis.comparisons:
        return Look(
            True, (f"look at {seeds}: nothing could be compared, and more seeds would not change this",)
        )
    lines = _describe_claims([comparison for comparison in analysis.comparisons if not comparison.is_control])
    return Look(analysis.is_decided, tuple(f"look at {seeds}: {line}" for line in lines))


def _describe_claims(comparisons: Sequence[Comparison]) -> list[str]:
    """Return which claims are decided, which cannot be made, and which more seeds may decide."""
    decided, undecided, not_claimed = [], [], []
    for comparison in comparisons:
        label = comparison.group.label
        if comparison.not_compared_reason:
            not_claimed.append(f"{label} is not compared: {comparison.not_compared_reason}")
        for open_claim in comparison.open_claims:
            would = ""
            if open_claim.more_seeds:
                would = f"; about {count_range(*open_claim.more_seeds)} more seeds would decide it"
            undecided.append(f"undecided: {open_claim.question} of {label}{would}")
        for question in (SPEED, QUALITY):
            claim = comparison.claims.get(question)
            if claim and claim.shown:
                decided.append(f"{question} of {label}")
            elif claim and not claim.is_open:
                not_claimed.append(f"no claim about the {question} of {label}: {claim.why}")
    first = f"decided: {listed(decided) or 'nothing'}"
    if not undecided and not_claimed:
        first += "; nothing else can be decided"
    elif not undecided:
        first += "; all claims are decided"
    return [first, *not_claimed, *undecided]
