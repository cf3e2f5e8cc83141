"""The report of a sweep: at its end, and at the interim looks on the way."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from ampcompare import metrics
from ampcompare.analysis.external.reader import is_quality
from ampcompare.analysis.grouping.run_metrics import QUALITY, SPEED
from ampcompare.config.option_spec import Role
from ampcompare.config.schema import with_role
from ampcompare.errors import UserError, one_line
from ampcompare.report.options import FORMATS, PICTURES, ReportOptions
from ampcompare.report.pipeline import make_report
from ampcompare.runs.run_state import RunState
from ampcompare.runs.wandb_file import read_wandb_file
from ampcompare.runtime.console import print_line
from ampcompare.runtime.formatting import count_range, listed, plural
from ampcompare.sweeps.interim_looks import Look
from ampcompare.sweeps.journal import SweepRun
from ampcompare.sweeps.run_process import CODE_KEY
from ampcompare.sweeps.sweep import BACKEND, BASELINE, Sweep, baseline_of
from ampcompare.sweeps.training_options import trains_here

PUBLISHED = "published.name"


def report_options(sweep: Sweep, folder: Path, code_keys: Iterable[str] = ()) -> ReportOptions:
    """Return the report of a sweep.

    What the sweep varies is compared, first the backend; or a publication's arms, where it repeats one.

    Args:
        sweep: The sweep.
        folder: Its output folder.
        code_keys: Keys of the records that distinguish versions of the user's code.
    """
    is_own_training, listed_parameters = (
        trains_here(sweep),
        {p.key: p for p in sweep.parameters if p.is_listed},
    )
    published = listed_parameters.get(PUBLISHED)
    if is_own_training and published is not None and published.grid_size() == 1:
        return ReportOptions([str(folder)], str(folder / "report"), reproduce=str(published.grid_value(0)))
    no_setting = with_role(Role.BOOKKEEPING, Role.REPEAT)  # no differences for the report
    varied = [p for p in sweep.parameters if not (p.is_listed and p.grid_size() == 1)]
    keys = [p.key for p in varied if p.key not in no_setting]
    by = sorted(keys, key=lambda key: key != BACKEND) or [BACKEND]
    # A grid has the same values under every backend, so runs with equal values are compared. A search has
    # other values under each backend, so the report compares the best runs and pools nothing.
    groups = by if sweep.is_grid else [BACKEND]
    if not sweep.is_grid and BACKEND not in keys and not is_own_training:  # which has no such setting
        groups = [*(key for key in keys if key in listed_parameters), *by][:1]
    # The baseline is the value that a control repeats. Of drawn values the report takes one.
    baseline = BASELINE if groups[0] == BACKEND else None
    if (first := listed_parameters.get(groups[0])) is not None:
        baseline = str(first.grid_value(baseline_of(first)))
    metric = _metric(sweep)
    # Where the file has no goal, the metric's name tells more than W&B's default, minimize.
    goal = (sweep.raw.get("metric") or {}).get("goal")
    return ReportOptions(
        [str(folder)],
        str(folder / "report"),
        baseline,
        group_by=",".join(groups),
        metric=f"{metric}:{goal}" if metric and goal else metric,
        split_by="" if is_own_training else ",".join(code_keys),  # our own runs are split by all that differs
        formats=",".join(name for name in FORMATS if name not in PICTURES),
    )


def _metric(sweep: Sweep) -> str | None:
    """Return the metric of quality of a sweep; None for eval accuracy, the report's default."""
    name = None if sweep.metric is None else sweep.metric.name
    is_taken = name == metrics.EVAL_ACCURACY and trains_here(sweep)
    return name if name is not None and not is_taken and is_quality(name) else None


def report(console: Console, sweep: Sweep, folder: Path) -> int:
    """Make the table and the page, if the runs left records; return the report's exit code."""
    if not _records(folder):
        print_line(console, one_line(f"no report: the runs wrote no W&B record under {folder}"))
        return 0
    try:
        return make_report(_report_options_with_code(sweep, folder), console)
    except UserError as problem:
        print_line(console, one_line(f"no report: {problem}"))
        return 0


def _report_options_with_code(sweep: Sweep, folder: Path) -> ReportOptions:
    """Return the report of a sweep whose user's code may have changed.

    A program that does not use W&B's client to log does not record the change.
    """
    files = sorted((folder / "wandb").glob("*run-*/run-*.wandb"), key=lambda file: file.stat().st_mtime)
    recorded = read_wandb_file(files[-1]).config.get(CODE_KEY) if files else None
    keys = recorded if isinstance(recorded, Mapping) else {}
    return report_options(sweep, folder, [f"{CODE_KEY}.{name}" for name in keys])


def _records(folder: Path) -> set[str]:
    """Return the ids of the runs that left a record."""
    return {path.stem.removeprefix("run-") for path in (folder / "wandb").glob("*run-*/run-*.wandb")}


def look_at_runs(sweep: Sweep, folder: Path, runs: Sequence[SweepRun]) -> Look:
    """Return whether the report has decided every claim.

    Raises:
        UserError: If the record of a finished run is missing, or no run logged the metric.
    """
    seeds = plural(sweep.seeds, "seed")
    ended = [run.run_id for run in runs if run.state is RunState.FINISHED]
    recorded_ids = _records(folder)
    if missing := [run for run in ended if run not in recorded_ids]:
        what = f"the record of a finished run is missing under output_dir ({missing[0]})"
        raise UserError(
            f"{folder}: {what}; --until-decided needs an output_dir on a drive that all workers share"
        )
    analysis = _report_options_with_code(sweep, folder).analyse()
    if not analysis.comparisons:
        return Look(
            True, (f"look at {seeds}: nothing could be compared, and more seeds would not change this",)
        )
    decided, undecided, not_claimed = [], [], []
    for comparison in (c for c in analysis.comparisons if not c.is_control):
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
    end = "" if undecided else "; nothing else can be decided" if not_claimed else "; all claims are decided"
    lines = [f"decided: {listed(decided) or 'nothing'}{end}", *not_claimed, *undecided]
    return Look(analysis.is_decided, tuple(f"look at {seeds}: {line}" for line in lines))
