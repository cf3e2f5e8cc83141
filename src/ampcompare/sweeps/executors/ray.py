"""Runs as tasks of Ray, one task a run, on the cluster of RAY_ADDRESS or on a local one that is started here.

Ray chooses the node and starts a task again when its node dies. What becomes of the run stands in
ray_task.py. The driver stays until all has ended; if it is killed, Ray ends its tasks, and their guards end
the runs.

Words `ray.num_gpus=0.5` are options of the tasks.
"""

import math
import os
import secrets
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ampcompare.errors import UserError, did_you_mean, one_line, reason
from ampcompare.runs.run_state import RunState
from ampcompare.runtime.atomic_files import make_folder
from ampcompare.runtime.signals import preserved_handlers
from ampcompare.runtime.yaml_io import parse_yaml_value
from ampcompare.sweeps.code_version import changed_code_dates, read_code_version
from ampcompare.sweeps.executors import RunEvent
from ampcompare.sweeps.executors.ray_task import (
    NOTES,
    RayTask,
    TaskResult,
    WorkingFolder,
    end_leftovers_here,
    run_task,
    sees_token,
    write_files,
)
from ampcompare.sweeps.journal import Journal, SweepRun
from ampcompare.sweeps.metric_tail import MetricTail
from ampcompare.sweeps.prepare import PreparedSweep
from ampcompare.sweeps.run_process import STOP_SECONDS, RunLauncher

PREFIX = "ray."
WORDS = {
    "num_gpus": "GPUs of a run, such as 1 or 0.5",
    "num_cpus": "CPUs of a run, such as 4",
    "memory": "bytes of memory of a run, such as 8e9",
    "resources": """amounts by name, such as '{"my_gpu": 1}'""",
    "max_retries": "how often a run is started again when its node dies, such as 3",
    "runtime_env": """a mapping as Ray has it, such as '{"working_dir": "."}'""",
}
DEFAULTS = {"num_cpus": 1, "max_retries": 3}
CONNECT_SECONDS = 5.0
PROBE_SECONDS = 60.0  # for a first task on each node, which may have to start a worker
AGAIN_SECONDS = 1.0  # between requests to kill a run: Ray may merge two that follow each other closely
STORE_BYTES = 128 * 2**20  # of a local cluster's object store, which holds almost nothing
# Ray's worker would kill its children when it ends: the run without a checkpoint, and the guard.
KEEP_CHILDREN = {"RAY_kill_child_processes_on_worker_exit": "0"}


@dataclass(frozen=True)
class RayCluster:
    """A cluster to which this process is connected.

    Attributes:
        task_options: Ray's options of each task.
        slots: How many runs it takes at a time.
        is_own: Whether this process has started it.
        is_connected_here: Whether this process has connected to it, and has to leave it.
        sees_output: Whether every node sees the output folder.
    """

    task_options: Mapping[str, Any]
    slots: int
    is_own: bool
    is_connected_here: bool
    sees_output: bool


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
        """See what became of the runs of a killed driver, on every node."""
        left = [run for run in self._journal.state.with_state(RunState.RUNNING) if "ray" in run.process]
        if not left:
            return
        folder = self._launcher.folder
        end_leftovers_here(left, folder)
        if not self._cluster.is_own:
            _on_every_node(end_leftovers_here, left, folder, seconds=PROBE_SECONDS + STOP_SECONDS)
        for run in left:
            is_finished = MetricTail(folder, run.run_id).exit_code() == 0
            state = RunState.FINISHED if is_finished else RunState.PREEMPTED
            self._news.append(RunEvent(run.index, state))

    def submit(self, runs: Sequence[SweepRun]) -> None:
        """Give these runs to Ray, which starts them when their resources are free."""
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
            self._next_kill = time.monotonic() + AGAIN_SECONDS
        self._interrupt(run.index)

    def close(self) -> None:
        """End the runs that are left, if any are. End a local cluster, leave one of somebody else."""
        import ray

        for run in [*self._runs.values()]:
            self.cancel(run)
        deadline = time.monotonic() + STOP_SECONDS
        while self._runs and time.monotonic() < deadline:
            self.poll(AGAIN_SECONDS)
        if self._cluster.is_connected_here:
            ray.shutdown()

    def _interrupt(self, index: int) -> None:
        import ray

        for reference, run in self._runs.items():
            if run.index == index:
                ray.cancel(reference)

    def _kill_again(self) -> None:
        if self._killed and time.monotonic() > self._next_kill:
            self._next_kill = time.monotonic() + AGAIN_SECONDS
            for index in self._killed:
                self._interrupt(index)

    def _event_of(self, reference: Any) -> RunEvent:
        """Return how a task that has ended left its run. Its files are on the disk by then."""
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
            if was_cancelled:  # before its start, or with its worker
                return RunEvent(run.index, RunState.PREEMPTED)
            event, message = RunEvent(run.index, RunState.FAILED), _told_by_ray(problem)
        except (OSError, ValueError) as problem:
            why = f"the files of the run cannot be written: {reason(problem)}"
            event, message = RunEvent(run.index, RunState.FAILED), why
        if message:
            with self._launcher.log_file(run.run_id).open("a", encoding="utf-8") as log:
                print(message, file=log)
        return event


