"""Check a sweep of our own training: its options, its metric, and which points of a grid are runs.

Points may train the same: the backend `none` has no loss scale, so two loss scales are two points and one
run. Other points cannot run: `native_bf16` with a static loss scale is refused. A block has every run of one
seed, so a baseline that all loss scales share runs among them.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import compress, islice, pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

from ampcompare import metrics
from ampcompare.analysis.grouping.compared_metric import is_accuracy_name
from ampcompare.config import task_spec
from ampcompare.config.compose import ConfigSource, compose
from ampcompare.config.load import (
    check_option,
    check_parameters,
    config_from_cli,
    parse_override,
    split_override,
)
from ampcompare.config.schema import Config, PlanConfig
from ampcompare.errors import UserError, did_you_mean
from ampcompare.identity.agreement import POINT, SWEEP
from ampcompare.identity.run_identity import RunIdentity, role_of
from ampcompare.runtime.formatting import plural, some
from ampcompare.runtime.strict_model import file_error
from ampcompare.sweeps.command_macros import build_command
from ampcompare.sweeps.distributions import Parameter, nested
from ampcompare.sweeps.sweep import BACKEND, PLAN, DistinctPoints, Objective, Sweep, count_of

MAX_TRIED = 200  # combinations of backend and precision; if there are more, every point is a run
MAX_NAMED = 3
MARGIN = f"{PLAN}.margin"
TASK = "task."
DEVICE, CPU = "device", "cpu"
DEVICE_NAMES = (DEVICE, "accelerator")  # accelerator: Lightning's name
MACHINE_OPTIONS = (DEVICE, BACKEND, "execution")  # which a machine may refuse
GOALS = {metrics.HIGHER: "maximize", metrics.LOWER: "minimize"}  # in a sweep file
SCRIPT, PROGRAM = "run_experiment.py", "ampcompare"
LOCAL_WORDS = {"${env}", "${interpreter}", "-m", "${program}", PROGRAM, "run"}
COMMAND = (  # a line to copy
    'command: ["${env}", "${interpreter}", "-m", "${program}", "run", "resume=auto", "${args_no_hyphens}"]'
)

Numbers = tuple[int, ...]  # indices of the values of the deciding parameters: a point of the grid


class CheckedOptions(NamedTuple):
    """What `check` found out about a sweep.

    Attributes:
        sweep: The sweep; with `distinct_points`, and with the metric of the task that the command line names.
        plan: The plan that all runs have. For another program that of the file and the overrides.
        messages: Lines to print before the first run.
        config: The options of the first run; None for another program.
    """

    sweep: Sweep
    plan: PlanConfig
    messages: list[str]
    config: Config | None


def check(sweep: Sweep, overrides: Sequence[str], words: Sequence[str] = ()) -> CheckedOptions:
    """Check that the program of a sweep exists and, if it is our training, takes the sweep's options.

    Args:
        overrides: Options for every run (`key=value`).
        words: All `key=value` words of the command line; some may have changed parameters of the file.

    Raises:
        UserError: If the program does not exist, an option is refused, or the metric is never logged.
    """
    is_own_training = trains_here(sweep)
    messages = []
    if sweep.unused and not sweep.on_server:
        messages = [f"ampcompare sweep ignores these keys of the file: {', '.join(sweep.unused)}"]
    named = sweep.program if "${program}" in sweep.command else None
    if named and not Path(named).is_file() and not (is_own_training and Path(named).name == PROGRAM):
        if Path(named).name == PROGRAM:
            why = f"program={named!r}: this is a command, not a Python script, so the file needs command:"
            raise UserError(f"{sweep.path}: {why}; add this line:", [COMMAND])
        todo = "run the command in the folder that has it, or write its path"
        raise UserError(f"{sweep.path}: program={named!r}: no such file in {Path.cwd()}; {todo}")
    if not is_own_training:
        return CheckedOptions(sweep, _plan_of_others(sweep, overrides), messages, None)
    if lines := [*_wrong_options(sweep)]:
        raise file_error(sweep.path, lines)
    precision = [p for p in sweep.parameters if p.key == BACKEND or p.key.startswith("precision.")]
    # The parameters that decide whether two points train the same, or a point cannot run.
    deciding = [p for p in precision if sweep.is_grid and p.is_listed and p.grid_size() > 1]
    configs, refusals = _try_points(sweep, deciding, overrides)
    config = next(iter(configs.values()))
    sweep, followed = _follow_task(sweep, words, config)
    _check_metric(sweep, config)
    distinct_points, notes = _same_runs(sweep, deciding, configs, refusals)
    sweep = replace(sweep, distinct_points=distinct_points)
    return CheckedOptions(sweep, config.plan, [*followed, *messages, *notes], config)


def _try_points(
    sweep: Sweep, deciding: Sequence[Parameter], overrides: Sequence[str]
) -> tuple[dict[Numbers, Config], dict[Numbers, UserError]]:
    """Return the config of each combination of the deciding values, or why it cannot run.

    Not every backend takes every loss scale, so only the first point that can run is checked further.

    Raises:
        UserError: If no point can run, or the first run would have other values than the sweep chose.
    """
    configs: dict[Numbers, Config] = {}
    refusals: dict[Numbers, UserError] = {}
    for numbers in islice(product(*(range(p.grid_size()) for p in deciding)), MAX_TRIED):
        try:
            configs[numbers] = _config_of(sweep, _point_of(sweep, deciding, numbers), overrides)
        except UserError as problem:
            refusals[numbers] = problem
    try:
        if not configs:
            raise next(iter(refusals.values()))
        first, config = next(iter(configs.items()))
        check_parameters(config, _point_of(sweep, deciding, first))
    except UserError as problem:
        raise UserError(f"{sweep.path}: the first run would fail: {problem}") from None
    return configs, refusals


def _follow_task(sweep: Sweep, words: Sequence[str], config: Config) -> tuple[Sweep, list[str]]:
    """Return the sweep with the metric of the task that the command line names.

    The bundled sweeps compare `eval/accuracy`. A task of the command line (`task.loss=mse`, a metric of the
    user) may not log it: then the sweep compares the task's own metric, as the report of single runs does.
    A file that sets options of the task itself keeps its metric.

    Raises:
        UserError: If the file's margin is one of accuracies and the metric is not an accuracy.
    """
    metric, task = sweep.metric, config.task
    is_named = any(word.startswith(TASK) for word in words)
    is_in_file = any(p.key.startswith(TASK) for p in sweep.parameters)
    is_plain = sweep.is_grid and not sweep.on_server and not sweep.hyperband
    if not (is_named and is_plain) or is_in_file or metric is None:
        return sweep, []
    is_logged = metrics.EVAL_ACCURACY in task_spec.logged_keys(task.loss, task.metrics, task.metric)
    if metric.name != metrics.EVAL_ACCURACY or metric.target is not None or is_logged:
        return sweep, []
    key = task_spec.compared_key(task.loss, task.metrics, task.metric)
    margin = config.plan.margin
    is_given = any(split_override(word)[0] == MARGIN for word in words)
    if margin is not None and not is_given and not is_accuracy_name(key):
        raise UserError(
            f"{sweep.path}: plan.margin={margin:g} is in points of accuracy, but the runs compare {key}; "
            f"set the largest difference of {key} that counts as none: plan.margin=X; "
            "without a margin: plan.margin=null"
        )
    raw = {**sweep.raw, "metric": {"name": key}}  # without a goal: the name or the record tells it
    objective = Objective.model_validate(
        {"name": key, "goal": GOALS[metrics.guess_direction(key) or metrics.LOWER]}
    )
    message = f"the sweep compares {key}, the metric of your task, instead of {metrics.EVAL_ACCURACY}"
    return replace(sweep, metric=objective, raw=raw), [message]


def shared_settings(sweep: Sweep, config: Config | None) -> dict[str, Any]:
    """Return the options of all runs that can change a result, resolved, without what the sweep varies.

    They depend on config files, recipes and defaults of this version, which a sweep file does not show.

    Args:
        config: The options of the first run; None for another program, which gives no settings.
    """
    if config is None:
        return {}
    varied = tuple(p.key for p in sweep.parameters)
    return {
        key: value
        for key, value in RunIdentity.of_run(config.to_dict()).options.items()
        # A parameter sets the option, alone or in a mapping.
        if role_of(key) in SWEEP.roles and not f"{key}.".startswith(tuple(f"{name}." for name in varied))
    }


def trains_on_cpu(sweep: Sweep, overrides: Sequence[str], config: Config | None) -> bool:
    """Return whether all runs of a sweep train on the CPU, wherever the sweep says so.

    For our own training this is the option `device`. For another program it is every parameter, word of the
    command and override with the name `device` or `accelerator`, in any group.

    Args:
        overrides: Options for every run (`key=value`).
        config: The options of the first run; None for another program.
    """
    parameters = [p for p in sweep.parameters if p.key.rpartition(".")[2] in DEVICE_NAMES]
    if config is not None:
        return {device for device, *_ in machine_needs(sweep, config)} == {CPU}
    named: list[Any] = [value for p in parameters for value in (p.values() if p.is_listed else [None])]
    for word, following in pairwise([*sweep.command, *overrides, ""]):
        key, equals, value = split_override(word)
        if key.rpartition(".")[2] in DEVICE_NAMES:
            named.append(value if equals else following)
    return bool(named) and all(str(value).lower().startswith(CPU) for value in named)


def machine_needs(sweep: Sweep, config: Config) -> list[tuple[Any, ...]]:
    """Return every combination of values of MACHINE_OPTIONS that runs of the sweep have, or may draw.

    Args:
        config: The options of the first run.
    """
    if sweep.is_grid:
        rows = [point.parameters for point in sweep.points]
        return [*dict.fromkeys(tuple(row.get(k, config.value(k)) for k in MACHINE_OPTIONS) for row in rows)]
    values = {key: [config.value(key)] for key in MACHINE_OPTIONS}
    for p in sweep.parameters:
        if p.key in values:
            shares = p.settings.get("probabilities")  # a search draws no value with probability 0
            values[p.key] = [*compress(p.settings["values"], shares)] if shares else p.examples()
    return [*product(*values.values())]


def trains_here(sweep: Sweep) -> bool:
    """Return whether the sweep runs our own training, whose options and metrics are known."""
    return _options_start(sweep) is not None


def starts_with_this_python(sweep: Sweep) -> bool:
    """Return whether nothing but this Python starts the training: no torchrun, ssh, container."""
    return {*sweep.command[: _options_start(sweep)]} <= LOCAL_WORDS


def _options_start(sweep: Sweep) -> int | None:
    """Return the index in the sweep's command at which the options of the training begin.

    They come after `run_experiment.py` or after `ampcompare run`.

    Returns:
        The index; None for another program.
    """
    command = [sweep.program if word == "${program}" else word for word in sweep.command]
    for index, (word, following) in enumerate(pairwise([*command, None])):
        if word and Path(word).name == PROGRAM and following == "run":
            return index + 2
        if sweep.command[index] == "${program}" and word and _is_our_script(Path(word)):
            return index + 1
    return None


def _is_our_script(path: Path) -> bool:
    """Return whether a file is our script or a copy of it; another project may have a file of that name."""
    with suppress(OSError, ValueError):
        return path.name == SCRIPT and (
            not path.exists() or "ampcompare.entrypoint" in path.read_text(errors="replace")
        )
    return False


def _point_of(sweep: Sweep, deciding: Sequence[Parameter], numbers: Numbers) -> dict[str, Any]:
    """Return a run's parameters: these values of `deciding`, and the first value of all others."""
    at = dict(zip((p.key for p in deciding), numbers, strict=True))
    values = [p.grid_value(at[p.key]) if p.key in at else p.examples()[0] for p in sweep.parameters]
    return nested(sweep.parameters, values)


