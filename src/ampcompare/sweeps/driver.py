"""The driver of a sweep: tell `decide` what happens, and carry out what it decides.

A sweep has one driver. It keeps nothing that the next one would need: that is in the journal, in the facts
that ended runs leave, and in the records of the runs. The executor decides nothing.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from ampcompare.errors import UserError, one_line
from ampcompare.runs.run_state import RunState
from ampcompare.sweeps.code_version import CodeWatch
from ampcompare.sweeps.decisions import (
    Action,
    AllEnded,
    Append,
    Cancel,
    Event,
    LookAtRuns,
    Looked,
    Propose,
    RunChanged,
    RunLogged,
    Say,
    Situation,
    SlotsFree,
    Start,
    StopRequested,
    decide,
)
from ampcompare.sweeps.executors import Executor
from ampcompare.sweeps.interim_looks import Look
from ampcompare.sweeps.journal import Journal, SweepRun
from ampcompare.sweeps.leftovers import end_leftovers
from ampcompare.sweeps.prepare import PreparedSweep
from ampcompare.sweeps.progress import SweepProgress
from ampcompare.sweeps.run_end import EndRules, RunChange, reconcile
from ampcompare.sweeps.run_log import last_line
from ampcompare.sweeps.run_records import MAX_CORE_FRACTION, FolderFacts, RunRecords
from ampcompare.sweeps.samplers import run_at
from ampcompare.sweeps.stop_request import SweepStopRequest
from ampcompare.sweeps.sweep import Sweep
from ampcompare.sweeps.sweep_identity import seed_of

log = logging.getLogger(__name__)

MAX_PAUSE_SECONDS = 1.0  # between two looks at the executor, however many runs it has
MAX_FIRST_FAILURES = 3  # the first runs of a sweep that fail with one message end it
STOP_POLL_SECONDS = 0.1  # between two looks at the stop request during a pause


class SweepDriver:
    """Runs a sweep to its end.

    Args:
        prepared: The sweep with its options.
        journal: The sweep's journal.
        executor: Where the runs happen.
        progress: Prints the progress.
        look: Makes an interim look at the runs, with `--until-decided`.
        describe_first_run: Returns lines about the other runs, after the first run has finished.

    Attributes:
        sweep: The sweep, with the seeds that were added so far.
        changed_code: The user's files that changed since the driver started. Then no further run starts.
        failure: The message with which the first runs have failed. Then no further run starts.
    """

    def __init__(
        self,
        prepared: PreparedSweep,
        journal: Journal,
        executor: Executor,
        progress: SweepProgress,
        stop: SweepStopRequest,
        look: Callable[[Sweep, Path, Sequence[SweepRun]], Look],
        describe_first_run: Callable[[PreparedSweep, Path, SweepRun, float | None], list[str]] | None = None,
    ) -> None:
        self.prepared, self.journal, self.executor = prepared, journal, executor
        self.progress, self.stop = progress, stop
        self._look = look
        self._describe_first_run = describe_first_run
        self.sweep = self.progress.sweep = self._sweep_now()
        self._seed = seed_of(prepared.sweep, journal.state.definition)
        self._code = CodeWatch(prepared.code_files, journal.state.code)
        self.changed_code: list[str] = []
        self.failure = ""
        self._failures: list[str] = []  # the messages of the runs that failed
        self._records = records_of(prepared, journal.folder)
        self._handled_stops: set[StopRequested] = set()
        self._has_left = False  # the runs that could not be cancelled go on without this driver

    def _sweep_now(self) -> Sweep:
        """Return the sweep with the seeds that were added so far."""
        return replace(self.prepared.sweep, added=tuple(self.journal.state.added_seeds))

    def run(self) -> None:
        """Run every point that is left; with looks, add seeds until each claim is decided.

        Returns when all has ended; or when the sweep is asked to stop, or the user's code has changed, and
        the running runs have ended.

        Raises:
            UserError: If the journal cannot be written.
        """
        while not self._has_left:
            self.submit_free()
            if not (self.journal.state.own_running or self.executor.assigned):
                groups = len(self.journal.state.seed_groups)
                self._handle(AllEnded())
                if len(self.journal.state.seed_groups) == groups or not self._decide(SlotsFree()):
                    return
                continue
            began = time.monotonic()
            has_changed = self._observe()
            # What a look at many runs costs stays a small fraction of a core.
            pause = 0.0 if has_changed else (time.monotonic() - began) / MAX_CORE_FRACTION
            self._follow_metrics()
            self._pause(max(self.executor.poll_seconds, min(MAX_PAUSE_SECONDS, pause)))
            self._notice_stop()

    def submit_free(self) -> list[list[SweepRun]]:
        """Give the executor as many runs as it takes, and return the runs of each process."""
        actions = self._decide(SlotsFree())
        if actions and (changed := self._code.changed()):
            self.changed_code = changed
            self.stop.request_after_failure("the code of the runs changed")
            return []
        self._carry_out(actions)
        started = [action for action in actions if isinstance(action, Start)]
        return [self._runs_of(indices) for action in started for indices in action.groups]

    def _runs_of(self, indices: Iterable[int]) -> list[SweepRun]:
        return [self.journal.state.runs[index] for index in indices]

    def _pause(self, seconds: float) -> None:
        """Sleep; return early when the sweep is asked to stop."""
        deadline = time.monotonic() + seconds
        while not self._new_stops() and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(STOP_POLL_SECONDS, left))

    def _new_stops(self) -> list[StopRequested]:
        """Return the stop requests that the runs have not been told of."""
        made = [StopRequested()] if self.stop.signal else []
        if self.stop.is_at_once:
            made.append(StopRequested(at_once=True))
        return [request for request in made if request not in self._handled_stops]

    def _notice_stop(self) -> None:
        """Pass on a stop request; not in the signal's handler, which may interrupt a print."""
        for request in self._new_stops():
            self._handled_stops.add(request)
            if not self._has_left:
                self._handle(request)

    def _observe(self) -> bool:
        """See what became of the runs; return whether one has changed."""
        state = self.journal.state
        self._records.refresh()
        # A process that trains several runs may have begun some of those that waited in it.
        assigned = [index for indices in self.executor.assigned for index in indices]
        alive = self.executor.alive()
        candidates = [run for run in self._runs_of(dict.fromkeys([*assigned, *alive])) if run.is_startable]
        changes = reconcile(
            [*state.own_running, *candidates],
            alive,
            FolderFacts(self.journal.folder, self._records),
            rules_of(self.prepared, self.executor),
            has_lost_driver=False,
        )
        for change in changes:
            self._handle(event_of(change, self.prepared, self.journal, self._records))
            self._records.forget(state.runs[change.index].run_id)
        return bool(changes)

    def _follow_metrics(self) -> None:
        """See what running runs have logged."""
        if self.prepared.sweep.metric is None:
            return
        running = {run.run_id: run for run in self.journal.state.own_running}
        for run_id, values in self._records.follow(running):
            run = running[run_id]
            self.progress.follow(run, values[-1] if values else None)
            self._handle(RunLogged(run.index, values))

    def _decide(self, event: Event) -> list[Action]:
        is_stopping = self.stop.is_made()
        looks, slots = self.prepared.looks, self.executor.slots
        assigned = self.executor.assigned
        return decide(Situation(self.journal.state, self.sweep, slots, looks, is_stopping, assigned), event)

    def _handle(self, event: Event) -> None:
        self._carry_out(self._decide(event))

    def _carry_out(self, actions: Iterable[Action]) -> None:
        journal = self.journal
        for action in actions:
            match action:
                case Append():
                    journal.append(action.event, **action.fields)
                    self._show(action)
                case Propose():
                    tried = [*journal.state.runs.values()] if self.sweep.learns else []
                    plan = self.prepared.shared_plan
                    journal.propose(run_at(self.sweep, self._seed, plan, action.index, tried))
                case Start():
                    groups = [self._runs_of(indices) for indices in action.groups]
                    places = self.executor.submit(groups)
                    for (first, *_), process in zip(groups, places, strict=True):
                        self._handle(RunChanged(RunChange(first.index, RunState.RUNNING, process=process)))
                case Cancel():
                    self._cancel(action)
                case LookAtRuns():
                    runs = [run for _, run in sorted(journal.state.runs.items())]
                    self._handle(Looked(self._look(self.sweep, journal.folder, runs)))
                case Say():
                    log.info(one_line(action.line))

    def _cancel(self, action: Cancel) -> None:
        runs = self._runs_of(action.indices)
        try:
            self.executor.cancel(runs, at_once=action.at_once)
        except UserError as problem:
            log.warning(one_line(str(problem)))
            self._has_left = self.stop.is_made()

    def _show(self, action: Append) -> None:
        """Print what was written to the journal."""
        state = self.journal.state
        if action.event == "seeds":
            self.sweep = self.progress.sweep = self._sweep_now()
        elif action.event == "started":
            self.progress.start(state.runs[action.fields["index"]])
        elif action.event == "ended":
            run = state.runs[action.fields["index"]]
            seconds = self.progress.end(run)
            self._note_failure(run)
            is_first = run.state is RunState.FINISHED and state.count(RunState.FINISHED) == 1
            if is_first and self._describe_first_run is not None:
                # A run of Slurm or Ray has also waited in a queue.
                is_local = not {"job", "ray"} & run.process.keys()
                process_seconds = seconds if is_local else None
                folder = self.journal.folder
                for line in self._describe_first_run(self.prepared, folder, run, process_seconds):
                    log.info(one_line(line))

    def _note_failure(self, run: SweepRun) -> None:
        """Start no further run if the first ones have failed with the same message."""
        if run.state is not RunState.FAILED:
            return
        self._failures.append(last_line(self.journal.folder / "logs" / f"{run.run_id}.log"))
        total = self.sweep.total()
        if total and total <= MAX_FIRST_FAILURES:
            return  # no run is left
        has_success = bool(self.journal.state.count(RunState.FINISHED, RunState.STOPPED))
        is_same = len(self._failures) == MAX_FIRST_FAILURES and len(set(self._failures)) == 1
        if is_same and self._failures[0] and not has_success:
            self.failure = self._failures[0]
            self.stop.request_after_failure("the first runs failed")