def ray_factory(prepared: PreparedSweep, words: Mapping[str, str]) -> Callable[[Journal], RayExecutor]:
    """Connect to the cluster, and return what makes the executor of a sweep.

    Args:
        prepared: The sweep.
        words: Words `ray.NAME=VALUE`, by name.

    Raises:
        UserError: If Ray or the cluster is not there, or cannot do what the sweep needs.
    """
    options = task_options(words)
    try:
        import ray
    except ImportError:
        todo = "install it with: pip install 'ampcompare[ray]'"
        raise UserError(f"--cluster ray: needs Ray, which is not installed; {todo}") from None
    environment = _runtime_environment(options.pop("runtime_env", {}), prepared.output)
    is_connected_here = not ray.is_initialized()
    is_own = is_connected_here and not os.environ.get("RAY_ADDRESS")
    if is_connected_here:
        _connect(environment, options["max_retries"])
    else:
        options["runtime_env"] = environment
    folder = None if "working_dir" in environment else os.getcwd()
    hashes = read_code_version(prepared.code_files).hashes
    try:
        slots = _slots(prepared, options, is_own=is_own)
        sees_output = _check_nodes(prepared, is_own=is_own)
    except BaseException:
        if is_connected_here:
            ray.shutdown()
        raise

    def make(journal: Journal) -> RayExecutor:
        total = prepared.sweep.total()
        fewest = min(slots, max(1, total)) if total and not prepared.looks else slots
        cluster = RayCluster(options, fewest, is_own, is_connected_here, sees_output)
        launcher = prepared.launcher(journal.folder)
        executor = RayExecutor(launcher, cluster, journal, WorkingFolder(folder, hashes))
        executor.recover()
        return executor

    return make


def task_options(words: Mapping[str, str]) -> dict[str, Any]:
    """Return the words as Ray's options of a task.

    Args:
        words: Words by name, without prefix.

    Raises:
        UserError: For an option that there is not, or a value that it cannot have.
    """
    options: dict[str, Any] = dict(DEFAULTS)
    for name, text in words.items():
        word = f"{PREFIX}{name}={text}"
        if name not in WORDS:
            allowed = did_you_mean(name, WORDS) or f"expected one of {', '.join(WORDS)}"
            raise UserError(f"{word}: no such option; {allowed}")
        value = parse_yaml_value(PREFIX + name, text)
        if not _is_valid(name, value):
            raise UserError(f"{word}: expected {WORDS[name]}")
        options[name] = value
    return options


