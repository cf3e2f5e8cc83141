"""The driver of a sweep: see what became of the runs, and carry out what `next_step` says.

A sweep has one driver. It keeps nothing that the next one would need: that is in the journal, in the facts
that ended runs leave, and in the records of the runs. The executor decides nothing.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ampcompare.errors import EXIT_UNSUITABLE, UserError, one_line
from ampcompare.identity.run_identity import differing
from ampcompare.runs.run_state import RunState
from ampcompare.sweeps.code_version import hash_files
from ampcompare.sweeps.decisions import (
    Look,
    Situation,
    Step,
    Train,
    next_step,
    reached_bands,
    seeds_after_look,
)
from ampcompare.sweeps.executors import Executor
from ampcompare.sweeps.journal import Journal, SweepRun
from ampcompare.sweeps.prepare import PreparedSweep
from ampcompare.sweeps.progress import SweepProgress
from ampcompare.sweeps.run_end import RunChange, reconcile
from ampcompare.sweeps.run_process import end_leftovers
from ampcompare.sweeps.run_records import MAX_CORE_FRACTION, RunRecords, last_line
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
        records: What the runs leave.
        progress: Prints the progress.
        look: Makes an interim look at the runs, with `--until-decided`.
        describe_first_run: Returns lines about the other runs, after the first run has finished.

    Attributes:
        sweep: The sweep, with the seeds that were added so far.
        changed_code: The user's files that changed since the driver started. Then no further run starts.
        failure: The message with which the first runs have failed. Then no further run starts.
        refusal: Why this machine cannot train some runs of the sweep. Then no further run starts.
    """

    def __init__(
        self,
        prepared: PreparedSweep,
        journal: Journal,
        executor: Executor,
        records: RunRecords,
        progress: SweepProgress,
        stop: SweepStopRequest,
        look: Callable[[Sweep, Path, Sequence[SweepRun]], Look],
        describe_first_run: Callable[[PreparedSweep, Path, SweepRun, float | None], list[str]] | None = None,
    ) -> None:
        self.prepared, self.journal, self.executor = prepared, journal, executor
        self.progress, self.stop = progress, stop
        self._look = look
        self._describe_first_run = describe_first_run
        self.sweep = self.progress.sweep = prepared.sweep_now(journal.state)
        self._seed = seed_of(prepared.sweep, journal.state.definition)
        self._code = journal.state.code or hash_files(prepared.code_files)
        self.changed_code: list[str] = []
        self.failure = ""
        self.refusal = ""
        self._failures: list[str] = []  # the messages of the runs that failed
        self._records = records
        self._noticed_level = 0  # the `_stop_level` that the runs have been told of
        self._has_left = False  # the runs that could not be cancelled go on without this driver

    def run(self) -> None:
        """Run every point that is left; with looks, add seeds until each claim is decided.

        Returns when all has ended; or when the sweep is asked to stop, or the user's code has changed, and
        the running runs have ended.

        Raises:
            UserError: If the journal cannot be written.
        """
        while not self._has_left:
            match next_step(self.situation()):
                case Train(groups):
                    self.train(groups)
                case Step.WAIT:
                    self._wait()
                case Step.LOOK_AT_RUNS:
                    self._look_at_runs()
                case Step.OVER:
                    return

    def situation(self) -> Situation:
        """Return what the next step depends on."""
        return Situation(
            self.journal.state,
            self.sweep,
            self.executor.slots,
            self.prepared.looks,
            self.stop.is_made(),
            self.executor.assigned,
        )

    def train(self, groups: Sequence[Sequence[int]]) -> list[list[SweepRun]]:
        """Give runs of these points to the executor, and return the runs of each process.

        If the user's code has changed, nothing starts.
        """
        journal = self.journal
        if changed := self._find_changed_code():
            self.changed_code = changed
            self.stop.request_after_failure("the code of the runs changed")
            return []
        for index in (index for indices in groups for index in indices if index not in journal.state.runs):
            tried = [*journal.state.runs.values()] if self.sweep.learns else []
            journal.propose(run_at(self.sweep, self._seed, self.prepared.shared_plan, index, tried))
        runs = [self._runs_of(indices) for indices in groups]
        places = self.executor.submit(runs)
        for (first, *_), place in zip(runs, places, strict=True):
            self.note_change(RunChange(first, RunState.RUNNING, process=place))
        return [self._runs_of(indices) for indices in groups]

    def _find_changed_code(self) -> list[str]:
        """Return the user's files that have other content now, or that are missing."""
        files = self.prepared.code_files
        try:
            hashes = hash_files(files)
        except UserError:  # an editor may be writing a file
            hashes = {}
        return [path for path, _, _ in differing(self._code, hashes)] if files else []

    def _runs_of(self, indices: Iterable[int]) -> list[SweepRun]:
        return [self.journal.state.runs[index] for index in indices]

    def _wait(self) -> None:
        """See what became of the runs, then pause. What that costs stays a small fraction of a core."""
        began = time.monotonic()
        has_changed = self.observe()
        pause = 0.0 if has_changed else (time.monotonic() - began) / MAX_CORE_FRACTION
        self._follow_metrics()
        deadline = time.monotonic() + max(self.executor.poll_seconds, min(MAX_PAUSE_SECONDS, pause))
        while self._stop_level() == self._noticed_level and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(STOP_POLL_SECONDS, left))
        self.notice_stop()

    def _stop_level(self) -> int:
        """Return 0 without a stop request, 1 if the runs are to end in order, 2 if they are to be killed."""
        return bool(self.stop.signal) + self.stop.is_at_once

    def notice_stop(self) -> None:
        """Pass on a stop request; not in the signal's handler, which may interrupt a print."""
        while self._noticed_level < self._stop_level():
            self._noticed_level += 1
            at_once = self._noticed_level > 1
            # Those that wait in a process may begin meanwhile.
            waiting = [index for indices in self.executor.assigned for index in indices]
            runs = [*self.journal.state.own_running, *self._runs_of(waiting)]
            if not runs or self._has_left:
                continue
            if not at_once:
                log.info("stopping: waiting for the runs to end; Ctrl-C again kills them")
            self.cancel(runs, at_once=at_once)

    def cancel(self, runs: Sequence[SweepRun], *, at_once: bool = False) -> None:
        """Ask runs to end, with a checkpoint; or kill them."""
        try:
            self.executor.cancel(runs, at_once=at_once)
        except UserError as problem:
            log.warning(one_line(str(problem)))
            self._has_left = self.stop.is_made()

    def observe(self) -> bool:
        """See what became of the runs; return whether one has changed."""
        state = self.journal.state
        self._records.refresh()
        # A process that trains several runs may have begun some of those that waited in it.
        assigned = [index for indices in self.executor.assigned for index in indices]
        alive = self.executor.alive()
        candidates = [run for run in self._runs_of(dict.fromkeys([*assigned, *alive])) if run.is_startable]
        runs = [*state.own_running, *candidates]
        limit = self.executor.max_signal_ends
        ours = self.prepared.trains_here
        changes = reconcile(runs, alive, self._records, limit, trains_here=ours, has_lost_driver=False)
        for change in changes:
            self.note_change(change)
            self._records.forget(change.run.run_id)
        return bool(changes)

    def _follow_metrics(self) -> None:
        """See what running runs have logged."""
        if self.sweep.metric is None:
            return
        running = {run.run_id: run for run in self.journal.state.own_running}
        for run_id, values in self._records.follow(running):
            self.progress.follow(running[run_id], values[-1] if values else None)
            self.compare_at_bands(running[run_id], values)

    def compare_at_bands(self, run: SweepRun, values: Sequence[float]) -> None:
        """Compare a run at the bands of hyperband that it has reached, and stop it if it falls behind.

        Args:
            values: Every value of the metric so far, in order.
        """
        for band in reached_bands(self.journal.state, self.sweep, run, values):
            if band.is_behind:
                # In this order: a driver that is killed in between compares the run again when it goes on.
                self.cancel([run])
            self.journal.reach_band(run, band.band, band.value, stopped=band.is_behind)
            if band.is_behind:
                return

    def note_change(self, change: RunChange) -> None:
        """Write down that a run was started, or how it ended, and print it."""
        write_change(change, self.sweep, self.journal, self._records)
        run = self.journal.state.runs[change.run.index]
        if change.end is None:
            self.progress.start(run)
            return
        seconds = self.progress.end(run)
        if run.exit_code == EXIT_UNSUITABLE and self.prepared.trains_here:
            self.refusal = last_line(self.journal.folder / "logs" / f"{run.run_id}.log")
            self.stop.request_after_failure("this machine cannot train some runs")
            self.cancel(self.journal.state.own_running)
        elif run.state is RunState.FAILED:
            self._note_failure(run)
        is_first = run.state is RunState.FINISHED and self.journal.state.count(RunState.FINISHED) == 1
        if is_first and self._describe_first_run is not None:
            # A run of Slurm or Ray has also waited in a queue.
            is_local = not {"job", "ray"} & run.process.keys()
            process_seconds = seconds if is_local else None
            for line in self._describe_first_run(self.prepared, self.journal.folder, run, process_seconds):
                log.info(one_line(line))

    def _note_failure(self, run: SweepRun) -> None:
        """Start no further run if the first runs failed with one message."""
        self._failures.append(last_line(self.journal.folder / "logs" / f"{run.run_id}.log"))
        message, total = self._failures[0], self.sweep.total()
        if total and total <= MAX_FIRST_FAILURES:
            return  # no run is left
        has_success = bool(self.journal.state.count(RunState.FINISHED, RunState.STOPPED))
        is_same = len(self._failures) == MAX_FIRST_FAILURES and len(set(self._failures)) == 1
        if is_same and message and not has_success:
            self.failure = message
            self.stop.request_after_failure("the first runs failed")

    def _look_at_runs(self) -> None:
        """Look whether the report has decided every claim, and add the seeds of the next look if not."""
        runs = [run for _, run in sorted(self.journal.state.runs.items())]
        look = self._look(self.sweep, self.journal.folder, runs)
        group = seeds_after_look(self.sweep, self.prepared.looks, look)
        self.journal.add_seeds(group)
        self.sweep = self.progress.sweep = self.prepared.sweep_now(self.journal.state)
        for line in group.messages:
            log.info(one_line(line))


