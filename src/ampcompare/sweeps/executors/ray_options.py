"""The options of `--cluster ray`: `ray.num_gpus=0.5` and others, and the runtime environment of the tasks."""

import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ampcompare.errors import UserError, did_you_mean, one_line
from ampcompare.runtime.yaml_io import parse_yaml_value

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
            allowed = did_you_mean(name, OPTION_HELP) or f"expected one of {', '.join(OPTION_HELP)}"
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
        near = did_you_mean(unknown[0], RuntimeEnv.known_fields)
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