def records_of(prepared: PreparedSweep, folder: Path) -> RunRecords:
    """Return the records of the runs of a sweep."""
    metric = prepared.sweep.metric
    return RunRecords(folder, metric.name if metric else None)


def rules_of(prepared: PreparedSweep, executor: Executor) -> EndRules:
    """Return what the meaning of an end depends on."""
    return EndRules(prepared.trains_here, executor.max_signal_ends)


def event_of(change: RunChange, prepared: PreparedSweep, journal: Journal, records: RunRecords) -> RunChanged:
    """Return a change with the values that the run has logged, where they count."""
    counts = change.state in (RunState.FINISHED, RunState.STOPPED) or prepared.sweep.hyperband is not None
    if change.state is RunState.RUNNING or not counts:
        return RunChanged(change)
    return RunChanged(change, tuple(records.values(journal.state.runs[change.index].run_id)))


def recover(prepared: PreparedSweep, journal: Journal, executor: Executor) -> None:
    """Write down what became of the runs of an earlier driver that was killed, or has left them to Slurm.

    What a killed driver has left on this machine is ended, with a checkpoint. A run whose record says that it
    finished has finished; the others are to be continued.

    Args:
        executor: Where the runs will happen. It has started none yet.
    """
    folder, state, cluster = journal.folder, journal.state, prepared.options.cluster
    submitted = state.submitted
    own = [run for _, run in sorted(state.runs.items()) if not run.is_external]
    # Tasks of Ray are left to its executor, which looks on every node of the cluster.
    elsewhere = ("job", "ray") if cluster == "ray" else ("job",)
    local = [
        run
        for run in own
        if not any(key in run.process for key in elsewhere)
        and (run.state is RunState.RUNNING or run.index not in submitted)
    ]
    if local:
        end_leftovers(local, folder, announces=True)
    # What became of Slurm's jobs only the queue can tell.
    known = [run for run in own if cluster == "slurm" or "job" not in run.process]
    records = records_of(prepared, folder)
    changes = reconcile(
        known,
        executor.alive(),
        FolderFacts(folder, records),
        rules_of(prepared, executor),
        has_lost_driver=True,
    )
    for change in changes:
        situation = Situation(state, prepared.sweep, executor.slots)
        for action in decide(situation, event_of(change, prepared, journal, records)):
            assert isinstance(action, Append)
            journal.append(action.event, **action.fields)