def _config_of(sweep: Sweep, parameters: Mapping[str, Any], overrides: Sequence[str]) -> Config:
    """Return the config of a run: that of the options in its command."""
    as_words = {"${args_json_file}": "${args_json}"}
    template = [as_words.get(word, word) for word in sweep.command[_options_start(sweep) :]]
    return config_from_cli([*build_command(template, sweep.program, parameters, Path()), *overrides])


def _wrong_options(sweep: Sweep) -> Iterator[str]:
    """Yield a line for each parameter with a value that the training never takes."""
    for p in sweep.parameters:
        if p.key.startswith(f"{PLAN}.") and p.kind != "constant":
            yield f"parameters.{_several_plans(p.key)}"
        try:
            for value in p.examples():
                check_option(*parse_override(f"{p.key}={value}"))  # as the program sees it
        except UserError as problem:
            yield f"parameters.{problem}"


def _check_metric(sweep: Sweep, config: Config) -> None:
    """Raise UserError for a metric that our training does not log, or that has no goal."""
    if sweep.metric is None:
        return
    name, listed = sweep.metric.name, "docs/metrics.md lists every metric"
    metric = metrics.find(name)
    declared_goal = (sweep.raw.get("metric") or {}).get("goal") or (metric and GOALS.get(metric.better))
    known = {key for key in metrics.METRICS if not task_spec.is_task_metric(key)}
    known |= task_spec.logged_keys(config.task.loss, config.task.metrics, config.task.metric)
    is_last = (
        metric.when == metrics.END if metric else name.startswith(metrics.make_best_key(metrics.EVAL_PREFIX))
    )
    if name not in known and (metric is None or metric.key not in known):
        why = f"the training does not log it; {did_you_mean(name, sorted(known), 0.5) or listed}"
    elif metric and metric.no_goal:
        why = f"is {metric.no_goal} and cannot be optimised; {listed}"
    elif metric and metric.better and declared_goal != GOALS[metric.better]:
        why = f"goal: {declared_goal} contradicts that {metric.better} is better; leave the goal out"
    elif sweep.hyperband and is_last:
        why = "is logged only at the end, but early_terminate needs values of running runs"
    else:
        return
    raise UserError(f"{sweep.path}: metric.name={name!r}: {why}")


