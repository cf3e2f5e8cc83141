"""`ampcompare sweep ... --status` and `--rerun`.

`--status` lists the state of every point of a sweep. `--rerun` makes new runs for the points that are neither
finished nor running.

A sweep of this command is read from its journal. A sweep on W&B's server is read from there, and each run is
matched to the point with the values of its config. Programs record values in different forms (YAML reads
`1e-3` as a text), so values are normalized before they are compared.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ampcompare import metrics
from ampcompare.analysis.grouping.outcome import determine_outcome
from ampcompare.errors import UserError, one_line
from ampcompare.identity.run_identity import typed
from ampcompare.runs import RunRecord
from ampcompare.runs.nested import lookup
from ampcompare.runs.run_state import RunState
from ampcompare.runs.wandb_api import API_PREFIX, parse_source, read_server_sweep
from ampcompare.runtime.console import print_line
from ampcompare.runtime.file_locks import is_locked
from ampcompare.runtime.formatting import plural
from ampcompare.runtime.paths import shell_command
from ampcompare.runtime.yaml_io import parse_yaml_value
from ampcompare.sweeps.journal import LOCK_FILE, Journal, SweepRun, SweepState, read_journal
from ampcompare.sweeps.pipeline import run_prepared
from ampcompare.sweeps.prepare import PreparedSweep, SweepOptions, prepare, prepare_sweep
from ampcompare.sweeps.run_end import reconcile
from ampcompare.sweeps.run_records import RunRecords, last_line
from ampcompare.sweeps.samplers import run_at
from ampcompare.sweeps.sweep import SEED, Sweep
from ampcompare.sweeps.sweep_file import KEYS, sweep_of
from ampcompare.sweeps.sweep_identity import continued_sweep, seed_of

EXIT_INCOMPLETE = 3
MAX_ROWS = 200
PLAIN_WIDTH = 400  # columns without a terminal: a program may read the lines, so none is folded
STYLES = {RunState.FAILED: "red", RunState.RUNNING: "yellow"}
# Exit codes of a run that the user stopped. A run that hyperband stops under W&B's agent has 255.
STOPPED_BY_HAND = (129, 130, 143)
DONE_STATES = (RunState.FINISHED, RunState.STOPPED)  # nothing is left to do
SHOWN_STATES = (*DONE_STATES, RunState.RUNNING, RunState.FAILED, RunState.PREEMPTED, RunState.QUEUED)
LOST_JOB = "its job has left the queue without a result"
ABSENT = "\0"  # no value is equal to it
DIGITS = 10  # in which equal numbers agree: the last digits of a multiple of 0.1 are rounding errors


@dataclass(frozen=True)
class SweepStatus:
    """The state of a sweep.

    Attributes:
        keys: The options that it varies.
        points: The newest run of each point; a point without a run has a run without an id. A search with
            unknown draws has only the runs that were started.
        reasons: The reason for a run's state, by its id.
        is_drawn: Whether points are drawn when they start, so that their values are not known before.
        not_begun: Number of points that are still to be drawn.
        has_journal: Whether this command started the sweep.
        is_driven: Whether a driver of the sweep is running.
        remarks: Further messages.
    """

    prepared: PreparedSweep
    keys: Sequence[str]
    points: Sequence[SweepRun]
    reasons: Mapping[str, str]
    is_drawn: bool
    not_begun: int
    has_journal: bool
    is_driven: bool
    remarks: Sequence[str]

    @property
    def open_points(self) -> list[SweepRun]:
        """The points at which something is left to do, or is running."""
        return [run for run in self.points if run.state not in DONE_STATES]

    @property
    def is_complete(self) -> bool:
        """Return whether nothing is left to do."""
        return not self.open_points and not self.not_begun

    @property
    def summary(self) -> str:
        """A summary such as `compare: 9 points: 7 finished, 1 failed, 1 queued`."""
        counts = Counter(run.state for run in self.points)
        counts[RunState.QUEUED] += self.not_begun
        parts = ", ".join(f"{counts[state]} {state}" for state in SHOWN_STATES if counts[state]) or "none"
        total = plural(len(self.points) + self.not_begun, "point")
        complete = "; complete" if self.is_complete else ""
        return f"{self.prepared.sweep.name}: {total}: {parts}{complete}"


def show_status(status: SweepStatus, console: Console) -> int:
    """List the points at which something is left to do, and the commands that do it.

    Returns:
        0 where the sweep is complete, EXIT_INCOMPLETE where it is not.
    """
    if status.open_points:
        _print_table(status, console)
    for line in (status.summary, *status.remarks):
        print_line(console, one_line(line))
    if status.is_driven:
        return 0 if status.is_complete else EXIT_INCOMPLETE
    # The command of the sweep, and W&B's agents, leave failed runs as they are.
    if status.not_begun or any(run.is_startable for run in status.open_points):
        print_line(console, one_line(f"to continue the sweep: {_continuing(status.prepared)}"))
    has_ended = any(run.state not in (RunState.QUEUED, RunState.RUNNING) for run in status.open_points)
    if has_ended and (status.has_journal or not status.is_drawn):
        print_line(
            console,
            one_line(f"to train these points again as new runs: {status.prepared.command.text('--rerun')}"),
        )
    return 0 if status.is_complete else EXIT_INCOMPLETE


def _continuing(prepared: PreparedSweep) -> str:
    """Return the command that trains the points that have not begun."""
    if prepared.sweep.on_server:
        return shell_command("wandb", "agent", prepared.command.file.removeprefix(API_PREFIX))
    return prepared.continuing.text()


def rerun(source: str, overrides: Sequence[str], console: Console, options: SweepOptions) -> int:
    """Run every point that is neither finished nor running, as a new run of the same sweep.

    Args:
        source: A sweep file, or `wandb:ENTITY/PROJECT/SWEEP`.
        overrides: The `key=value` words with which the sweep was run.
        console: Where to print.
        options: Options of the command line.

    Returns:
        The exit code of `run_sweep`; 3 where nothing failed and something is left.

    Raises:
        UserError: As `read_status`; and for a search on W&B's server, because its draws are not known here.
    """
    if options.until_decided:
        raise UserError(
            "--until-decided: adds seeds, but --rerun only repeats points that exist; leave one out"
        )
    status = read_status(source, overrides, options)
    print_line(console, one_line(status.summary))
    for line in status.remarks:
        print_line(console, one_line(line))
    to_run = [run for run in status.open_points if run.state is not RunState.RUNNING]
    if running := len(status.open_points) - len(to_run):
        print_line(
            console,
            f"{plural(running, 'point')} {'is' if running == 1 else 'are'} running and will not be "
            "started again",
        )
    if not to_run and not status.not_begun:
        return 0 if status.is_complete else EXIT_INCOMPLETE
    if status.is_drawn and not status.has_journal:
        raise UserError(
            "--rerun: W&B's server chooses the points of this search; continue it with wandb agent"
        )

    def requeue(prepared: PreparedSweep, journal: Journal) -> PreparedSweep:
        return _requeue(status, prepared, journal)

    code = run_prepared(status.prepared, console, requeue)
    if code >= 128 or options.cluster == "slurm":
        return code
    after = read_status(source, overrides, options)
    print_line(console, one_line(after.summary))
    return code or (0 if after.is_complete else EXIT_INCOMPLETE)


def _requeue(status: SweepStatus, prepared: PreparedSweep, journal: Journal) -> PreparedSweep:
    """Write to the journal what others have run, and new runs for the points to run again."""
    state, shared_plan = journal.state, prepared.shared_plan
    for point in status.points:
        plan = {} if shared_plan is None else {**shared_plan, "place": point.index, **point.plan}
        known = state.runs.get(point.index)
        # A run that a killed driver left may have finished since the status was read.
        has_ended = known is not None and known.state in DONE_STATES
        is_to_run = not has_ended and point.state not in (*DONE_STATES, RunState.RUNNING)
        if not is_to_run and (known is None or known.is_external):
            journal.add_external([replace(point, plan=plan)])
        elif is_to_run and (known is None or known.starts or known.is_external):
            journal.propose(replace(known or point, plan=known.plan if known else plan))
    if status.is_drawn and prepared.sweep.run_cap is None:  # without a cap, the search would never end
        return replace(prepared, sweep=replace(prepared.sweep, run_cap=len(state.runs)))
    return prepared


def read_status(source: str, overrides: Sequence[str], options: SweepOptions) -> SweepStatus:
    """Return the state of every point of a sweep, without writing or starting anything.

    Args:
        source: A sweep file, or `wandb:ENTITY/PROJECT/SWEEP`.
        overrides: The `key=value` words with which the sweep was run, options of a cluster included.
        options: Options of the command line.

    Raises:
        UserError: For bad input, or a sweep that cannot be read.
    """
    prepared, server_runs, reasons = _prepare(source, overrides, options)
    state = read_journal(prepared.output)
    sweep, remarks, is_driven = prepared.sweep, list[str](), False
    begun: list[SweepRun] = []
    if state is not None:
        sweep, _ = continued_sweep(sweep, prepared.definition, state, str(prepared.output))
        is_driven = is_locked(prepared.output / LOCK_FILE)
        if is_driven:
            remarks.append(f"this sweep is running now ({state.driver_name})")
        begun = _runs_of_journal(prepared, state, is_driven, reasons, remarks)
    repeats = [SEED] if sweep.added and sweep.seed not in sweep.varied else []
    keys, total = [*(p.key for p in sweep.varied), *repeats], sweep.total()
    # W&B's server makes its own draws, and chooses the points of a grid with a cap.
    is_server_order = sweep.on_server and (sweep.run_cap is not None or not sweep.is_grid)
    is_drawn = total is None or sweep.learns or is_server_order
    points: list[SweepRun] = []
    if total is not None and not is_drawn:
        seed = seed_of(sweep, prepared.definition)
        points = [run_at(sweep, seed, {}, index) for index in range(total)]
    matched, unmatched = _match_to_points(points, keys, server_runs)
    if is_drawn:
        points = begun or unmatched
        if sweep.run_cap is None:
            remarks.append("this search has no run_cap, so it has no end and no missing points")
    else:
        for run in [*matched, *begun]:
            if run.index < len(points) and _rank(run) >= _rank(points[run.index]):
                points[run.index] = run
        if unmatched:
            verb = "matches" if len(unmatched) == 1 else "match"
            remarks.append(
                f"{plural(len(unmatched), 'run')} of this sweep {verb} none of its points "
                f"(such as {unmatched[0].run_id})"
            )
    not_begun = max(0, (sweep.run_cap or 0) - len(points)) if is_drawn else 0
    return SweepStatus(
        prepared, keys, points, reasons, is_drawn, not_begun, state is not None, is_driven, tuple(remarks)
    )


def _runs_of_journal(
    prepared: PreparedSweep,
    state: SweepState,
    is_driven: bool,
    reasons: dict[str, str],
    remarks: list[str],
) -> list[SweepRun]:
    """Return the runs that this command started, with their present states.

    Args:
        state: The sweep as its journal tells it.
        is_driven: Whether a driver sees to the runs that are no jobs of Slurm.
        reasons: Takes the reason for a run's state, by its id.
        remarks: Takes further messages.
    """
    folder = prepared.output.resolve()
    running = state.own_running
    driven: dict[int, dict[str, str]] = {
        run.index: {} for run in running if is_driven and "job" not in run.process
    }
    jobs, waiting = _alive_jobs(state, folder, remarks)
    alive = {**driven, **jobs}
    changes = reconcile(
        state.own_runs if not is_driven else running,
        alive,
        RunRecords(folder),
        trains_here=prepared.trains_here,
        has_lost_driver=True,
    )
    changed = {change.run.index: change for change in changes}
    runs = []
    for run in state.own_runs:
        change = changed.get(run.index)
        end = change.end if change is not None else None
        if change is not None:
            run = replace(run, state=change.state, exit_code=end.exit_code if end else None)
        job = alive.get(run.index, {}).get("job")
        if run.is_startable and run.index in waiting:
            run = replace(run, state=RunState.RUNNING)  # as a run whose job waits in the queue
            reasons[run.run_id] = f"waits for its turn in job {waiting[run.index]}"
        elif run.state is RunState.RUNNING and job is not None:
            reasons[run.run_id] = f"in the queue as job {job}"
        elif end is not None and end.exit_code is None:
            reasons[run.run_id] = LOST_JOB if "job" in run.process else "the sweep command was killed"
        elif run.state is RunState.PREEMPTED and not run.signal_ends:
            reasons[run.run_id] = "interrupted"
        runs.append(run)
    return runs


def _alive_jobs(
    state: SweepState, folder: Path, remarks: list[str]
) -> tuple[dict[int, dict[str, str]], dict[int, str]]:
    """Return the jobs in Slurm's queue; if squeue fails, those of all running runs.

    Returns:
        The job of each run that is under way or comes first, and the job of each run that waits for its turn,
        by the index of the run.
    """
    from ampcompare.sweeps.executors.slurm import jobs_in_queue, runs_in_jobs

    known = {run.index: {"job": str(run.process["job"])} for run in state.own_running if "job" in run.process}
    if not known:
        return {}, {}
    try:
        in_queue = jobs_in_queue(state)
    except UserError as problem:
        remarks.append(f"{problem}; runs whose jobs have recorded no end are shown as running")
        return known, {}
    alive: dict[int, dict[str, str]] = {}
    waiting: dict[int, str] = {}
    for job, (run, *later) in runs_in_jobs(in_queue, state, folder):
        alive[run.index] = {"job": job}
        waiting |= dict.fromkeys((run.index for run in later), job)
    return alive, waiting


def _rank(run: SweepRun) -> tuple[bool, bool, bool]:
    """Return a sort key for the runs of one point: done before running, running before all others."""
    return run.state in DONE_STATES, run.state is RunState.RUNNING, bool(run.run_id)


def _prepare(
    source: str, overrides: Sequence[str], options: SweepOptions
) -> tuple[PreparedSweep, list[SweepRun], dict[str, str]]:
    """Return the sweep, the runs that W&B's server has of it, and the reasons for their states."""
    if not source.startswith(API_PREFIX):
        return prepare(source, overrides, options), [], {}
    local = {"--name": options.name is not None, "--control": bool(options.control)}
    for option in (option for option, is_set in local.items() if is_set):
        raise UserError(f"{option}: is only for a sweep without W&B's server; leave it out")
    entity, project, name = parse_source(source)
    config, records = read_server_sweep(source)
    # The server's config has more keys than a file may have.
    known = {key: value for key, value in config.items() if key in KEYS and value is not None}
    sweep = sweep_of(Path(source), known)
    runs, reasons = [], {}
    for record in records:
        run, reasons[record.id] = _run_of_record(record, sweep)
        runs.append(run)
    # Only W&B's agent stops runs early.
    sweep = replace(sweep, name=name, entity=entity, project=project, on_server=True, hyperband=None)
    return prepare_sweep(sweep, overrides, options, source), runs, reasons


