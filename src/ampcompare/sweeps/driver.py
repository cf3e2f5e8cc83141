"""The driver of a sweep: choose the next run, let an executor start it, and write every event to the journal.

A sweep has one driver. Its whole state is in the journal, so a new driver continues where a killed driver
ended. The executor decides nothing.
"""

import math
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ampcompare.runs.run_state import RunState
from ampcompare.sweeps.code_version import CodeWatch
from ampcompare.sweeps.executors import Executor, RunEvent
from ampcompare.sweeps.interim_looks import Look, next_seeds
from ampcompare.sweeps.journal import Journal, SeedGroup, SweepRun
from ampcompare.sweeps.metric_tail import MetricTail
from ampcompare.sweeps.prepare import PreparedSweep
from ampcompare.sweeps.progress import SweepProgress
from ampcompare.sweeps.run_process import GUARD_MARK, end_leftovers, interrupted_at, state_after_driver
from ampcompare.sweeps.samplers import falls_behind, run_at
from ampcompare.sweeps.stop_request import SweepStopRequest
from ampcompare.sweeps.sweep import Sweep
from ampcompare.sweeps.sweep_identity import seed_of

POLL_SECONDS = 0.25


class SweepDriver:
    """Runs a sweep to its end.

    Args:
        prepared: The sweep with its options.
        journal: The sweep's journal.
        executor: Where the runs happen.
        progress: Prints the progress.
        stop: The stop request.
        look: Makes an interim look at the runs, with `--until-decided`.
        describe_first_run: Returns lines about the other runs, after the first run has finished.

    Attributes:
        sweep: The sweep, with the seeds that were added so far.
        changed_code: The user's files that changed since the driver started. Then no further run starts.
    """

    def __init__(
        self,
        prepared: PreparedSweep,
        journal: Journal,
        executor: Executor,
        progress: SweepProgress,
        stop: SweepStopRequest,
        look: Callable[[Sweep, Path, Sequence[SweepRun]], Look],
        describe_first_run: Callable[[PreparedSweep, Path, SweepRun], list[str]] | None = None,
    ) -> None:
        self.prepared, self.journal, self.executor = prepared, journal, executor
        self.progress, self.stop = progress, stop
        self._look = look
        self._describe_first_run = describe_first_run
        self.sweep = self.progress.sweep = self._sweep_now()
        self._seed = seed_of(prepared.sweep, journal.state.definition)
        self._code = CodeWatch(prepared.code_files, journal.state.code_versions)
        self.changed_code: list[str] = []
        self._tails: dict[int, MetricTail] = {}
        self._is_stopping = False
        self._cancelled: set[int] = set()
        self._killed: set[int] = set()
        self._waiting: deque[SweepRun] = deque()

    def _sweep_now(self) -> Sweep:
        """Return the sweep with the seeds that were added so far."""
        return replace(self.prepared.sweep, added=tuple(self.journal.state.added_seeds))

    @property
    def _runs(self) -> list[SweepRun]:
        return [run for _, run in sorted(self.journal.state.runs.items())]

    def run(self) -> None:
        """Run every point that is left; with looks, add seeds until each claim is decided.

        Returns when all has ended; or when somebody has asked to stop, or the user's code has changed, and
        the running runs have ended.

        Raises:
            UserError: If the journal cannot be written.
        """
        self.start()
        while True:
            submitted = self._submit_free()
            if not submitted and not self._in_flight():
                if self.stop.is_made() or not self._add_seeds():
                    break
                continue
            for event in self.executor.poll(POLL_SECONDS):
                self.handle(event)
            self._watch_runs()

    def start(self) -> None:
        """Hear what became of the runs that an earlier driver started, and queue those that are left."""
        for event in self.executor.poll(0):
            self.handle(event)
        self._waiting = deque(run for run in self._runs if run.is_startable and not run.is_external)

    def _in_flight(self) -> int:
        """Return the number of runs that the executor has."""
        runs = self.journal.state.runs.values()
        return sum(run.state is RunState.RUNNING and not run.is_external for run in runs)

    def submit_all(self) -> list[SweepRun]:
        """Submit as many runs as the executor takes, and return them."""
        return self._submit_free()

    def _submit_free(self) -> list[SweepRun]:
        running = self._in_flight()
        chosen: list[SweepRun] = []
        while not self.stop.is_made() and running + len(chosen) < self.executor.slots:
            run = self._next_run()
            if run is None:
                break
            chosen.append(run)
        if chosen and (changed := self._code.changed()):
            self.changed_code = changed
            self.stop.request_after_failure("the code of the runs changed")
            return []
        if chosen:
            self.executor.submit(chosen)
            for event in self.executor.poll(0):
                self.handle(event)
        return chosen

    def _next_run(self) -> SweepRun | None:
        if self._waiting:
            return self._waiting.popleft()
        sweep, state = self.sweep, self.journal.state
        index, total, metric = 1 + max(state.runs, default=-1), sweep.total(), sweep.metric
        if total is not None and index >= total:
            return None
        if metric is not None and metric.target is not None:
            finished = state.with_state(RunState.FINISHED)
            if any(run.value is not None and metric.is_reached(run.value) for run in finished):
                return None
        tried = self._runs if sweep.learns else []
        return self.journal.propose(run_at(sweep, self._seed, self.prepared.shared_plan, index, tried))

    def handle(self, event: RunEvent) -> None:
        """Write down what an executor reports, and queue a run again that is to be continued."""
        run = self.journal.state.runs[event.index]
        if event.state is RunState.RUNNING:
            self.journal.append("started", index=run.index, run_id=run.run_id, process=event.process)
            self._tails[run.index] = self._tail(run)
            self.progress.start(self.journal.state.runs[run.index])
            return
        state = RunState.STOPPED if run.is_stopped_early else event.state
        tail = self._tails.pop(run.index, None) or self._tail(run)
        value = tail.final_value() if state in (RunState.FINISHED, RunState.STOPPED) else None
        run = self.journal.end(run, state, value, event.exit_code, by_signal=event.by_signal)
        self.progress.end(run)
        is_first = state is RunState.FINISHED and len(self.journal.state.with_state(state)) == 1
        if is_first and self._describe_first_run is not None:
            for line in self._describe_first_run(self.prepared, self.journal.folder, run):
                self.progress.say(line)
        if state is RunState.PREEMPTED and not self.stop.is_made():
            self._waiting.append(run)

    def _tail(self, run: SweepRun) -> MetricTail:
        metric = self.prepared.sweep.metric
        return MetricTail(self.journal.folder, run.run_id, metric.name if metric else None)

    def _watch_runs(self) -> None:
        """Follow the metric of running runs; stop those that fall behind, and all after a stop request."""
        if self.stop.signal and not self._is_stopping:  # not in the handler, which may interrupt a print
            self._is_stopping = True
            self.progress.say("stopping: waiting for the runs to end; Ctrl-C again kills them")
        for index in [*self._tails]:
            run = self.journal.state.runs[index]
            if self.executor.has_live_records:
                values = self._tails[index].values()
                self.progress.follow(run, values[-1] if values else None)
                if self.prepared.sweep.hyperband and not run.is_stopped_early:
                    self._check_bands(run, values)
            if self.stop.signal and index not in self._cancelled:
                self._cancelled.add(index)
                self.executor.cancel(run)
            if self.stop.is_at_once and index not in self._killed:
                self._killed.add(index)
                self.executor.cancel(run, at_once=True)

    def _check_bands(self, run: SweepRun, values: Sequence[float]) -> None:
        metric, early = self.prepared.sweep.metric, self.prepared.sweep.hyperband
        assert metric
        assert early
        # What is not finite counts as the worst number that JSON has.
        best, worst = (max, -sys.float_info.max) if metric.maximize else (min, sys.float_info.max)
        for band in early.bands:
            if band > len(values):
                return
            if band in run.bands:
                continue
            reached = [value if math.isfinite(value) else worst for value in values[:band]]
            value = reached[-1] if early.strict else best(reached)
            everyone = [value, *(other.bands[band] for other in self._runs if band in other.bands)]
            is_behind = falls_behind(value, everyone, early.eta, maximize=metric.maximize)
            self.journal.append("band", index=run.index, band=band, value=value, stopped=is_behind)
            if is_behind:
                self.executor.cancel(run)
                return
            run = self.journal.state.runs[run.index]

    def _add_seeds(self) -> bool:
        """With all runs ended, look at them and add the seeds that the look asks for.

        Returns:
            Whether there are runs to make now.
        """
        looks = self.prepared.looks
        if not looks:
            return False
        sweep, state = self.sweep, self.journal.state
        if sweep.seeds in [group.look for group in state.seed_groups]:
            return False
        look = self._look(sweep, self.journal.folder, self._runs)
        ahead = next((number for number in looks if number > sweep.seeds), sweep.seeds)
        more = () if look.is_over else next_seeds(sweep, ahead - sweep.seeds)
        messages = list(look.messages)
        if more:
            messages.append(f"adding {'seed' if len(more) == 1 else 'seeds'} {', '.join(map(str, more))}")
        elif not look.is_over:
            messages.append("this was the last look of the plan, so open claims stay undecided")
        self.journal.add_seeds(SeedGroup(more, sweep.seeds, tuple(messages)))
        self.sweep = self.progress.sweep = self._sweep_now()
        for line in messages:
            self.progress.say(line)
        return bool(more)


