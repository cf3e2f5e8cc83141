"""Runs as tasks of Ray: a task for each run, or for each series of runs that share a process.

Ray chooses the node. If a node dies, its runs end without a trace, and the driver starts them again. The
driver stays until all runs have ended. If the driver is killed, Ray ends its tasks, and their guards end the
runs.
"""

import os
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

from ampcompare.errors import UserError
from ampcompare.sweeps.executors.ray_cluster import (
    FIRST_TASK_SECONDS,
    call_on_every_node,
    check_nodes,
    choose_slots,
    connect,
    is_lost,
    runtime_environment,
    short_message,
    task_options,
)
from ampcompare.sweeps.executors.ray_task import RayTask, run_task
from ampcompare.sweeps.journal import Journal, SweepRun
from ampcompare.sweeps.prepare import PreparedSweep
from ampcompare.sweeps.process_guard import STOP_SECONDS, note_stop, write_end
from ampcompare.sweeps.run_end import DRIVER, NOT_STARTED, RunEnd, end_file_of, read_end, runs_left
from ampcompare.sweeps.run_launcher import RunLauncher
from ampcompare.sweeps.run_process import end_leftovers

KILL_REPEAT_SECONDS = 1.0  # between requests to kill a run: Ray may merge two in quick succession


class RayExecutor:
    """Runs tasks on a cluster to which this process is connected.

    Args:
        launcher: Starts the runs, within the tasks.
        options: Ray's options for each task.
        slots: Number of runs at a time.
        max_signal_ends: After this number of ends by a signal, or with its node, a run has failed; None:
            never.
        working_folder: Where relative paths of the runs begin; None where Ray's `runtime_env` has a folder.
        is_connected_here: Whether this process connected to the cluster, and has to disconnect.
    """

    poll_seconds = 0.1

    def __init__(
        self,
        launcher: RunLauncher,
        options: Mapping[str, Any],
        slots: int,
        max_signal_ends: int | None,
        working_folder: str | None,
        *,
        is_connected_here: bool,
    ) -> None:
        import ray

        self.slots, self.max_signal_ends = slots, max_signal_ends
        self._launcher, self._working_folder = launcher, working_folder
        self._is_connected_here = is_connected_here
        # Ray leaves all GPUs visible to a task that asks for none.
        self._gpu = "" if options["num_gpus"] == 0 else None
        # The driver starts a run again, by the one rule for all executors.
        self._function = ray.remote(run_task).options(**options, max_retries=0)
        # The runs of each task at submission, by Ray's reference to the result of the task.
        self._tasks: dict[Any, Sequence[SweepRun]] = {}
        self.assigned: list[list[int]] = []
        self._killed: set[int] = set()
        self._next_kill = 0.0

    def submit(self, groups: Sequence[Sequence[SweepRun]]) -> list[dict[str, Any]]:
        """Submit these groups to Ray, which starts each when its resources are free; return their tasks."""
        places = []
        for runs in groups:
            task = RayTask(self._launcher, tuple(runs), self._working_folder, self._gpu)
            reference = self._function.remote(task)
            self._tasks[reference] = runs
            self.assigned.append([run.index for run in runs[1:]])
            places.append(_place_of(reference))
        return places

    def alive(self) -> dict[int, dict[str, Any]]:
        """Return the run that is under way, or comes first, in each task that waits or runs."""
        import ray

        self._kill_again()
        if self._tasks:
            ready, _ = ray.wait([*self._tasks], num_returns=len(self._tasks), timeout=0)
            for reference in ready:
                self._note_end(reference)
        alive: dict[int, dict[str, Any]] = {}
        self.assigned = []
        for reference, (run, *waiting) in self._left():
            alive[run.index] = _place_of(reference)
            self.assigned.append([later.index for later in waiting])
        return alive

    def _left(self) -> Iterator[tuple[Any, list[SweepRun]]]:
        """Yield each task that has not ended with the runs that are left in it."""
        for reference, runs in self._tasks.items():
            if left := runs_left(runs, self._launcher.folder):
                yield reference, left

    def cancel(self, runs: Sequence[SweepRun], *, at_once: bool = False) -> None:
        """Have the tasks end their runs by SIGTERM, and by SIGKILL after STOP_SECONDS or `at_once`."""
        indices = {run.index for run in runs}
        for _, (run, *_) in self._left():
            if run.index in indices:  # the task may not have begun, or be lost together with its worker
                note_stop(end_file_of(self._launcher.folder, run), time.time(), DRIVER)
        if at_once:
            self._killed |= indices
            self._next_kill = time.monotonic() + KILL_REPEAT_SECONDS
        self._interrupt(indices)

    def close(self) -> None:
        """End the runs that are left. End a cluster that this process started, disconnect from any other."""
        import ray

        self.cancel([run for runs in self._tasks.values() for run in runs])
        deadline = time.monotonic() + STOP_SECONDS
        while self._tasks and time.monotonic() < deadline:
            self.alive()
            time.sleep(self.poll_seconds)
        if self._is_connected_here:
            ray.shutdown()

    def _interrupt(self, indices: Container[int]) -> None:
        import ray

        for reference, left in self._left():
            if any(run.index in indices for run in left):
                ray.cancel(reference)

    def _kill_again(self) -> None:
        if self._killed and time.monotonic() > self._next_kill:
            self._next_kill = time.monotonic() + KILL_REPEAT_SECONDS
            self._interrupt(self._killed)

    def _note_end(self, reference: Any) -> None:
        """Write down why a task that has ended could not train its runs."""
        import ray
        from ray.exceptions import RayError

        runs = self._tasks.pop(reference)
        self._killed -= {run.index for run in runs}
        try:
            if problem := ray.get(reference):
                self._note_problem(runs, problem)
        except RayError as error:
            self._note_problem(runs, short_message(error), is_lost=is_lost(error))

    def _note_problem(self, runs: Sequence[SweepRun], problem: str, *, is_lost: bool = False) -> None:
        """Write down why a task has ended, as the end of the run that was under way or came next in it.

        Args:
            runs: The runs of the task.
            problem: The reason.
            is_lost: Whether Ray lost the task, so that the end of the run was not observed.
        """
        left = runs_left(runs, self._launcher.folder)
        if not left:
            return
        facts = end_file_of(self._launcher.folder, left[0])
        known = read_end(facts)
        if known is not None and known.asked_by == DRIVER:  # perhaps before it began
            return
        if is_lost:
            self._log(left[0], f"Ray lost the node or worker: {problem}")
            # The journal may not say yet that the run has begun behind another one.
            write_end(facts, RunEnd().facts(), is_first=True)
        else:
            self._log(left[0], problem)
            write_end(facts, RunEnd(NOT_STARTED).facts())

    def _log(self, run: SweepRun, line: str) -> None:
        with self._launcher.log_file(run.run_id).open("a", encoding="utf-8") as log:
            print(line, file=log)


