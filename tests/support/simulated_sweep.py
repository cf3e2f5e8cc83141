"""A sweep without processes, files and time: the real driver under any order of events.

`Simulation` is the world around the driver: its executor, and what the runs leave. `Simulation.play` takes
steps such as ("kill", 3) and checks after each that no rule is broken. What really happened to a run is known
here, so that it can be compared with what the journal says. The driver may be killed before every effect.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ampcompare.config.schema import PlanConfig
from ampcompare.runs.run_state import RunState
from ampcompare.sweeps.decisions import Look, Train, next_step
from ampcompare.sweeps.distributions import Parameter
from ampcompare.sweeps.driver import SweepDriver, catch_up
from ampcompare.sweeps.journal import Journal, SweepRun, SweepState
from ampcompare.sweeps.prepare import PreparedSweep
from ampcompare.sweeps.process_guard import GUARD
from ampcompare.sweeps.run_end import DRIVER, SCHEDULER, RecordEnd, RunEnd
from ampcompare.sweeps.stop_request import SweepStopRequest
from ampcompare.sweeps.sweep import Hyperband, Objective, Sweep
from ampcompare.sweeps.sweep_command import SweepCommand, SweepOptions
from support.sweep_project import make_grid

SWEEP = make_grid(
    4,
    metric=Objective(name="score", goal="maximize"),
    hyperband=Hyperband(type="hyperband", min_iter=2, eta=2),
)
BANDS = SWEEP.hyperband.bands
SEEDS = Parameter(("seed",), "categorical", {"values": [1, 2, 3]})
SERIES = replace(
    make_grid(3), **{key: getattr(SWEEP, key) for key in ("metric", "hyperband")}, seeds_per_process=2
)
# Three values with three seeds each, of which a process trains two or one: six processes.
SERIES = replace(SERIES, parameters=(*SERIES.parameters, SEEDS))
# What can happen. What is named more often happens more often, so that runs get far enough.
STEPS = (
    *("start", "start", "start", "observe", "observe", "observe", "log", "log", "log", "kill", "kill"),
    *("finish", "fail", "lose", "requeue", "go on", "end asked", "end asked"),
    *("stop", "second stop", "new driver", "crash"),
)


class Crash(Exception):
    """The driver was killed in the middle of its work."""


class SimulatedJournal(Journal):
    """A journal in memory. The driver may be killed before each event."""

    def __init__(self, world: Simulation) -> None:
        self.folder = Path("nowhere")
        self.state = SweepState("s", {}, {})
        self.events: list[dict[str, Any]] = []
        self._world = world

    def append(self, event: str, **fields: Any) -> None:
        self._world.effect()
        if event == "proposed":
            assert fields["index"] not in self.state.runs, "a point is begun twice"
            assert fields["index"] < len(self._world.sweep.points), "a point that is none"
        time = datetime.fromtimestamp(self._world.clock, UTC).isoformat(timespec="milliseconds")
        self.events.append({"event": event, "time": time, **fields})
        self.state.apply(self.events[-1])


class SilentProgress:
    """Prints nothing."""

    sweep: Sweep

    def start(self, run: SweepRun) -> None:
        pass

    def end(self, run: SweepRun) -> None:
        pass


@dataclass
class Process:
    """A process of this machine, or a job in a queue.

    Attributes:
        runs: Its runs, as they were when it was started.
        begun: How many of them have begun.
        is_ending: Whether it begins no further run: it was asked to end, or is lost.
    """

    runs: Sequence[SweepRun]
    begun: int = 0
    is_ending: bool = False

    @property
    def waiting(self) -> Sequence[SweepRun]:
        """The runs that have not begun."""
        return self.runs[self.begun :]


@dataclass
class Program:
    """A run in its process.

    Attributes:
        end: The facts about its end; None while it runs.
        is_killed: Whether it was asked to end at once.
        is_collected: Whether the facts about its end are on the disk.
    """

    run: SweepRun
    process: Process
    asked_at: float | None = None
    end: RunEnd | None = None
    is_killed: bool = False
    is_collected: bool = False
    is_waiting: bool = False


@dataclass
class Simulation:
    """A sweep and what happens to it.

    Attributes:
        kind: "local": runs end with their driver. "job": they do not, and a job goes on behind a run that
            failed.
        driver_type: The driver's class, perhaps with a fault.
        assigned: The runs that wait in each process, when the driver last looked.
    """

    kind: str
    driver_type: type[SweepDriver] = SweepDriver
    sweep: Sweep = SWEEP
    slots: int = 2
    poll_seconds: float = 0.0
    max_signal_ends: int | None = 3
    assigned: list[list[int]] = field(default_factory=list)
    clock: float = 1e9
    programs: dict[int, Program] = field(default_factory=dict)  # the last one of each point
    facts: dict[tuple[str, int], RunEnd] = field(default_factory=dict)
    complete: dict[str, RecordEnd] = field(default_factory=dict)
    logged: dict[str, list[float]] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)  # by points, really
    failures: set[int] = field(default_factory=set)
    signals: Counter[int] = field(default_factory=Counter)
    starts: Counter[int] = field(default_factory=Counter)
    setbacks: Counter[int] = field(default_factory=Counter)
    effects_left: int | None = None  # until the driver is killed

    def __post_init__(self) -> None:
        self.journal = SimulatedJournal(self)
        self.state = self.journal.state
        command = SweepCommand(options=SweepOptions(cluster="slurm" if self.kind == "job" else None))
        self.prepared = PreparedSweep(self.sweep, PlanConfig(), command, {}, (), Path("nowhere"))
        self.begin_driver()

    def begin_driver(self) -> None:
        self.stop = SweepStopRequest()
        progress = SilentProgress()
        look = lambda *_: Look(True, ())  # noqa: E731
        self.driver = self.driver_type(self.prepared, self.journal, self, self, progress, self.stop, look)

    def effect(self) -> None:
        """Count an effect; the driver may be killed before it."""
        self.clock += 1
        if self.effects_left is not None:
            if self.effects_left == 0:
                raise Crash
            self.effects_left -= 1

    # The executor

    @property
    def place(self) -> dict[str, Any]:
        """Where runs are started, for the journal."""
        return {"job": "1"} if self.kind == "job" else {"pid": 1}

    def submit(self, groups: Sequence[Sequence[SweepRun]]) -> list[dict[str, Any]]:
        """Start processes, or submit jobs."""
        for runs in groups:
            self.effect()
            assert not self.stop.is_made(), "a start after a stop request"
            assert len(self.processes()) < self.slots, "more processes than slots"
            assert len(runs) <= self.sweep.seeds_per_process, "too many runs for a process"
            assert len({self.sweep.points[run.index].series for run in runs}) == 1, "runs of two series"
            elsewhere = {run.index for process in self.processes() for run in process.waiting}
            assert not elsewhere & {run.index for run in runs}, "a run that waits in another process"
            self.assigned.append([run.index for run in runs[1:]])
            for run in runs:
                self.facts.pop((run.run_id, run.last_start), None)
            self.begin(Process(runs))
        return [self.place for _ in groups]

    def alive(self) -> dict[int, dict[str, Any]]:
        """Return what is under way in each process; note what waits there."""
        for program in self.programs.values():
            if program.end is not None and not program.is_collected:
                self.collect(program)
        alive: dict[int, dict[str, Any]] = {}
        self.assigned = []
        for program in self.running().values():
            left = [program.run, *program.process.waiting]
            is_under_way = self.state.runs[program.run.index].state is RunState.RUNNING
            if self.kind == "local" or is_under_way or not program.process.is_ending:
                alive[program.run.index] = self.place
                del left[0]
            self.assigned.append([run.index for run in left])
        return alive

    def cancel(self, runs: Sequence[SweepRun], *, at_once: bool = False) -> None:
        """Ask the processes of these runs to end."""
        self.effect()
        for run in runs:
            is_known = self.kind == "local" or run.state is RunState.RUNNING
            for program in self.running().values():
                # By the job in the journal; on this machine a run that has ended is not asked.
                its = program.process.runs
                if self.kind == "local":
                    its = (program.run, *program.process.waiting)
                same_start = (run.run_id, run.last_start)
                if is_known and any((own.run_id, own.last_start) == same_start for own in its):
                    self.ask(program, at_once=at_once)

    # What the runs leave

    def refresh(self) -> None:
        pass

    def forget(self, run_id: str) -> None:
        pass

    def end(self, run: SweepRun) -> RunEnd | None:
        return self.facts.get((run.run_id, run.last_start))

    def record(self, run: SweepRun) -> RecordEnd:
        return self.complete.get(run.run_id, RecordEnd())

    def values(self, run_id: str) -> list[float]:
        return self.logged.setdefault(run_id, [])

    # What happens

    def begin(self, process: Process) -> None:
        """Let the next run of a process begin."""
        run = process.waiting[0]
        before = self.programs.get(run.index)
        assert before is None or before.end is not None, "two processes of one point"
        assert run.index not in self.finished, "a finished point is started again"
        assert run.index not in self.failures, "a failed point is started again"
        assert before is None or before.run.run_id == run.run_id, "a start under another id"
        assert run.starts < 1 + self.setbacks[run.index], "a start without a reason"
        process.begun += 1
        self.starts[run.index] += 1
        self.programs[run.index] = Program(run, process)

    def ask(self, program: Program, *, at_once: bool = False) -> None:
        """Ask a process to end, with the run that is under way in it."""
        program.process.is_ending = True
        program.is_killed |= at_once
        if program.asked_at is None:
            program.asked_at = self.clock
            is_known = self.state.runs[program.run.index].state is RunState.RUNNING
            if is_known:
                note = RunEnd(asked_at=self.clock, asked_by=DRIVER)
                self.facts.setdefault((program.run.run_id, program.run.last_start), note)

    def processes(self) -> list[Process]:
        """Return the processes that live."""
        return [program.process for program in self.running().values()]

    def running(self) -> dict[int, Program]:
        return {index: program for index, program in self.programs.items() if program.end is None}

    def collect(self, program: Program) -> None:
        """Write the facts about an end: what the driver sees, or what a job leaves."""
        program.is_collected = True
        assert program.end is not None
        if program.end.exit_code is not None:
            self.facts[program.run.run_id, program.run.last_start] = program.end

    def finish(self, program: Program, exit_code: int | None) -> None:
        """End a process. `exit_code` None: it vanishes with its job."""
        index, was_asked = program.run.index, program.asked_at is not None
        if exit_code == 0 and was_asked and self.sweep.seeds_per_process > 1:
            exit_code = (
                -15
            )  # our own training, which alone trains several runs, ends with 0 only when it is done
        if exit_code == 0:
            # A program that ends with 0 because it was asked to may complete its record.
            self.complete[program.run.run_id] = RecordEnd(0, self.clock)
        asked_by = DRIVER if was_asked else None
        program.end = RunEnd(exit_code, program.asked_at, asked_by)
        is_known = self.state.runs[index].state is RunState.RUNNING
        if exit_code == 0 and not was_asked:
            self.finished.add(index)
        elif exit_code == 3 and not was_asked:
            self.failures.add(index)
        else:
            self.setbacks[index] += 1
            # Where a job vanishes before the driver has seen that its next run has begun, nobody knows of it.
            self.signals[index] += not was_asked and (exit_code is not None or is_known)
        process = program.process
        if self.kind == "job":
            self.collect(program)
            process.is_ending |= exit_code is None
        else:
            process.is_ending |= exit_code != 0
        if process.waiting and not (process.is_ending or was_asked):
            self.begin(process)

    def kill_driver(self) -> None:
        """Kill the driver, and begin the next. Its guard ends the processes of this machine; jobs go on."""
        self.effects_left = None
        for program in [*self.programs.values()]:
            if self.kind == "local" and not program.is_collected:
                if program.end is None:  # else it has ended unobserved
                    self.clock += 1
                    self.note_by_guard(program)
                    program.asked_at, self.clock = self.clock, self.clock + 1
                    self.finish(program, 0 if program.run.index % 2 else -15)
                elif program.run.index in self.failures:
                    self.failures.discard(program.run.index)  # the failure is not observed
                    self.setbacks[program.run.index] += 1
                program.is_collected = True
        self.begin_driver()
        catch_up(self.prepared, self.journal, self, self)

    def note_by_guard(self, program: Program) -> None:
        """Let the guard note the end of a process: for the run that was under way when the driver looked."""
        known = [run for run in program.process.runs if self.state.runs[run.index].state is RunState.RUNNING]
        run = known[0] if known else program.process.runs[0]
        key = run.run_id, run.last_start
        self.facts.setdefault(key, RunEnd(asked_at=self.clock, asked_by=GUARD))

    def step(self, name: str, number: int) -> None:
        """Let one thing happen. `number` chooses to which run."""
        self.clock += 1
        running = [program for _, program in sorted(self.running().items())]
        program = running[number % len(running)] if running else None
        if name == "observe":
            self.driver.observe()
        elif name == "start":
            self.start()
        elif name == "stop":
            self.ask_to_stop()
        elif name == "second stop":
            self.ask_to_stop()
            self.ask_to_stop(at_once=True)
        elif name == "new driver":
            self.kill_driver()
        elif name == "crash":
            self.effects_left = number
        elif program is not None:
            self.happen(name, number, program)

    def start(self) -> None:
        """Let the driver start what it wants to."""
        step = next_step(self.driver.situation())
        if isinstance(step, Train):
            self.driver.train(step.groups)

    def happen(self, name: str, number: int, program: Program) -> None:
        """Let something happen to a run."""
        run = program.run
        now = self.state.runs[run.index]
        if name == "log":
            values = self.values(run.run_id)
            values += [len(values) / 100 - run.index for _ in range(number)]  # later points are worse
            if now.state is RunState.RUNNING and number % 2:
                self.driver.compare_at_bands(now, tuple(values))
        elif program.asked_at is not None:
            if name == "end asked":
                self.finish(program, -9 if program.is_killed else (-15, 0)[number % 2])
        elif name == "requeue" and self.kind == "job":
            program.is_waiting = True
            key = run.run_id, run.last_start
            self.facts[key] = RunEnd(-15, self.clock, SCHEDULER)  # its process ends, its job waits
        elif program.is_waiting:
            if name == "go on":
                program.is_waiting = False
                self.facts.pop((run.run_id, run.last_start), None)
        elif name in ("finish", "fail", "kill") or (name == "lose" and self.kind == "job"):
            self.finish(program, {"finish": 0, "fail": 3, "kill": -9, "lose": None}[name])

    def ask_to_stop(self, *, at_once: bool = False) -> None:
        if self.stop.is_at_once if at_once else self.stop.is_made():
            return
        self.stop.request("Ctrl-C", signal.SIGINT)
        self.stop.is_at_once = at_once
        known = {run.index for run in self.state.own_running}
        self.driver.notice_stop()
        for program in self.running().values():
            if known & {run.index for run in program.process.runs}:
                assert program.asked_at is not None, "a running run does not hear of the stop request"
                assert program.is_killed or not at_once, "a running run survives the second stop request"

    def play(self, steps: Sequence[tuple[str, int]]) -> None:
        """Let all this happen, then let the sweep come to its end."""
        for name, number in steps:
            self.guarded(lambda name=name, number=number: self.step(name, number))
            self.check()
        self.drain()
        self.check_end()

    def guarded(self, action: Callable[[], object]) -> None:
        """Do something; if the driver is killed by it, let another one begin."""
        try:
            action()
        except Crash:
            self.kill_driver()

    def drain(self) -> None:
        """Let every run end well, with a new driver if the present one was asked to stop."""
        self.effects_left = None
        for _ in range(20 * len(self.sweep.points)):
            for program in [*self.running().values()]:
                if program.is_waiting:
                    program.is_waiting = False
                    self.facts.pop((program.run.run_id, program.run.last_start), None)
                self.clock += 1
                self.finish(program, 0 if program.asked_at is None else -15)
            self.driver.observe()
            if self.stop.is_made():
                self.kill_driver()
            self.start()
            if not self.running() and not self.state.own_running:
                return
        raise AssertionError("the sweep never ends")

    # What must be so

    def check(self) -> None:
        """Check what holds at any time."""
        again = SweepState("s", {}, {})
        for event in self.journal.events:
            again.apply(event)
        assert again.runs == self.state.runs, "a new driver reads another state"
        for run in self.state.runs.values():
            program = self.programs.get(run.index)
            if run.state.is_final:
                assert program is not None, "a run has ended that never began"
            if run.state is RunState.FINISHED:
                assert run.index in self.finished, "a run counts as finished that has not"
            if run.state is RunState.FAILED and run.index not in self.failures:
                assert self.signals[run.index] >= 3, "a run has failed without a reason"
            assert run.signal_ends <= self.signals[run.index], "an end counts twice"
            assert run.starts <= self.starts[run.index], "a start counts twice"
            values = self.values(run.run_id)
            assert all(band <= len(values) for band in run.bands)
            if run.is_stopped_early and program is not None and program.end is None:
                assert program.asked_at is not None, "a run that falls behind goes on"

    def check_end(self) -> None:
        """Check a sweep that has come to its end: every point has ended, once, as it really did."""
        assert sorted(self.state.runs) == [*range(len(self.sweep.points))], "a point was never begun"
        assert not self.running(), "a run is left"
        for index, run in self.state.runs.items():
            assert run.state.is_final, "a point is left"
            if index in self.finished:
                assert run.state in (RunState.FINISHED, RunState.STOPPED), "a finished run counts as another"
            elif index in self.failures:
                assert run.state in (RunState.FAILED, RunState.STOPPED)
            values = self.values(run.run_id)
            if run.state is RunState.FINISHED and values:
                assert run.value == values[-1], "the value of a finished run is lost"
            if self.kind == "job" and not run.is_stopped_early:
                assert run.signal_ends == self.signals[index], "an end by a signal is not counted"
            if not run.is_stopped_early:
                assert [*run.bands] == [band for band in BANDS if band <= len(values)], "a band is missing"
        events = self.journal.events
        ends = Counter(event["index"] for event in events if event["event"] == "ended")
        starts = Counter(event["index"] for event in events if event["event"] == "started")
        assert ends == starts, "a start without an end, or an end without a start"