def _run_of_record(record: RunRecord, sweep: Sweep) -> tuple[SweepRun, str]:
    """Return a run with its whole config as parameters, and the reason for its state."""
    metric = sweep.metric.name if sweep.metric else None
    outcome, reason = determine_outcome(record, metric or metrics.EVAL_ACCURACY)
    state = outcome or RunState.FAILED  # a rejected run has to run again
    if state is RunState.STOPPED and (not sweep.hyperband or record.exit_code in STOPPED_BY_HAND):
        state = RunState.PREEMPTED
    value = None
    if metric is not None:
        values = record.values(metric)
        value = float(values[-1]) if len(values) else record.summary_number(metric)
    began = int(record.started_at.timestamp()) if record.started_at else 0
    run = SweepRun(began, record.id, record.config, state=state, value=value, starts=1, is_external=True)
    return run, reason


def _match_to_points(
    points: Sequence[SweepRun], keys: Sequence[str], runs: Sequence[SweepRun]
) -> tuple[list[SweepRun], list[SweepRun]]:
    """Match runs of the server to points by their values.

    The newest run of a point counts. Done runs are matched first, so that each of several points with equal
    values gets one.

    Returns:
        The matched runs, and the others.
    """
    by_values: dict[Any, list[SweepRun]] = {}
    for point in points:
        by_values.setdefault(_values_of(point.parameters, keys), []).append(point)
    matched: dict[int, SweepRun] = {}
    unmatched: list[SweepRun] = []
    for run in sorted(runs, key=lambda run: (*(not is_so for is_so in _rank(run)), -run.index)):
        if same := by_values.get(_values_of(run.parameters, keys)):
            point = next((point for point in same if point.index not in matched), same[0])
            here = replace(run, index=point.index, parameters=point.parameters, plan=point.plan)
            matched.setdefault(point.index, here)
        else:
            unmatched.append(replace(run, index=len(unmatched)))
    return [*matched.values()], unmatched


