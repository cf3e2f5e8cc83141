"""Runs as tasks of Ray, one task per run.

Ray chooses the node, and starts a task again when its node dies (ray_task.py). The driver stays until all
runs have ended. If the driver is killed, Ray ends its tasks, and their guards end the runs.
"""

import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ampcompare.errors import UserError, reason
from ampcompare.runs.run_state import RunState
from ampcompare.runtime.atomic_files import make_folder
from ampcompare.sweeps.code_version import changed_code_dates, read_code_version
from ampcompare.sweeps.executors import RunEvent
from ampcompare.sweeps.executors.ray_cluster import (
    FIRST_TASK_SECONDS,
    RayCluster,
    call_on_every_node,
    check_nodes,
    choose_slots,
    connect,
    short_message,
)
from ampcompare.sweeps.executors.ray_options import runtime_environment, task_options
from ampcompare.sweeps.executors.ray_task import (
    NOTES,
    RayTask,
    TaskResult,
    WorkingFolder,
    end_leftovers_here,
    run_task,
    write_files,
)
from ampcompare.sweeps.journal import Journal, SweepRun
from ampcompare.sweeps.metric_tail import MetricTail
from ampcompare.sweeps.prepare import PreparedSweep
from ampcompare.sweeps.run_process import STOP_SECONDS, RunLauncher

KILL_REPEAT_SECONDS = 1.0  # between requests to kill a run: Ray may merge two in quick succession


class RayExecutor:
    """Runs tasks on a cluster to which this process is connected.

    Args:
        launcher: Starts the runs, within the tasks.
        cluster: The cluster.
        journal: The sweep's journal.
        working_folder: Where relative paths of the runs begin.
    """

    def __init__(
        self, launcher: RunLauncher, cluster: RayCluster, journal: Journal, working_folder: WorkingFolder
    ) -> None:
        import ray

        self.slots, self.has_live_records = cluster.slots, cluster.sees_output
        self._launcher, self._cluster, self._journal = launcher, cluster, journal
        self._working_folder = working_folder
        self._function = ray.remote(run_task).options(**cluster.task_options)
        self._runs: dict[Any, SweepRun] = {}  # by Ray's reference to the result of the task
        self._cancelled: set[int] = set()
        self._killed: set[int] = set()
        self._next_kill = 0.0
        self._news: list[RunEvent] = []
        self._token = secrets.token_hex(16)
        notes = make_folder(launcher.folder / NOTES, str(launcher.folder / NOTES))
        (notes / "token").write_text(self._token)

    def recover(self) -> None:
        """End what a killed driver left on any node, and report the runs that it had started."""
        left = [run for run in self._journal.state.with_state(RunState.RUNNING) if "ray" in run.process]
        if not left:
            return
        folder = self._launcher.folder
        end_leftovers_here(left, folder)
        if not self._cluster.is_own:
            call_on_every_node(end_leftovers_here, left, folder, seconds=FIRST_TASK_SECONDS + STOP_SECONDS)
        for run in left:
            is_finished = MetricTail(folder, run.run_id).exit_code() == 0
            state = RunState.FINISHED if is_finished else RunState.PREEMPTED
            self._news.append(RunEvent(run.index, state))

    def submit(self, runs: Sequence[SweepRun]) -> None:
        """Submit these runs to Ray, which starts them when their resources are free."""
        code = dict(changed_code_dates(self._journal.state))
        needs_shared_folder = self._launcher.sweep.hyperband is not None
        # Ray leaves all GPUs visible to a task that asks for none.
        gpu = "" if self._cluster.task_options["num_gpus"] == 0 else None
        for run in runs:
            task = RayTask(
                self._launcher,
                run,
                self._token,
                secrets.token_hex(16),
                self._working_folder,
                needs_shared_folder,
                gpu,
                code,
            )
            reference = self._function.remote(task)
            self._runs[reference] = run
            process = {"ray": reference.task_id().hex()}
            self._news.append(RunEvent(run.index, RunState.RUNNING, process=process))

    def poll(self, seconds: float) -> list[RunEvent]:
        """Return what has happened, after `seconds` at the latest."""
        import ray

        self._kill_again()
        if self._runs and not self._news:
            ray.wait([*self._runs], num_returns=1, timeout=seconds)
        elif not self._news and seconds:
            time.sleep(seconds)
        if self._runs:
            ready, _ = ray.wait([*self._runs], num_returns=len(self._runs), timeout=0)
            for reference in ready:
                self._news.append(self._event_of(reference))
        news, self._news = self._news, []
        return news

    def cancel(self, run: SweepRun, *, at_once: bool = False) -> None:
        """Have the task end its run by SIGTERM, and by SIGKILL after STOP_SECONDS or `at_once`."""
        self._cancelled.add(run.index)
        if at_once:
            self._killed.add(run.index)
            self._next_kill = time.monotonic() + KILL_REPEAT_SECONDS
        self._interrupt(run.index)

    def close(self) -> None:
        """End the runs that are left. End a cluster that this process started, disconnect from any other."""
        import ray

        for run in [*self._runs.values()]:
            self.cancel(run)
        deadline = time.monotonic() + STOP_SECONDS
        while self._runs and time.monotonic() < deadline:
            self.poll(KILL_REPEAT_SECONDS)
        if self._cluster.is_connected_here:
            ray.shutdown()

    def _interrupt(self, index: int) -> None:
        import ray

        for reference, run in self._runs.items():
            if run.index == index:
                ray.cancel(reference)

    def _kill_again(self) -> None:
        if self._killed and time.monotonic() > self._next_kill:
            self._next_kill = time.monotonic() + KILL_REPEAT_SECONDS
            for index in self._killed:
                self._interrupt(index)

    def _event_of(self, reference: Any) -> RunEvent:
        """Return how the run of an ended task ended, after writing its files."""
        import ray
        from ray.exceptions import RayError

        run, folder = self._runs.pop(reference), self._launcher.folder
        was_cancelled = run.index in self._cancelled
        self._cancelled.discard(run.index)
        self._killed.discard(run.index)
        try:
            result: TaskResult = ray.get(reference)
            write_files(folder, run.run_id, result.files)
            event, message = result.event, result.message
        except RayError as problem:
            if was_cancelled:  # before it started, or together with its worker
                return RunEvent(run.index, RunState.PREEMPTED)
            event, message = RunEvent(run.index, RunState.FAILED), short_message(problem)
        except (OSError, ValueError) as problem:
            why = f"the files of the run cannot be written: {reason(problem)}"
            event, message = RunEvent(run.index, RunState.FAILED), why
        if message:
            with self._launcher.log_file(run.run_id).open("a", encoding="utf-8") as log:
                print(message, file=log)
        return event