def recover_local_runs(prepared: PreparedSweep, journal: Journal, say: Callable[[str], None]) -> None:
    """See what became of the processes that a killed driver has left on this machine.

    What is still running is ended, with a checkpoint. A run whose record says that it finished has finished;
    the others are continued. A driver may have been killed before it wrote down that it started a run, so
    runs that wait for a start are looked at, too.

    Args:
        prepared: The sweep.
        journal: Its journal.
        say: Prints a line for the user.
    """
    folder, state = journal.folder, journal.state
    submitted = {index for indices in state.submissions.values() for index in indices}
    # Tasks of Ray are left to its executor, which looks on every node of the cluster.
    others = ("job", "ray") if prepared.options.cluster == "ray" else ("job",)
    local = [
        run
        for run in state.runs.values()
        if not (run.is_external or any(key in run.process for key in others))
        and (run.state is RunState.RUNNING or run.index not in submitted)
    ]
    metric = prepared.sweep.metric
    left = [run for run in local if run.state is RunState.RUNNING or run.is_startable]
    interrupted = {run.index: interrupted_at(run, folder) for run in left}
    if local:
        end_leftovers(local, folder, say)
    for run in left:
        when = interrupted[run.index]
        state_now = state_after_driver(run, folder, when, trains_here=prepared.trains_here)
        if run.state is not RunState.RUNNING:
            if state_now is RunState.PREEMPTED:
                continue
            journal.append("started", index=run.index, run_id=run.run_id, process={})
        tail = MetricTail(folder, run.run_id, metric.name if metric else None)
        value = None if state_now is RunState.PREEMPTED else tail.final_value()
        journal.end(run, state_now, value)
    (folder / GUARD_MARK).unlink(missing_ok=True)
