"""The driver of a sweep: decides which run comes next, has an executor start it, writes down what happens.

There is one driver for a sweep. What it knows stands in the journal, so a new driver continues where a killed
one was. The executor decides nothing.
"""

import math
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ampcompare.records.run_state import RunState
from ampcompare.sweeps.code_version import CodeWatch
from ampcompare.sweeps.definition import seed_of
from ampcompare.sweeps.executors import Executor, RunEvent
from ampcompare.sweeps.journal import Journal, SeedGroup, SweepRun
from ampcompare.sweeps.metric_tail import MetricTail
from ampcompare.sweeps.prepare import PreparedSweep
from ampcompare.sweeps.progress import SweepProgress
from ampcompare.sweeps.run_process import end_leftovers
from ampcompare.sweeps.samplers import falls_behind, run_at
from ampcompare.sweeps.sequential import Look, next_seeds
from ampcompare.sweeps.stop_request import StopRequest
from ampcompare.sweeps.sweep import Sweep

POLL_SECONDS = 0.25


class SweepDriver:
    """Sees a sweep through.

    Args:
        prepared: The sweep and what was asked of it.
        journal: The sweep's journal.
        executor: Where the runs happen.
        progress: Tells the user.
        stop: Whether somebody asked to stop.
        look: Looks at the runs of a sweep in its folder, with `--until-decided`.

    Attributes:
        sweep: The sweep, with the seeds that were added so far.
    """

    def __init__(
        self,
        prepared: PreparedSweep,
        journal: Journal,
        executor: Executor,
        progress: SweepProgress,
        stop: StopRequest,
        look: Callable[[Sweep, Path, Sequence[SweepRun]], Look],
    ) -> None:
        self.prepared, self.journal, self.executor = prepared, journal, executor
        self.progress, self.stop = progress, stop
        self._look = look
        self.sweep = self.progress.sweep = self._sweep_now()
        self._seed = seed_of(prepared.sweep, journal.state.definition)
        self._code = CodeWatch(prepared.code_files)
        self._tails: dict[int, MetricTail] = {}
        self._stopped_early: set[int] = set()
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
                if self.stop.is_requested or not self._add_seeds():
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

    def changed_code(self) -> list[str]:
        """Return the user's files that have changed since the driver began, where it stopped for that."""
        return self._code.changed() if self.stop.reason else []

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
        while not self.stop.is_requested and running + len(chosen) < self.executor.slots:
            run = self._next_run()
            if run is None:
                break
            chosen.append(run)
        if chosen and not self._code.is_unchanged():
            self.stop.request("the code of the runs has changed")
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
        state = RunState.STOPPED if run.index in self._stopped_early else event.state
        tail = self._tails.pop(run.index, None) or self._tail(run)
        value = tail.last(now=True) if state in (RunState.FINISHED, RunState.STOPPED) else None
        value = value if value is not None and math.isfinite(value) else None
        run = self.journal.end(run, state, value, event.exit_code, by_signal=event.by_signal)
        self.progress.end(run)
        if state is RunState.PREEMPTED and not self.stop.is_requested:
            self._waiting.append(run)

    def _tail(self, run: SweepRun) -> MetricTail:
        metric = self.prepared.sweep.metric
        return MetricTail(self.journal.folder, run.run_id, metric.name if metric else None)

    def _watch_runs(self) -> None:
        """Follow the metric of running runs; stop those that fall behind, and all after a stop request."""
        for index in [*self._tails]:
            run = self.journal.state.runs[index]
            if self.executor.has_live_records:
                values = self._tails[index].values()
                self.progress.follow(run, values[-1] if values else None)
                if self.prepared.sweep.hyperband and index not in self._stopped_early:
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
            self.journal.append("band", index=run.index, band=band, value=value)
            everyone = [other.bands[band] for other in self._runs if band in other.bands]
            if falls_behind(value, everyone, early.eta, maximize=metric.maximize):
                self._stopped_early.add(run.index)
                self.executor.cancel(run)
                return

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
            messages.append("this was the last look of the plan: what is undecided stays undecided")
        self.journal.add_seeds(SeedGroup(more, sweep.seeds, tuple(messages)))
        self.sweep = self.progress.sweep = self._sweep_now()
        for line in messages:
            self.progress.say(line)
        return bool(more)


def recover_local_runs(journal: Journal, say: Callable[[str], None], *, except_ray: bool = False) -> None:
    """See what became of the processes that a killed driver has left.

    What is still running is ended, with a checkpoint. A run whose record says that it finished has finished;
    the others are continued.

    Args:
        journal: The sweep's journal.
        say: Prints a line for the user.
        except_ray: Leave tasks of Ray to its executor, which looks on every node of the cluster.
    """
    running = [run for run in journal.state.with_state(RunState.RUNNING) if _is_local(run)]
    running = [run for run in running if not (except_ray and "ray" in run.process)]
    if not running:
        return
    end_leftovers(running, journal.folder, say)
    for run in running:
        tail = MetricTail(journal.folder, run.run_id)
        is_finished = tail.exit_code() == 0
        journal.end(run, RunState.FINISHED if is_finished else RunState.PREEMPTED)


def _is_local(run: SweepRun) -> bool:
    return not run.is_external and "job" not in run.process