def ray_factory(
    prepared: PreparedSweep, cluster_options: Mapping[str, str]
) -> Callable[[Journal], RayExecutor]:
    """Connect to the cluster, and return a function that makes the executor of a sweep.

    Args:
        prepared: The sweep.
        cluster_options: Options of the command line, `ray.NAME=VALUE`, by name.

    Raises:
        UserError: If Ray or the cluster is missing, or cannot do what the sweep needs.
    """
    options = task_options(cluster_options)
    try:
        import ray
    except ImportError:
        todo = "install it with: pip install 'ampcompare[ray]'"
        raise UserError(f"--cluster ray: needs Ray, which is not installed; {todo}") from None
    environment = runtime_environment(options.pop("runtime_env", {}), prepared.output)
    is_connected_here = not ray.is_initialized()
    is_own = is_connected_here and not os.environ.get("RAY_ADDRESS")
    if is_connected_here:
        connect(environment, options["max_retries"])
    else:
        options["runtime_env"] = environment
    folder = None if "working_dir" in environment else os.getcwd()
    hashes = read_code_version(prepared.code_files).hashes
    try:
        slots = choose_slots(prepared, options, is_own=is_own)
        sees_output = check_nodes(prepared, is_own=is_own)
    except BaseException:
        if is_connected_here:
            ray.shutdown()
        raise

    def make(journal: Journal) -> RayExecutor:
        total = prepared.sweep.total()
        slots_needed = min(slots, max(1, total)) if total and not prepared.looks else slots
        cluster = RayCluster(options, slots_needed, is_own, is_connected_here, sees_output)
        launcher = prepared.launcher(journal.folder)
        executor = RayExecutor(launcher, cluster, journal, WorkingFolder(folder, hashes))
        executor.recover()
        return executor

    return make
