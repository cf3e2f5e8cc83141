"""What the report says of a sweep's runs: at its end, and at the looks on the way."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ampcompare import metrics
from ampcompare.config.options import Role
from ampcompare.config.schema import with_role
from ampcompare.errors import UserError, one_line
from ampcompare.program.console import print_line
from ampcompare.records import load_runs
from ampcompare.report.analysis.comparison import Comparison
from ampcompare.report.command import Request, make_report
from ampcompare.report.foreign import names
from ampcompare.report.foreign.logged import Logged
from ampcompare.report.outputs import FORMATS, PICTURES
from ampcompare.report.words import listed, plural
from ampcompare.sweeps.check import trains_here
from ampcompare.sweeps.decide import Look
from ampcompare.sweeps.file.sweep import Sweep
from ampcompare.sweeps.points import BACKEND, BASELINE, Axes
from ampcompare.sweeps.row import Row

PUBLISHED = "published.name"
NOT_ALL = "are not all under output_dir; --until-decided needs it on a drive that all workers share"


def request_of(sweep: Sweep, folder: Path) -> Request:
    """The report of a sweep: what it varies is compared, first the backend; or a publication's arms, where
    it repeats one.
    """
    if (publication := _publication(sweep)) is not None:
        return Request([str(folder)], str(folder / "report"), reproduce=publication)
    no_setting = with_role(Role.BOOKKEEPING, Role.REPEAT)  # the report does not tell runs apart by them
    varied = [p for p in sweep.parameters if not (p.is_listed and p.grid_size() == 1)]
    keys = [p.key for p in varied if p.key not in no_setting]
    by = sorted(keys, key=lambda key: key != BACKEND) or [BACKEND]
    # A grid has the same values under every backend, which are compared like with like. A search has others
    # under each: the report sets the best of each beside each other, so that nothing may be pooled.
    groups = by if sweep.is_grid else [BACKEND]
    if not sweep.is_grid and BACKEND not in keys and not trains_here(sweep):  # which has no such setting
        chosen = [p.key for p in varied if p.key in keys and p.is_listed]
        groups = chosen[:1] or by[:1]
    metric = sweep.metric
    # Eval accuracy is what the report takes of our own runs by itself.
    is_taken = metric is not None and metric.name == metrics.EVAL_ACCURACY and trains_here(sweep)
    if metric is not None and (is_taken or not names.is_quality(metric.name)):
        metric = None
    return Request(
        [str(folder)],
        str(folder / "report"),
        _baseline(sweep, groups[0]),
        group_by=tuple(groups),
        metric=None if metric is None else metric.name,
        # Where the file leaves it out, the name of the metric says it better than W&B's default, minimize.
        goal=None if metric is None else (sweep.raw.get("metric") or {}).get("goal"),
        formats=tuple(name for name in FORMATS if name not in PICTURES),
    )


def _publication(sweep: Sweep) -> str | None:
    """The publication whose arms a sweep of our training runs."""
    if not trains_here(sweep):
        return None
    named = (p for p in sweep.parameters if p.key == PUBLISHED and p.is_listed and p.grid_size() == 1)
    return next((str(p.grid_value(0)) for p in named), None)


def _baseline(sweep: Sweep, key: str) -> str | None:
    """The value that the others are compared with: the same that a control repeats. None where values are
    drawn, and the report is to take one.
    """
    found = tuple(p for p in sweep.parameters if p.key == key and p.is_listed)
    if not found and key != BACKEND:
        return None
    return str(found[0].grid_value(Axes(found).baseline)) if found else BASELINE


def report(console: Console, sweep: Sweep, folder: Path) -> int:
    """The table and the page, where the runs left records; returns the report's exit code."""
    if not has_records(folder):
        print_line(console, one_line(f"no report: the runs left no W&B record under {folder}"))
        return 0
    try:
        request = request_of(sweep, folder)
        if not trains_here(sweep) and not _is_logged(request.metric, folder):
            said = f"metric.name={request.metric!r}: no run logged it; the report takes another metric"
            print_line(console, one_line(said))
            request = dataclasses.replace(request, metric=None, goal=None)
        return make_report(request, console)
    except UserError as problem:
        print_line(console, one_line(f"no report: {problem}"))
        return 0


def _is_logged(metric: str | None, folder: Path) -> bool:
    """Whether any run has it; of none nobody needs to look."""
    if metric is None:
        return True
    runs = load_runs([str(folder)])
    return any(metric in run.logged or run.summary_number(metric) is not None for run in runs)


def has_records(folder: Path) -> bool:
    """Whether any run left a record."""
    return any((folder / "wandb").glob("*run-*/run-*.wandb"))


def look_at(sweep: Sweep, folder: Path, rows: Sequence[Row]) -> Look:
    """Whether the report has decided every claim. Raises UserError where it does not have every run, and
    where none logged the metric.
    """
    seeds = plural(sweep.points.seeds, "seed")
    ended = [row.run_id for row in rows if row.state == "finished"]
    found = {path.stem.removeprefix("run-") for path in (folder / "wandb").glob("*run-*/run-*.wandb")}
    if missing := [run for run in ended if run not in found]:
        which = f"run {missing[0]}" if len(missing) == 1 else f"run {missing[0]} and {len(missing) - 1} more"
        raise UserError(f"{folder}: the records of {len(ended)} finished runs {NOT_ALL} (without: {which})")
    request = request_of(sweep, folder)
    if ended and not _is_logged(request.metric, folder):
        known = Logged(load_runs([str(folder)])).named()
        what = f"metric.name={request.metric!r}: no run logged it, so that nothing is decided by it"
        todo = f"compare these runs by one of those (ampcompare report {folder} --metric KEY), or start anew"
        raise UserError(f"{sweep.path}: {what}; logged: {known}; {todo}")
    analysis = request.analyse()
    if not analysis.comparisons:
        return Look(True, (f"look at {seeds}: nothing could be compared, more seeds would not change that",))
    undecided = {(claim.label, claim.question): claim for claim in analysis.undecided}
    decided: list[str] = []
    lines: list[str] = []
    for comparison in (c for c in analysis.comparisons if not c.is_control):
        if comparison.refusal:
            label = comparison.group.label
            lines.append(f"look at {seeds}: {label} is not compared: {comparison.refusal}")
            continue
        for question in ("speed", "quality"):
            what = f"{question} of {comparison.group.label}"
            if why := _silent(comparison, question):
                lines.append(f"look at {seeds}: nothing is claimed of the {what}: {why}")
            elif (comparison.group.label, question) not in undecided:
                decided.append(what)
    end = "" if undecided else ", which is all that can be" if lines else ", which is all"
    lines.insert(0, f"look at {seeds}: decided: {listed(decided) or 'nothing'}{end}")
    for claim in undecided.values():
        more = claim.more_seeds
        would = "" if more is None else f"; about {plural(more, 'more seed')} would decide it"
        lines.append(f"look at {seeds}: undecided: {claim.question} of {claim.label}{would}")
    return Look(analysis.is_decided, tuple(lines))


def _silent(comparison: Comparison, question: str) -> str:
    """Why no number of seeds would decide a question; nothing where one may."""
    if question == "speed" and comparison.shared_machine:
        return comparison.shared_machine
    if getattr(comparison, question) is None:
        name = comparison.metric.name if question == "quality" else "throughput"
        return f"no {name} that both sides have"
    return comparison.silence if question == "quality" else ""
