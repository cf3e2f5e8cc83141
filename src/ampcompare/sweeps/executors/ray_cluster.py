"""A Ray cluster: its options on the command line, and the connection to it.

The cluster is that of RAY_ADDRESS, or one that is started on this machine.
"""

import math
import os
import secrets
import signal
import socket
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ampcompare.errors import UserError, did_you_mean, one_line, reason
from ampcompare.runtime.signals import preserved_handlers
from ampcompare.runtime.yaml_io import parse_yaml_value
from ampcompare.sweeps.executors.ray_task import SHARE_FOLDER, sees_token
from ampcompare.sweeps.prepare import PreparedSweep

CONNECT_SECONDS = 5.0
FIRST_TASK_SECONDS = 60.0  # for a first task on each node, which may have to start a worker
STORE_BYTES = 128 * 2**20  # of a local cluster's object store, which is almost empty
PREFIX = "ray."
OPTION_HELP = {
    "num_gpus": "GPUs of a run, such as 1 or 0.5",
    "num_cpus": "CPUs of a run, such as 4",
    "memory": "bytes of memory of a run, such as 8e9",
    "resources": """amounts by name, such as '{"my_gpu": 1}'""",
    "max_retries": "how often a run is started again when its node dies or a signal ends it, such as 3",
    "runtime_env": """a mapping in Ray's format, such as '{"working_dir": "."}'""",
}
DEFAULTS = {"num_cpus": 1, "max_retries": 3}
# Ray's worker would kill its children when it ends: the run without a checkpoint, and the guard.
KEEP_CHILDREN = {"RAY_kill_child_processes_on_worker_exit": "0"}


def connect(environment: Mapping[str, Any]) -> None:
    """Connect to the cluster of RAY_ADDRESS, or start one on this machine.

    Args:
        environment: Ray's runtime environment for the tasks.

    Raises:
        UserError: If the cluster does not answer.
    """
    import ray

    address = os.environ.get("RAY_ADDRESS") or "local"
    what = "--cluster ray" if address == "local" else f"RAY_ADDRESS={address}"
    if address.startswith("ray://"):
        raise UserError(
            f"{what}: is an address of Ray Client, which this command does not support; run the command on "
            "a machine of the cluster, with RAY_ADDRESS=HOST:6379 or auto"
        )
    host, _, port = address.rpartition(":")
    if host and port.isdigit():  # Ray itself would try for minutes, then end this process
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
        except (OSError, ValueError, OverflowError) as problem:
            raise UserError(
                f"{what}: no Ray cluster answers ({reason(problem)}); expected HOST:PORT of a running "
                "cluster, or auto; without RAY_ADDRESS one is started here"
            ) from None
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_task_oom_retries", "0")  # the driver starts a run again, not Ray
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        quiet |= {"include_dashboard": False, "object_store_memory": STORE_BYTES}
    try:
        # The handlers of Ray would end this process and leave its runs.
        with preserved_handlers(signal.SIGTERM, signal.SIGINT):
            ray.init(address=address, runtime_env=dict(environment), **quiet)
    except (Exception, SystemExit) as problem:
        ray.shutdown()
        raise UserError(f"{what}: cannot be used: {short_message(problem)}") from None
    _hide_reports_of_ray()


def _hide_reports_of_ray() -> None:
    """Suppress the dozens of lines that Ray prints about each dead node.

    `log_to_driver` does not suppress them, and Ray has no other setting. Another version of Ray may print
    them in another way; then they are printed.
    """
    from ray._private import worker

    if hasattr(worker, "print_to_stdstream"):
        worker.print_to_stdstream = lambda *arguments, **options: None


