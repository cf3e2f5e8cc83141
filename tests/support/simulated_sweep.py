"""A sweep without processes, files and time: the driver's decisions under any order of events.

`Simulation.play` takes steps such as ("kill", 3) and checks after each that no rule is broken. What really
happened to a run is known here, so that it can be compared with what the journal says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from ampcompare.runs.run_state import RunState
from ampcompare.sweeps import decisions
from ampcompare.sweeps.decisions import Action, Event, RunChanged, RunLogged, Situation, SlotsFree
from ampcompare.sweeps.distributions import Parameter
from ampcompare.sweeps.journal import SweepRun, SweepState
from ampcompare.sweeps.process_guard import GUARD
from ampcompare.sweeps.run_end import DRIVER, SCHEDULER, EndRules, RecordEnd, RunChange, RunEnd, reconcile
from ampcompare.sweeps.sweep import Hyperband, Objective, Sweep
from support.sweep_project import make_grid

SLOTS = 2
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

Decide = Callable[[Situation, Event], list[Action]]


class Crash(Exception):
    """The driver was killed in the middle of its work."""


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
        run: The run.
        process: Where it runs.
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
        decide: The decision function.
        assigned: The runs that wait in each process, when the driver last looked.
    """

    kind: str
    decide: Decide = decisions.decide
    sweep: Sweep = SWEEP
    assigned: list[list[int]] = field(default_factory=list)
    clock: float = 1e9
    events: list[dict[str, Any]] = field(default_factory=list)
    state: SweepState = field(default_factory=lambda: SweepState("s", {}))
    programs: dict[int, Program] = field(default_factory=dict)  # the last one of each point
    facts: dict[tuple[str, int], RunEnd] = field(default_factory=dict)
    records: dict[str, RecordEnd] = field(default_factory=dict)
    values: dict[str, list[float]] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)  # by points, really
    failures: set[int] = field(default_factory=set)
    signals: Counter[int] = field(default_factory=Counter)
    starts: Counter[int] = field(default_factory=Counter)
    setbacks: Counter[int] = field(default_factory=Counter)
    is_stopping: bool = False
    is_at_once: bool = False
    effects_left: int | None = None  # until the driver is killed

    # What a driver does

    def effect(self) -> None:
        """Count an effect; the driver may be killed before it."""
        self.clock += 1
        if self.effects_left is not None:
            if self.effects_left == 0:
                raise Crash
            self.effects_left -= 1

    def append(self, event: str, **fields: Any) -> None:
        self.effect()
        time = datetime.fromtimestamp(self.clock, UTC).isoformat(timespec="milliseconds")
        self.events.append({"event": event, "time": time, **fields})
        self.state.apply(self.events[-1])

    def handle(self, event: Event) -> None:
        situation = Situation(self.state, self.sweep, SLOTS, (), self.is_stopping, [*self.assigned])
        for action in self.decide(situation, event):
            match action:
                case decisions.Append():
                    self.append(action.event, **action.fields)
                case decisions.Propose():
                    assert action.index not in self.state.runs, "a point is begun twice"
                    assert action.index < len(self.sweep.points), "a point that is none"
                    known = {"parameters": {}, "plan": {}, "drawn": {}}
                    self.append("proposed", index=action.index, run_id=f"id{len(self.events)}", **known)
                case decisions.Start():
                    groups = [[self.state.runs[index] for index in indices] for indices in action.groups]
                    for runs in groups:
                        self.start(runs)
                    for first, *_ in groups:
                        running = RunChange(first.index, RunState.RUNNING, process=self.place)
                        self.handle(RunChanged(running))
                case decisions.Cancel():
                    self.effect()
                    self.cancel(action.indices, at_once=action.at_once)

    @property
    def rules(self) -> EndRules:
        """Only our own training trains several runs in a process."""
        return EndRules(trains_here=self.sweep.seeds_per_process > 1)

    @property
    def place(self) -> dict[str, Any]:
        """Where runs are started, for the journal."""
        return {"job": "1"} if self.kind == "job" else {"pid": 1}

    def start(self, runs: Sequence[SweepRun]) -> None:
        """Start a process, or submit a job."""
        self.effect()
        assert not self.is_stopping, "a start after a stop request"
        assert len(self.processes()) < SLOTS, "more processes than slots"
        assert len(runs) <= self.sweep.seeds_per_process, "too many runs for a process"
        assert len({self.sweep.points[run.index].series for run in runs}) == 1, "runs of two series"
        elsewhere = {run.index for process in self.processes() for run in process.waiting}
        assert not elsewhere & {run.index for run in runs}, "a run that waits in another process"
        self.assigned.append([run.index for run in runs[1:]])
        for run in runs:
            self.facts.pop((run.run_id, run.last_start), None)
        self.begin(Process(runs))

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

    def cancel(self, indices: Sequence[int], *, at_once: bool) -> None:
        """Ask the processes of these runs to end."""
        for index in indices:
            run = self.state.runs[index]
            is_known = self.kind == "local" or run.state is RunState.RUNNING
            for program in self.alive().values():
                # By the job in the journal; on this machine a run that has ended is not asked.
                its = program.process.runs
                if self.kind == "local":
                    its = (program.run, *program.process.waiting)
                same_start = (run.run_id, run.last_start)
                if is_known and any((own.run_id, own.last_start) == same_start for own in its):
                    self.ask(program, at_once=at_once)

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
        return [program.process for program in self.alive().values()]

    def alive(self) -> dict[int, Program]:
        return {index: program for index, program in self.programs.items() if program.end is None}

    def end(self, run: SweepRun) -> RunEnd | None:
        return self.facts.get((run.run_id, run.last_start))

    def record(self, run: SweepRun) -> RecordEnd:
        return self.records.get(run.run_id, RecordEnd())

    def observe(self, *, has_lost_driver: bool = False) -> None:
        """See what became of the runs, as the driver does when it begins and while it runs."""
        for program in self.programs.values():
            if program.end is not None and not program.is_collected:
                self.collect(program)
        assigned = [index for indices in self.assigned for index in indices]
        alive = self.poll_processes()
        runs = [run for _, run in sorted(self.state.runs.items())]
        if not has_lost_driver:
            begun = [self.state.runs[index] for index in dict.fromkeys([*assigned, *alive])]
            runs = [*self.state.own_running, *(run for run in begun if run.is_startable)]
        for change in reconcile(runs, alive, self, self.rules, has_lost_driver=has_lost_driver):
            self.handle(self.event_of(change))

    def poll_processes(self) -> dict[int, dict[str, Any]]:
        """Return what is under way in each process, as the executor sees it; note what waits there."""
        alive: dict[int, dict[str, Any]] = {}
        self.assigned = []
        for program in self.alive().values():
            left = [program.run, *program.process.waiting]
            is_under_way = self.state.runs[program.run.index].state is RunState.RUNNING
            if self.kind == "local" or is_under_way or not program.process.is_ending:
                alive[program.run.index] = self.place
                del left[0]
            self.assigned.append([run.index for run in left])
        return alive

    def event_of(self, change: RunChange) -> RunChanged:
        run_id = self.state.runs[change.index].run_id
        return RunChanged(change, () if change.state is RunState.RUNNING else tuple(self.values_of(run_id)))

    def values_of(self, run_id: str) -> list[float]:
        return self.values.setdefault(run_id, [])

    def collect(self, program: Program) -> None:
        """Write the facts about an end: what the driver sees, or what a job leaves."""
        program.is_collected = True
        assert program.end is not None
        if program.end.is_seen:
            self.facts[program.run.run_id, program.run.last_start] = program.end

    # What happens

    def finish(self, program: Program, exit_code: int | None) -> None:
        """End a process. `exit_code` None: it vanishes with its job."""
        index, was_asked = program.run.index, program.asked_at is not None
        if was_asked and exit_code == 0 and self.rules.trains_here:
            exit_code = 143
        if exit_code == 0:
            # A program that ends with 0 because it was asked to may complete its record.
            self.records[program.run.run_id] = RecordEnd(0, self.clock)
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
        """Kill the driver. Its guard ends the processes of this machine; jobs go on."""
        self.effects_left = None
        self.is_stopping = self.is_at_once = False
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
        self.observe(has_lost_driver=True)

    def note_by_guard(self, program: Program) -> None:
        """Let the guard note the end of a process: for the run that was under way when the driver looked."""
        known = [run for run in program.process.runs if self.state.runs[run.index].state is RunState.RUNNING]
        run = known[0] if known else program.process.runs[0]
        key = run.run_id, run.last_start
        self.facts.setdefault(key, RunEnd(asked_at=self.clock, asked_by=GUARD))

    def step(self, name: str, number: int) -> None:
        """Let one thing happen. `number` chooses to which run."""
        self.clock += 1
        alive = [program for _, program in sorted(self.alive().items())]
        program = alive[number % len(alive)] if alive else None
        if name == "observe":
            self.observe()
        elif name == "start":
            self.handle(SlotsFree())
        elif name == "stop":
            self.stop()
        elif name == "second stop":
            self.stop()
            self.stop(at_once=True)
        elif name == "new driver":
            self.kill_driver()
        elif name == "crash":
            self.effects_left = number
        elif program is not None:
            self.happen(name, number, program)

    def happen(self, name: str, number: int, program: Program) -> None:
        """Let something happen to a run."""
        run = program.run
        is_known = self.state.runs[run.index].state is RunState.RUNNING
        if name == "log":
            values = self.values_of(run.run_id)
            values += [len(values) / 100 - run.index for _ in range(number)]  # later points are worse
            if is_known and number % 2:
                self.handle(RunLogged(run.index, tuple(values)))
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

    def stop(self, *, at_once: bool = False) -> None:
        if self.is_at_once if at_once else self.is_stopping:
            return
        self.is_stopping, self.is_at_once = True, at_once
        known = {run.index for run in self.state.own_running}
        self.handle(decisions.StopRequested(at_once))
        for program in self.alive().values():
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

    def guarded(self, action: Callable[[], None]) -> None:
        """Do something; if the driver is killed by it, let another one begin."""
        try:
            action()
        except Crash:
            self.kill_driver()

    def drain(self) -> None:
        """Let every run end well, with a new driver if the present one was asked to stop."""
        self.effects_left = None
        for _ in range(20 * len(self.sweep.points)):
            for program in [*self.alive().values()]:
                if program.is_waiting:
                    program.is_waiting = False
                    self.facts.pop((program.run.run_id, program.run.last_start), None)
                self.clock += 1
                self.finish(program, 0 if program.asked_at is None else -15)
            self.guarded(self.observe)
            if self.is_stopping:
                self.kill_driver()
            self.guarded(lambda: self.handle(SlotsFree()))
            if not self.alive() and not self.state.own_running:
                return
        raise AssertionError("the sweep never ends")

    # What must be so

    def check(self) -> None:
        """Check what holds at any time."""
        again = SweepState("s", {})
        for event in self.events:
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
            values = self.values_of(run.run_id)
            assert all(band <= len(values) for band in run.bands)
            if run.is_stopped_early and program is not None and program.end is None:
                assert program.asked_at is not None, "a run that falls behind goes on"

    def check_end(self) -> None:
        """Check a sweep that has come to its end: every point has ended, once, as it really did."""
        assert sorted(self.state.runs) == [*range(len(self.sweep.points))], "a point was never begun"
        assert not self.alive(), "a run is left"
        for index, run in self.state.runs.items():
            assert run.state.is_final, "a point is left"
            if index in self.finished:
                assert run.state in (RunState.FINISHED, RunState.STOPPED), "a finished run counts as another"
            elif index in self.failures:
                assert run.state in (RunState.FAILED, RunState.STOPPED)
            values = self.values_of(run.run_id)
            if run.state is RunState.FINISHED and values:
                assert run.value == values[-1], "the value of a finished run is lost"
            if self.kind == "job" and not run.is_stopped_early:
                assert run.signal_ends == self.signals[index], "an end by a signal is not counted"
            if not run.is_stopped_early:
                assert [*run.bands] == [band for band in BANDS if band <= len(values)], "a band is missing"
        ends = Counter(event["index"] for event in self.events if event["event"] == "ended")
        starts = Counter(event["index"] for event in self.events if event["event"] == "started")
        assert ends == starts, "a start without an end, or an end without a start"