def _place_of(reference: Any) -> dict[str, Any]:
    """Return where a run of a task was started, for the journal."""
    return {"ray": reference.task_id().hex()}


def end_leftovers_on_nodes(journal: Journal, *, is_own: bool) -> None:
    """End what a killed driver has left on any node of the cluster.

    Args:
        journal: The sweep's journal.
        is_own: Whether this process started the cluster, on this machine.
    """
    left = [run for run in journal.state.own_running if "ray" in run.process]
    if not left:
        return
    end_leftovers(left, journal.folder)
    if not is_own:
        seconds = FIRST_TASK_SECONDS + STOP_SECONDS
        call_on_every_node(end_leftovers, left, journal.folder, seconds=seconds)


def ray_factory(
    prepared: PreparedSweep, cluster_options: Mapping[str, str]
) -> Callable[[Journal], RayExecutor]:
    """Connect to the cluster, and return a function that makes the executor of a sweep.

    Args:
        cluster_options: Options of the command line, `ray.NAME=VALUE`, by name.

    Raises:
        UserError: If Ray or the cluster is missing, or cannot do what the sweep needs.
    """
    options = task_options(cluster_options)
    try:
        import ray
    except ImportError:
        raise UserError(
            "--cluster ray: needs Ray, which is not installed; install it with: pip install 'ampcompare[ray]'"
        ) from None
    environment = runtime_environment(options.pop("runtime_env", {}), prepared.output)
    is_connected_here = not ray.is_initialized()
    is_own = is_connected_here and not os.environ.get("RAY_ADDRESS")
    max_retries = options.pop("max_retries")
    if is_connected_here:
        connect(environment)
    else:
        options["runtime_env"] = environment
    working_folder = None if "working_dir" in environment else os.getcwd()
    try:
        slots = choose_slots(prepared, options, is_own=is_own)
        if not is_own:
            check_nodes(prepared.output)
    except BaseException:
        if is_connected_here:
            ray.shutdown()
        raise

    def make(journal: Journal) -> RayExecutor:
        total = prepared.sweep.total()
        slots_needed = min(slots, max(1, total)) if total and not prepared.looks else slots
        max_signal_ends = None if max_retries < 0 else max_retries + 1
        end_leftovers_on_nodes(journal, is_own=is_own)
        return RayExecutor(
            prepared.launcher(journal.folder),
            options,
            slots_needed,
            max_signal_ends,
            working_folder,
            is_connected_here=is_connected_here,
        )

    return make