def choose_slots(prepared: PreparedSweep, options: dict[str, Any], *, is_own: bool) -> int:
    """Return the number of runs at a time; if there are GPUs, add one per run to the options.

    Args:
        options: Ray's options for a task; `num_gpus` is added where it is missing.
        is_own: Whether this process started the cluster.

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
    # Runs that ask for nothing are limited by the number of CPUs.
    capacity = sum(_capacity(node["Resources"], needed or {"CPU": 1}) for node in nodes)
    workers = prepared.command.options.workers
    if not capacity and (is_own or not workers):
        asked = ", ".join(f"{name} {amount:g}" for name, amount in needed.items())
        more_nodes = "" if is_own else ", or set --workers N if nodes are added on demand"
        raise UserError(
            f"--cluster ray: no node has the resources of a run ({asked}); ask for less{more_nodes}"
        )
    return workers or max(1, capacity)


def _capacity(resources: Mapping[str, float], needed: Mapping[str, float]) -> int:
    """Return how many runs with these needs fit on a node."""
    counts = []
    for name, amount in needed.items():
        available = resources.get(name, 0)
        # Fractions of a GPU cannot be spread over several GPUs.
        counts.append(int(available) * int(1 / amount) if amount < 1 else int(available / amount))
    return min(counts)


def check_nodes(output: Path) -> None:
    """Run a first task on every node, which looks for the output folder.

    Raises:
        UserError: If none can run a task, or a node does not see the output folder.
    """
    token = secrets.token_hex(16)
    folder = output.absolute()
    parent = next(path for path in (folder, *folder.parents) if path.is_dir())
    try:
        with tempfile.NamedTemporaryFile("w", dir=parent.resolve(), prefix=".ampcompare-") as file:
            file.write(token)
            file.flush()
            answers = call_on_every_node(sees_token, Path(file.name), token, seconds=FIRST_TASK_SECONDS)
    except OSError as problem:
        raise UserError(f"output_dir={str(output)!r}: cannot be written to ({reason(problem)})") from None
    problems = [answer for answer in answers if isinstance(answer, Exception)]
    if problems and len(problems) == len(answers):
        raise UserError(f"--cluster ray: no node can run a task: {short_message(problems[0])}")
    if any(answer is False for answer in answers):  # a node without an answer may have just died
        raise UserError(f"--cluster ray: not every node sees output_dir={str(output)!r}; {SHARE_FOLDER}")


def call_on_every_node(function: Callable[..., Any], *arguments: Any, seconds: float) -> list[Any]:
    """Call a function on every node.

    Returns:
        The answer of each node: a value, a RayError, or None if it did not come in time.
    """
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    remote = ray.remote(function)
    references = []
    for node in _alive_nodes():
        strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        references.append(remote.options(num_cpus=0, scheduling_strategy=strategy).remote(*arguments))
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


def is_lost(problem: BaseException) -> bool:
    """Return whether a task ended together with its worker or node, so that its run can be started again."""
    from ray import exceptions

    lost = (
        exceptions.WorkerCrashedError,
        exceptions.NodeDiedError,
        exceptions.LocalRayletDiedError,
        exceptions.OutOfMemoryError,
        exceptions.ObjectLostError,
    )
    return isinstance(problem, lost)


def short_message(problem: BaseException) -> str:
    """Return one line of Ray's message: that of the inner import error, or the first."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    inner = [line for line in lines if line.startswith(("ModuleNotFoundError", "ImportError"))]
    message = [*inner[-1:], *lines[:1], type(problem).__name__][0]
    return one_line(message)[:300]


def task_options(cluster_options: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of the command line as Ray's options for a task.

    Args:
        cluster_options: Texts by the name of the option, without prefix.

    Raises:
        UserError: For an unknown option or a bad value.
    """
    options: dict[str, Any] = dict(DEFAULTS)
    for name, text in cluster_options.items():
        option = f"{PREFIX}{name}={text}"
        if name not in OPTION_HELP:
            allowed = did_you_mean(name, OPTION_HELP, count=3) or f"expected one of {', '.join(OPTION_HELP)}"
            raise UserError(f"{option}: no such option; {allowed}")
        value = parse_yaml_value(PREFIX + name, text)
        if not _is_valid(name, value):
            raise UserError(f"{option}: expected {OPTION_HELP[name]}")
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
    """Return whether a task can ask for this amount: any number up to 1, above that whole numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        return False
    return value == int(value) or (value < 1 and not is_whole)


def runtime_environment(runtime_env: Mapping[str, Any], output: Path) -> dict[str, Any]:
    """Return the runtime environment of the tasks, completed by what a run needs.

    Args:
        runtime_env: The environment that the user gave.
        output: The output folder, which does not travel with the working folder.


    Raises:
        UserError: If Ray refuses it.
    """
    from ray.runtime_env import RuntimeEnv

    environment = dict(runtime_env)
    unknown = [key for key in environment if key not in RuntimeEnv.known_fields]
    if unknown:
        near = did_you_mean(unknown[0], RuntimeEnv.known_fields, count=3)
        raise UserError(f"{PREFIX}runtime_env: Ray has no field {unknown[0]!r}{near and f'; {near}'}")
    try:
        RuntimeEnv(**environment)
        environment["env_vars"] = {**KEEP_CHILDREN, **environment.get("env_vars", {})}
        folder = Path(environment.get("working_dir", ""))
        if environment.get("working_dir") and folder.is_dir():
            with suppress(ValueError):  # the output folder is not below the working folder
                inside = output.resolve().relative_to(folder.resolve()).as_posix()
                environment["excludes"] = [*environment.get("excludes", []), f"/{inside}/"]
        return environment
    except (ValueError, TypeError, AttributeError) as problem:
        raise UserError(f"{PREFIX}runtime_env: {one_line(str(problem))}") from None