def _plan_of_others(sweep: Sweep, overrides: Sequence[str]) -> PlanConfig:
    """Return the plan of a sweep of another program, which is recorded and never passed to the program.

    Raises:
        UserError: A value of the plan is refused, or varies.
    """
    values: dict[str, Any] = {}
    for p in sweep.parameters:
        if not sweep.is_plan(p.key):
            continue
        if p.kind != "constant":
            raise UserError(f"{sweep.path}: parameters.{_several_plans(p.key)}")
        values[p.key] = p.grid_value(0)
    values |= {key: value for key, value in map(parse_override, overrides) if sweep.is_plan(key)}
    return compose(ConfigSource(values)).plan


def _several_plans(key: str) -> str:
    return f"{key}: a sweep has one plan for all runs; write value: instead of values:"


def _same_runs(
    sweep: Sweep,
    deciding: Sequence[Parameter],
    configs: Mapping[Numbers, Config],
    refusals: Mapping[Numbers, UserError],
) -> tuple[DistinctPoints | None, list[str]]:
    """Return which points are runs where several train the same or cannot run, and the messages about it."""
    representatives: dict[str, Numbers] = {}  # by effect, the first point with it
    for numbers, config in configs.items():
        options = RunIdentity.of_run(config.to_dict()).select(POINT.roles)
        effect = json.dumps(options, sort_keys=True, default=str)
        representatives.setdefault(effect, numbers)
    points = count_of(deciding)
    if len(representatives) == points or points > MAX_TRIED or sweep.on_server:  # the server runs all points
        return None, []
    distinct_points = DistinctPoints(tuple(p.key for p in deciding), frozenset(representatives.values()))
    runs = len(replace(sweep, distinct_points=distinct_points, control=None, run_cap=None).points)
    why = "; points that train the same share a run" if len(representatives) < len(configs) else ""
    messages = [f"{plural(count_of(sweep.parameters), 'point')}, {plural(runs, 'different run')}{why}"]
    if refusals:
        reasons = dict.fromkeys(str(problem).partition("; ")[0] for problem in refusals.values())
        messages.append(f"left out, because they cannot run: {some([*reasons], MAX_NAMED)}")
    return distinct_points, messages