def _values_of(tree: Mapping[str, Any], keys: Sequence[str]) -> tuple[str, ...]:
    """Return the normalized values of these keys in a config or in a run's parameters."""
    return tuple(_normalized(str(typed(key, lookup(tree, key, ABSENT)))) for key in keys)


@lru_cache(maxsize=100_000)
def _normalized(text: str) -> str:
    """Return a value in normalized form: numbers with DIGITS digits, `null` as `none`."""
    with suppress(ValueError):
        return f"{float(text):.{DIGITS}g}"  # before YAML, which reads 010 as 8
    try:
        value = parse_yaml_value("", text)
    except UserError:
        return text
    if isinstance(value, list | tuple):
        return str([_normalized(str(part)) for part in value])
    if isinstance(value, Mapping):
        return str(sorted((str(name), _normalized(str(part))) for name, part in value.items()))
    return "none" if str(value).lower() in ("none", "null") else str(value)


def _print_table(status: SweepStatus, console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False, show_edge=False)
    for head in ("state", "point", "run", "reason", "log"):
        table.add_column(head, overflow="fold")
    for run in status.open_points[:MAX_ROWS]:
        arm, reason = run.plan.get("arm"), status.reasons.get(run.run_id)
        values = " ".join(f"{key}={lookup(run.parameters, key)}" for key in status.keys)
        log = status.prepared.output / "logs" / f"{run.run_id}.log"
        reason = reason or (last_line(log) if run.state is RunState.FAILED else "")
        cells = [f"{values} (control, {arm})" if arm else values, run.run_id, reason]
        cells.append(str(log) if run.run_id and log.is_file() else "")
        state = Text(run.state.value, style=STYLES.get(run.state, ""))
        table.add_row(state, *(Text(one_line(cell)) for cell in cells))
    wide = console if console.is_terminal else Console(file=console.file, width=PLAIN_WIDTH, highlight=False)
    wide.print(table)
    if len(status.open_points) > MAX_ROWS:
        print_line(console, f"and {len(status.open_points) - MAX_ROWS:,} more")
