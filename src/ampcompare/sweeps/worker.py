"""A worker: takes runs from the search one after the other and sees each through to its end."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ampcompare.config.beside import PlanConfig
from ampcompare.sweeps.attempts import Attempt
from ampcompare.sweeps.command import build_command
from ampcompare.sweeps.contact import Away
from ampcompare.sweeps.file import Sweep
from ampcompare.sweeps.follow import Follower
from ampcompare.sweeps.note import Note
from ampcompare.sweeps.process import STOP_SECONDS, Guard, Run, run_environment
from ampcompare.sweeps.pulse import Pulse
from ampcompare.sweeps.search import Search

POLL_SECONDS = 0.25
WAIT_FOR_OTHERS_SECONDS = 2.0
SAME_SIGNAL_SECONDS = 2.0  # between a run's end by a signal and this process's hearing of it
# By the machine (no memory left), by a scheduler, by someone's hand; 128 and more is a shell's way to say it.
SIGNALS = [getattr(signal, f"SIG{name}") for name in ("KILL", "TERM", "INT", "HUP", "USR1", "USR2")]
KILLED = tuple(code for number in SIGNALS for code in (-number, 128 + number))


@dataclass
class Job:
    """What a run of this process looks like from outside."""

    number: int
    run_id: str
    parameters: Mapping[str, Any]
    attempt: int
    arm: str | None  # of the control: first or last
    began: float
    worker: int
    gpu: str | None = None
    state: str = "running"
    value: float | None = None  # the newest of the metric
    seconds: float = 0.0
    exit_code: int | None = None
    log: Path = field(default_factory=Path)


@dataclass(frozen=True)
class WorkerContext:
    """What all workers of one process share."""

    sweep: Sweep
    search: Search
    folder: Path
    words: tuple[str, ...]  # overrides of the command line, behind every command
    guard: Guard
    pulse: Pulse
    here: bool  # whether our own training is run; its exit code tells that it was stopped
    environment: Mapping[str, str]  # what its runs have beside the environment of this process
    stop: threading.Event  # no new runs; those going on are asked to end
    kill: threading.Event  # at once
    on_change: Callable[[Job], None]
    on_waiting: Callable[[int], None]


class Worker(threading.Thread):
    """One run at a time, until there are no more; `gpu` is the only device its runs see."""

    def __init__(self, number: int, context: WorkerContext, gpu: str | None) -> None:
        super().__init__(name=f"worker-{number}", daemon=True)
        self.number, self.context, self.gpu = number, context, gpu
        self.problem: BaseException | None = None
        self.has_unwritten = False  # a run that ended, and the database does not know

    def run(self) -> None:
        try:
            self._run()
        except Away as problem:  # the runs of other workers of this process go on
            self.problem = None if self.context.stop.is_set() and not self.has_unwritten else problem
        except BaseException as problem:
            self.problem = problem
            self.context.stop.set()

    def _run(self) -> None:
        context = self.context
        while not context.stop.is_set():
            attempt = context.search.next()
            if attempt:
                context.pulse.hold(attempt)
                try:
                    self._see_through(attempt)
                finally:
                    context.pulse.release(attempt)
                continue
            running = context.search.running()
            if not running:
                return
            # Runs of other workers go on. Should one of them die, its run has to be taken over.
            context.on_waiting(running)
            context.stop.wait(WAIT_FOR_OTHERS_SECONDS)

    def _see_through(self, attempt: Attempt) -> None:
        context = self.context
        what = (attempt.trial.number, attempt.run_id, attempt.parameters, attempt.attempt)
        arm = attempt.plan.get("arm")
        log = context.folder / "logs" / f"{attempt.run_id}.log"
        job = Job(*what, arm, began=time.monotonic(), worker=self.number, gpu=self.gpu, log=log)
        context.on_change(job)
        metric = context.sweep.metric
        follower = Follower(context.folder, attempt.run_id, metric.name if metric else None)
        if attempt.attempt > 1 and (state := self._ended_before(attempt, follower)):
            return self._close(attempt, job, follower, state)
        try:
            run = self._start(attempt, job)
        except (OSError, ValueError) as problem:  # ValueError: words that no program can be given
            with job.log.open("a", encoding="utf-8", errors="backslashreplace") as file:
                print(f"cannot be started: {problem}", file=file)
            return self._close(attempt, job, follower, "failed")
        stopped_early, asked, code = self._watch(run, attempt, job, follower)
        job.seconds, job.exit_code = time.monotonic() - job.began, code
        if not (stopped_early or asked or context.kill.is_set()) and code in KILLED:
            # A scheduler's signal may reach the run before this process hears of it. Otherwise once more, as
            # with a run whose worker died.
            asked = context.stop.wait(SAME_SIGNAL_SECONDS)
            if not asked:
                return self._give_up(attempt, job, "lost")
        # The signal may have come behind the end of its record, before the end of its process.
        ended = code in KILLED and follower.exit_code() == 0
        if asked and not ended and (code != 0 or not context.here):
            return self._give_up(attempt, job, "interrupted")
        state = "stopped" if stopped_early else "finished" if ended or code == 0 else "failed"
        return self._close(attempt, job, follower, state)

    def _ended_before(self, attempt: Attempt, follower: Follower) -> str | None:
        """How the run ended, where that was not told: its worker died then, or the database was away.

        Done twice would be once too many.
        """
        noted = Note(self.context.folder, attempt.run_id).read()
        return noted or ("finished" if follower.exit_code() == 0 else None)

    def _give_up(self, attempt: Attempt, job: Job, word: str) -> None:
        self.has_unwritten = True
        job.state = word if self.context.search.give_up(attempt, word) else "taken over"
        self.has_unwritten = False
        self.context.on_change(job)

    def _close(self, attempt: Attempt, job: Job, follower: Follower, state: str) -> None:
        values = follower.values(now=True)
        job.value = values[-1] if values else None
        number = job.value if job.value is not None and math.isfinite(job.value) else None
        note = Note(self.context.folder, attempt.run_id)
        self.has_unwritten = True
        try:
            job.state = state if self.context.search.finish(attempt, state, number) else "taken over"
        except Away:
            note.write(state)
            raise
        self.has_unwritten = False
        note.remove()
        self.context.on_change(job)

    def _watch(self, run: Run, attempt: Attempt, job: Job, follower: Follower) -> tuple[bool, bool, int]:
        """Wait for the end: compare at the bands of hyperband, stop when asked to.

        Returns whether hyperband stopped it, whether the user did, and the exit code.
        """
        context = self.context
        bands = list(context.sweep.hyperband.bands) if context.sweep.hyperband else []
        kill_at, early, asked = math.inf, False, False
        while (code := run.wait(POLL_SECONDS)) is None:
            now = time.monotonic()
            if context.pulse.is_lost(attempt):  # we were silent too long: another worker repeats it
                run.kill()
            if context.sweep.metric:
                values = follower.values()
                job.value = values[-1] if values else None
                with suppress(Away):  # the band is compared when the database is back
                    while bands and not early and len(values) >= bands[0]:
                        early = self._falls_behind(attempt, values, bands[0])
                        del bands[0]
            if (early or context.stop.is_set()) and kill_at == math.inf:
                asked = not early
                run.stop()
                kill_at = now + STOP_SECONDS
            if context.kill.is_set() or now > kill_at:
                run.kill()
            job.seconds = now - job.began
        return early, asked, code

    def _falls_behind(self, attempt: Attempt, values: list[float], band: int) -> bool:
        sweep = self.context.sweep
        assert sweep.metric
        assert sweep.hyperband
        worst = -math.inf if sweep.metric.maximize else math.inf
        reached = [worst if math.isnan(v) else v for v in values[:band]]
        best = max if sweep.metric.maximize else min
        value = reached[-1] if sweep.hyperband.strict else best(reached)
        return self.context.search.should_stop(attempt, band, value)

    def _start(self, attempt: Attempt, job: Job) -> Run:
        context, sweep = self.context, self.context.sweep
        files = context.folder / "wandb" / f"sweep-{context.search.name}"
        files.mkdir(parents=True, exist_ok=True)
        parameters_file = files / f"config-{attempt.run_id}.yaml"
        save_parameters(parameters_file, planned(attempt.parameters, attempt.plan))
        json_file = parameters_file.with_suffix(".json")
        words = build_command(sweep.command, sweep.program, attempt.parameters, json_file)
        environment = {**context.environment} | run_environment(
            context.search.name,
            attempt.run_id,
            parameters_file,
            context.folder,
            sweep.project,
            sweep.entity,
            # Our own training looks each time: its folder may be that of an earlier sweep of this name.
            resumes=context.here or "repeats" in attempt.trial.user_attrs,
            on_server=sweep.on_server,
        )
        if self.gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = self.gpu
        own = plan_words(attempt.plan) if context.here else []
        return Run([*words, *context.words, *own], environment, job.log, context.guard)


def plan_words(plan: Mapping[str, Any]) -> list[str]:
    """What of the plan are options of our training; its record has all by W&B's file of parameters."""
    return [f"plan.{key}={value}" for key, value in plan.items() if key in PlanConfig.__dataclass_fields__]


def planned(parameters: Mapping[str, Any], plan: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a run with what of the plan is its own, in the group where the file has the plan."""
    there = parameters.get("plan", {})
    if not isinstance(there, Mapping):  # an option of somebody's program
        return {**parameters, **{f"plan.{key}": value for key, value in plan.items()}}
    return {**parameters, "plan": {**there, **plan}} if plan else dict(parameters)


def save_parameters(path: Path, parameters: Mapping[str, Any]) -> None:
    """The file from which W&B's client takes a run's sweep parameters."""
    content = {"wandb_version": 1, **{key: {"value": value} for key, value in parameters.items()}}
    path.write_text(yaml.safe_dump(content, allow_unicode=True, sort_keys=False), encoding="utf-8")