def write_change(change: RunChange, sweep: Sweep, journal: Journal, records: RunRecords) -> None:
    """Write to the journal that a run was started, or how it ended, with the values that it has logged.

    A run may reach its last bands and end before the driver reads them. They count for the other runs.
    """
    run, end = journal.state.runs[change.run.index], change.end
    if end is None:
        journal.start(run, change.process)
        return
    has_value = change.state in (RunState.FINISHED, RunState.STOPPED)
    values = records.values(run.run_id) if has_value or sweep.hyperband is not None else []
    for band in reached_bands(journal.state, sweep, run, values):
        journal.reach_band(run, band.band, band.value, stopped=False)
    value = values[-1] if has_value and values and math.isfinite(values[-1]) else None
    journal.end(run, change.state, value, end.exit_code, by_signal=change.by_signal)


def recover(prepared: PreparedSweep, journal: Journal, executor: Executor, records: RunRecords) -> None:
    """Write down what became of the runs of an earlier driver that was killed, or has left them to Slurm.

    What a killed driver has left on this machine is ended, with a checkpoint. A run whose record says that it
    finished has finished; the others are to be continued.

    Args:
        executor: Where the runs will happen. It has started none yet.
    """
    state, submitted = journal.state, journal.state.submitted
    # Tasks of Ray are left to its executor, which looks on every node of the cluster.
    elsewhere = ("job", "ray") if prepared.command.options.cluster == "ray" else ("job",)
    local = [
        run
        for run in state.own_runs
        if not any(key in run.process for key in elsewhere)
        and (run.state is RunState.RUNNING or run.index not in submitted)
    ]
    if local:
        end_leftovers(local, journal.folder, announces=True)
    catch_up(prepared, journal, executor, records)


def catch_up(prepared: PreparedSweep, journal: Journal, executor: Executor, records: RunRecords) -> None:
    """Write down what became of the runs of an earlier driver, of which nothing runs on this machine."""
    cluster = prepared.command.options.cluster
    # What became of Slurm's jobs only the queue can tell.
    known = [run for run in journal.state.own_runs if cluster == "slurm" or "job" not in run.process]
    limit, ours = executor.max_signal_ends, prepared.trains_here
    for change in reconcile(known, executor.alive(), records, limit, trains_here=ours, has_lost_driver=True):
        write_change(change, prepared.sweep, journal, records)
