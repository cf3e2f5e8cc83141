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

from ampcompare.sweeps.file.command import build_command
from ampcompare.sweeps.file.sweep import Sweep
from ampcompare.sweeps.follow import Follower
from ampcompare.sweeps.process import STOP_SECONDS, Guard, Run, run_environment
from ampcompare.sweeps.search import Search, Trying

POLL_SECONDS = 0.25
WAIT_FOR_OTHERS_SECONDS = 2.0


@dataclass
class Job:
    """What a run of this process looks like from outside."""

    number: int
    run_id: str
    parameters: Mapping[str, Any]
    attempt: int
    began: float
    worker: int
    gpu: str | None = None
    state: str = "running"
    value: float | None = None  # the newest of the metric
    seconds: float = 0.0
    exit_code: int | None = None
    log: Path = field(default_factory=Path)


@dataclass(frozen=True)
class Workplace:
    """What all workers of one process share."""

    sweep: Sweep
    search: Search
    folder: Path
    words: tuple[str, ...]  # overrides of the command line, behind every command
    guard: Guard
    exit_code_tells: bool  # whether a program that was asked to stop says so by its exit code
    stop: threading.Event  # no new runs; those going on are asked to end
    kill: threading.Event  # at once
    on_change: Callable[[Job], None]
    on_waiting: Callable[[int], None]


class Worker(threading.Thread):
    """One run at a time, until there are no more; `gpu` is the only device its runs see."""

    def __init__(self, number: int, place: Workplace, gpu: str | None) -> None:
        super().__init__(name=f"worker-{number}", daemon=True)
        self.number, self.place, self.gpu = number, place, gpu
        self.problem: BaseException | None = None

    def run(self) -> None:
        try:
            self._run()
        except BaseException as problem:
            self.problem = problem
            self.place.stop.set()

    def _run(self) -> None:
        place = self.place
        while not place.stop.is_set():
            trying = place.search.next()
            if trying:
                self._see_through(trying)
                continue
            running = place.search.running()
            if not running:
                return
            # Runs of other workers go on. Should one of them die, its run has to be taken over.
            place.on_waiting(running)
            place.stop.wait(WAIT_FOR_OTHERS_SECONDS)

    def _see_through(self, trying: Trying) -> None:
        place = self.place
        job = Job(
            number=trying.trial.number,
            run_id=trying.run_id,
            parameters=trying.parameters,
            attempt=trying.attempt,
            began=time.monotonic(),
            worker=self.number,
            gpu=self.gpu,
            log=place.folder / "logs" / f"{trying.run_id}.log",
        )
        place.on_change(job)
        metric = place.sweep.metric
        follower = Follower(place.folder, trying.run_id, metric.name if metric else None)
        if trying.attempt > 1 and follower.exit_code() == 0:
            # Its worker died between the end of the program and telling; done twice would be once too many.
            return self._close(trying, job, follower, "finished")
        try:
            run = self._start(trying, job)
        except (OSError, ValueError) as problem:  # ValueError: words that no program can be given
            _note(job.log, f"cannot be started: {problem}")
            return self._close(trying, job, follower, "failed")
        stopped_early, asked, code = self._watch(run, trying, job, follower)
        job.seconds, job.exit_code = time.monotonic() - job.began, code
        if asked and (code != 0 or not place.exit_code_tells):
            job.state = "interrupted"
            place.search.give_up(trying)
            return place.on_change(job)
        if code == -signal.SIGKILL and not (stopped_early or asked or place.kill.is_set()):
            # By the machine (no memory left) or by someone: once more, as with a run whose worker died.
            job.state = "lost" if place.search.give_up(trying, "lost") else "taken over"
            return place.on_change(job)
        return self._close(
            trying, job, follower, "stopped" if stopped_early else "finished" if code == 0 else "failed"
        )

    def _close(self, trying: Trying, job: Job, follower: Follower, state: str) -> None:
        values = follower.values(now=True)
        job.value = values[-1] if values else None
        number = job.value if job.value is not None and math.isfinite(job.value) else None
        job.state = state if self.place.search.finish(trying, state, number) else "taken over"
        self.place.on_change(job)

    def _watch(self, run: Run, trying: Trying, job: Job, follower: Follower) -> tuple[bool, bool, int]:
        """Wait for the end, sending signs of life, comparing at the bands of hyperband, stopping when asked
        to.

        Returns whether hyperband stopped it, whether the user did, and the exit code.
        """
        place = self.place
        bands = list(place.sweep.hyperband.bands) if place.sweep.hyperband else []
        next_sign = time.monotonic()
        kill_at, early, asked = math.inf, False, False
        while (code := run.wait(POLL_SECONDS)) is None:
            now = time.monotonic()
            if now >= next_sign:
                if not place.search.alive(trying):  # we were silent too long, and another worker repeats it
                    run.kill()
                next_sign = now + place.search.heartbeat_seconds
            if place.sweep.metric:
                values = follower.values()
                job.value = values[-1] if values else None
                while bands and not early and len(values) >= bands[0]:
                    early = self._falls_behind(trying, values, bands.pop(0))
            if (early or place.stop.is_set()) and kill_at == math.inf:
                asked = not early
                run.stop()
                kill_at = now + STOP_SECONDS
            if place.kill.is_set() or now > kill_at:
                run.kill()
            job.seconds = now - job.began
        return early, asked, code

    def _falls_behind(self, trying: Trying, values: list[float], band: int) -> bool:
        sweep = self.place.sweep
        assert sweep.metric
        assert sweep.hyperband
        worst = -math.inf if sweep.metric.maximize else math.inf
        reached = [worst if math.isnan(v) else v for v in values[:band]]
        best = max if sweep.metric.maximize else min
        value = reached[-1] if sweep.hyperband.strict else best(reached)
        return self.place.search.should_stop(trying, band, value)

    def _start(self, trying: Trying, job: Job) -> Run:
        place, sweep = self.place, self.place.sweep
        files = place.folder / "wandb" / f"sweep-{place.search.name}"
        files.mkdir(parents=True, exist_ok=True)
        parameters_file = files / f"config-{trying.run_id}.yaml"
        save_parameters(parameters_file, trying.parameters)
        words = build_command(
            sweep.command, sweep.program, trying.parameters, parameters_file.with_suffix(".json")
        )
        environment = run_environment(
            place.search.name, trying.run_id, parameters_file, place.folder, sweep.project, sweep.entity
        )
        if self.gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = self.gpu
        return Run([*words, *place.words], environment, job.log, place.guard)


def save_parameters(path: Path, parameters: Mapping[str, Any]) -> None:
    """The file from which W&B's client takes a run's sweep parameters."""
    import yaml

    content = {"wandb_version": 1, **{key: {"value": value} for key, value in parameters.items()}}
    path.write_text(yaml.safe_dump(content, allow_unicode=True, sort_keys=False), encoding="utf-8")


def _note(log: Path, line: str) -> None:
    with log.open("a", encoding="utf-8", errors="backslashreplace") as file:
        print(line, file=file)
