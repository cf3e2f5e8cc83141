"""A worker: takes runs from the search one after the other and sees each through to its end."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ampcompare.program.stopping import TAKEN_AWAY, signal_of
from ampcompare.sweeps.attempts import Attempt
from ampcompare.sweeps.file.command import build_command
from ampcompare.sweeps.file.sweep import Sweep
from ampcompare.sweeps.follow import Follower
from ampcompare.sweeps.process import STOP_SECONDS, Guard, Run, run_environment
from ampcompare.sweeps.search import Search

POLL_SECONDS = 0.25
WAIT_FOR_OTHERS_SECONDS = 2.0
OTHERS_HEAR_SECONDS = 2.0  # from a signal to one process of a job to that to all


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

    def run(self) -> None:
        try:
            self._run()
        except BaseException as problem:
            self.problem = problem
            self.context.stop.set()

    def _run(self) -> None:
        context = self.context
        while not context.stop.is_set():
            attempt = context.search.next()
            if attempt:
                self._see_through(attempt)
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
        if attempt.attempt > 1 and follower.exit_code() == 0:
            # Its worker died between the end of the program and telling; done twice would be once too many.
            return self._close(attempt, job, follower, "finished")
        try:
            run = self._start(attempt, job)
        except (OSError, ValueError) as problem:  # ValueError: words that no program can be given
            with job.log.open("a", encoding="utf-8", errors="backslashreplace") as file:
                print(f"cannot be started: {problem}", file=file)
            return self._close(attempt, job, follower, "failed")
        stopped_early, asked, code = self._watch(run, attempt, job, follower)
        job.seconds, job.exit_code = time.monotonic() - job.began, code
        taken = not stopped_early and signal_of(code) in TAKEN_AWAY
        if taken and not asked:  # a batch system tells every process, and this run was faster than we
            asked = context.stop.wait(OTHERS_HEAR_SECONDS)
        if asked and (code != 0 or not context.here):
            job.state = "interrupted"
            context.search.give_up(attempt)
            return context.on_change(job)
        killed = code == -signal.SIGKILL and not (stopped_early or context.kill.is_set())
        if (killed or taken) and not asked:
            # By the machine (no memory left) or by someone: once more, as with a run whose worker died.
            job.state = "lost" if context.search.give_up(attempt, "lost") else "taken over"
            return context.on_change(job)
        state = "stopped" if stopped_early else "finished" if code == 0 else "failed"
        return self._close(attempt, job, follower, state)

    def _close(self, attempt: Attempt, job: Job, follower: Follower, state: str) -> None:
        values = follower.values(now=True)
        job.value = values[-1] if values else None
        number = job.value if job.value is not None and math.isfinite(job.value) else None
        job.state = state if self.context.search.finish(attempt, state, number) else "taken over"
        self.context.on_change(job)

    def _watch(self, run: Run, attempt: Attempt, job: Job, follower: Follower) -> tuple[bool, bool, int]:
        """Wait for the end: send signs of life, compare at the bands of hyperband, stop when asked to.

        Returns whether hyperband stopped it, whether the user did, and the exit code.
        """
        context = self.context
        bands = list(context.sweep.hyperband.bands) if context.sweep.hyperband else []
        next_sign = time.monotonic()
        kill_at, early, asked = math.inf, False, False
        while (code := run.wait(POLL_SECONDS)) is None:
            now = time.monotonic()
            if now >= next_sign:
                if not context.search.alive(attempt):  # we were silent too long: another worker repeats it
                    run.kill()
                next_sign = now + context.search.heartbeat_seconds
            if context.sweep.metric:
                values = follower.values()
                job.value = values[-1] if values else None
                while bands and not early and len(values) >= bands[0]:
                    early = self._falls_behind(attempt, values, bands.pop(0))
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
        )
        if self.gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = self.gpu
        # A program of others may know no such option; its record has the plan nevertheless.
        own = [f"plan.{key}={value}" for key, value in attempt.plan.items()] if context.here else []
        return Run([*words, *context.words, *own], environment, job.log, context.guard)


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