def _is_valid(name: str, value: Any) -> bool:
    """Return whether Ray takes the value of an option."""
    if name == "runtime_env":
        return isinstance(value, dict) and all(isinstance(key, str) for key in value)
    if name == "max_retries":
        return isinstance(value, int) and not isinstance(value, bool) and value >= -1
    if name == "resources":
        own = ("CPU", "GPU", "memory", "object_store_memory")
        return isinstance(value, dict) and all(
            isinstance(key, str) and key not in own and _is_amount(amount) for key, amount in value.items()
        )
    return _is_amount(value, is_whole=name == "memory")


def _is_amount(value: Any, *, is_whole: bool = False) -> bool:
    """Return whether a task can ask for so much: any number up to 1, whole numbers above."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        return False
    return value == int(value) or (value < 1 and not is_whole)


def _runtime_environment(given: Mapping[str, Any], output: Path) -> dict[str, Any]:
    """Return the environment of the tasks, with what a run needs there.

    Raises:
        UserError: If Ray does not take it.
    """
    from ray.runtime_env import RuntimeEnv

    made = dict(given)
    unknown = [key for key in made if key not in RuntimeEnv.known_fields]
    if unknown:
        near = did_you_mean(unknown[0], RuntimeEnv.known_fields)
        raise UserError(f"{PREFIX}runtime_env: Ray has no field {unknown[0]!r}{near and f'; {near}'}")
    try:
        RuntimeEnv(**made)
        made["env_vars"] = {**KEEP_CHILDREN, **made.get("env_vars", {})}
        folder = Path(made.get("working_dir", ""))
        if made.get("working_dir") and folder.is_dir():
            with suppress(ValueError):  # the runs are not a part of the program that travels
                inside = output.resolve().relative_to(folder.resolve()).as_posix()
                made["excludes"] = [*made.get("excludes", []), f"/{inside}/"]
        return made
    except (ValueError, TypeError, AttributeError) as problem:
        raise UserError(f"{PREFIX}runtime_env: {one_line(str(problem))}") from None


def _connect(environment: Mapping[str, Any], max_retries: int) -> None:
    """Connect to the cluster of RAY_ADDRESS, or start one on this machine.

    Args:
        environment: Ray's runtime environment of the tasks.
        max_retries: How often a task is started again that Ray ends because its node's memory is full.

    Raises:
        UserError: If the cluster does not answer.
    """
    import ray

    address = os.environ.get("RAY_ADDRESS") or "local"
    what = "--cluster ray" if address == "local" else f"RAY_ADDRESS={address}"
    if address.startswith("ray://"):
        todo = "run the command on a machine of the cluster, with RAY_ADDRESS=HOST:6379 or auto"
        raise UserError(f"{what}: is for Ray's client, which this command does not use; {todo}")
    host, _, port = address.rpartition(":")
    if host and port.isdigit():  # Ray itself would try for minutes, and end this process then
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
        except (OSError, ValueError, OverflowError) as problem:
            todo = "expected HOST:PORT of a running cluster, or auto; without RAY_ADDRESS one is started here"
            raise UserError(f"{what}: no cluster answers ({reason(problem)}); {todo}") from None
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_task_oom_retries", str(max_retries))  # Ray's own default has no end
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        quiet |= {"include_dashboard": False, "object_store_memory": STORE_BYTES}
    try:
        # The handlers of Ray would end this process and leave its runs.
        with preserved_handlers(signal.SIGTERM, signal.SIGINT):
            ray.init(address=address, runtime_env=dict(environment), **quiet)
    except (Exception, SystemExit) as problem:
        ray.shutdown()
        raise UserError(f"{what}: cannot be used: {_told_by_ray(problem)}") from None
    _hide_reports_of_ray()


def _hide_reports_of_ray() -> None:
    """Keep off the terminal what Ray prints of each dead node, dozens of lines: `log_to_driver` does not.

    Ray has no setting for it. Where another version prints it in another way, it is printed.
    """
    from ray._private import worker

    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda *arguments, **options: None


def _slots(prepared: PreparedSweep, options: dict[str, Any], *, is_own: bool) -> int:
    """Return how many runs go at a time; complete the options by a GPU for each run where there are GPUs.

    Raises:
        UserError: If no node can hold a run.
    """
    nodes = _alive_nodes()
    if "num_gpus" not in options:
        has_gpus = any(node["Resources"].get("GPU") for node in nodes)
        options["num_gpus"] = 1 if has_gpus and not prepared.on_cpu else 0
    needed = {"CPU": options["num_cpus"], "GPU": options["num_gpus"], "memory": options.get("memory", 0)}
    needed |= options.get("resources", {})
    needed = {name: amount for name, amount in needed.items() if amount}
    # With a run that asks for nothing, as many as there are CPUs.
    held = sum(_held(node["Resources"], needed or {"CPU": 1}) for node in nodes)
    workers = prepared.options.workers
    if not held and (is_own or not workers):
        asked = ", ".join(f"{name} {amount:g}" for name, amount in needed.items())
        todo = (
            "ask for less" if is_own else "ask for less, or say --workers N where nodes are added on demand"
        )
        raise UserError(f"--cluster ray: no node has what a run needs ({asked}); {todo}")
    return workers or max(1, held)


def _held(resources: Mapping[str, float], needed: Mapping[str, float]) -> int:
    """Return how many runs with these needs a node holds."""
    counts = []
    for name, amount in needed.items():
        there = resources.get(name, 0)
        # A run with half a GPU needs both halves on one.
        counts.append(int(there) * int(1 / amount) if amount < 1 else int(there / amount))
    return min(counts)


def _check_nodes(prepared: PreparedSweep, *, is_own: bool) -> bool:
    """Run a first task on every node; return whether each of them sees the output folder.

    Raises:
        UserError: If none can run a task, or a node does not see the output folder and the sweep needs that.
    """
    token = secrets.token_hex(16)
    place = prepared.output.absolute()
    parent = next(folder for folder in (place, *place.parents) if folder.is_dir())
    try:
        with tempfile.NamedTemporaryFile("w", dir=parent.resolve(), prefix=".ampcompare-") as file:
            file.write(token)
            file.flush()
            seen = _on_every_node(sees_token, Path(file.name), token, seconds=PROBE_SECONDS)
    except OSError as problem:
        raise UserError(
            f"output_dir={str(prepared.output)!r}: cannot be written to ({reason(problem)})"
        ) from None
    problems = [answer for answer in seen if isinstance(answer, Exception)]
    if problems and len(problems) == len(seen):
        raise UserError(f"--cluster ray: no node can run a task: {_told_by_ray(problems[0])}")
    sees_output = all(answer is True for answer in seen)
    if prepared.sweep.hyperband and not (is_own or sees_output):
        todo = "name a folder on a drive that all nodes share, or leave early_terminate out"
        why = "needs the records of running runs, and not every node sees this folder"
        raise UserError(f"output_dir={str(prepared.output)!r}: early_terminate {why}; {todo}")
    return is_own or sees_output


def _on_every_node(function: Callable[..., Any], *arguments: Any, seconds: float) -> list[Any]:
    """Call a function on every node; return each answer, None for one that did not come in time."""
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    remote = ray.remote(function)
    references = []
    for node in _alive_nodes():
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        references.append(remote.options(num_cpus=0, scheduling_strategy=there).remote(*arguments))
    ready, _ = ray.wait(references, num_returns=len(references), timeout=seconds)
    answers: list[Any] = []
    for reference in references:
        try:
            answers.append(ray.get(reference) if reference in ready else None)
        except RayError as problem:
            answers.append(problem)
    return answers


def _alive_nodes() -> list[dict[str, Any]]:
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


def _told_by_ray(problem: BaseException) -> str:
    """Return the line of Ray's message that says most: that of the error within it, or its first."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    inner = [line for line in lines if line.startswith(("ModuleNotFoundError", "ImportError"))]
    said = [*inner[-1:], *lines[:1], type(problem).__name__][0]
    return one_line(said)[:300]
