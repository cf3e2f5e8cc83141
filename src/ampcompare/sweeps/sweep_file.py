"""Read a sweep file: W&B's schema as pydantic models, and overrides from the command line.

Every file that W&B's schema accepts (`sweeps/config/schema.json` of the package `sweeps`, 0.3.0) becomes a
Sweep, or a UserError with the reason why it cannot run here. Keys without effect are in `Sweep.unused`.
"""

import copy
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    TypeAdapter,
    model_validator,
)

from ampcompare.config.load import split_override
from ampcompare.config.schema import find_option
from ampcompare.errors import UserError
from ampcompare.runtime.paths import find_shipped, list_shipped, shell_command
from ampcompare.runtime.strict_model import StrictModel, Text, parse_model, validation_error
from ampcompare.runtime.yaml_io import parse_yaml_value, read_yaml
from ampcompare.sweeps.command_macros import DEFAULT_COMMAND, checked_word
from ampcompare.sweeps.distributions import Parameter, parse_spec
from ampcompare.sweeps.sweep import Count, Hyperband, Objective, Sweep, count_of
from ampcompare.sweeps.training_options import COMMAND, trains_here

MAX_POINTS = 100_000  # of a grid
METHODS = "expected one of grid, random, bayes (Optuna's TPE)"


def _check_option_name(name: str) -> str:
    if "=" in name:
        raise validation_error("expected the name of an option")
    return name


def _parse_parameter(spec: Any) -> tuple[Parameter, ...]:
    """Return the parameters of a group, or the one parameter of a distribution."""
    if isinstance(spec, Mapping) and "parameters" in spec:
        return _Group.model_validate(spec).parameters
    return (Parameter((), *parse_spec(spec)),)


_PARAMETERS = dict[
    Annotated[Text, AfterValidator(_check_option_name)], Annotated[Any, PlainValidator(_parse_parameter)]
]
_TREE: TypeAdapter[dict[str, Any]] = TypeAdapter(Annotated[_PARAMETERS, Field(min_length=1)])


def _flatten(tree: Any) -> tuple[Parameter, ...]:
    groups = _TREE.validate_python(tree).items()
    return tuple(replace(p, path=(name, *p.path)) for name, parameters in groups for p in parameters)


Parameters = Annotated[tuple[Parameter, ...], PlainValidator(_flatten)]


def _check_method(method: Any) -> Any:
    if method == "custom":
        raise validation_error(f"needs a scheduler of W&B with its own optimizer; {METHODS}")
    return method


def _refuse_objectives(_: Any) -> None:
    raise validation_error("ampcompare sweep optimises one metric; write metric: {name: ..., goal: ...}")


def _check_scheduler(scheduler: Any) -> Any:
    """Refuse the engines that propose points with the user's own code."""
    engine = scheduler.get("engine") if isinstance(scheduler, Mapping) else None
    if engine not in (None, "wandb"):
        raise validation_error(
            f"engine {engine!r} needs W&B's server; use method: bayes (Optuna's TPE), or wandb "
            "sweep-scheduler"
        )
    return scheduler


class _Group(StrictModel):
    parameters: Parameters


class _File(StrictModel):
    method: Annotated[Literal["grid", "random", "bayes"], BeforeValidator(_check_method)]
    parameters: Parameters
    metric: Objective | None = None
    command: list[Annotated[str, PlainValidator(checked_word)]] | None = None
    run_cap: Count | None = None
    early_terminate: Hyperband | None = None
    name: Text | None = None
    description: str | None = None
    project: Text | None = None
    entity: Text | None = None
    program: Text | None = None
    # Keys of W&B's schema that have no effect here.
    apiVersion: str | None = None
    kind: str | None = None
    controller: dict[str, Any] | None = None
    scheduler: Annotated[Any, AfterValidator(_check_scheduler)] = None
    job: str | None = None
    image_uri: str | None = None
    # In W&B's schema, but cannot run here.
    metrics: Annotated[None, PlainValidator(_refuse_objectives)] = None

    @model_validator(mode="after")
    def _can_be_run(self) -> Self:
        """Check the rules that involve several keys."""
        if not self.metric and (self.method == "bayes" or self.early_terminate):
            key = "bayes" if self.method == "bayes" else "early_terminate"
            raise validation_error(
                f"metric: missing; {key} needs one, such as metric: {{name: eval/accuracy, goal: maximize}}"
            )
        if not self.program and (not self.command or "${program}" in self.command):
            raise validation_error(
                "program: missing; for your own script add program: train.py; "
                f"for AMP Compare's training add program: ampcompare and {COMMAND}"
            )
        keys = [parameter.key for parameter in self.parameters]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise validation_error(f"parameters: {twice[0]} is given twice; leave one out")
        if self.method == "grid":
            for p in (p for p in self.parameters if not p.is_listed):
                raise validation_error(
                    f"parameters.{p.key}: a grid cannot list the values of {p.kind}; list them with "
                    "values:, use int_uniform or q_uniform, or use method: random"
                )
            if (count := count_of(self.parameters)) > MAX_POINTS:
                most = f"a grid can have at most {MAX_POINTS:,}; use method: random or method: bayes"
                number = f"{count:,}" if count < 10**15 else "10^15 or more"
                raise validation_error(f"parameters: {number} points; {most}")
        return self

    @property
    def unused(self) -> tuple[str, ...]:
        """The keys of the file that have no effect here."""
        within = {"metric": self.metric, "early_terminate": self.early_terminate}
        keys = [key for key in UNUSED_KEYS if getattr(self, key) is not None]
        return (*keys, *(f"{key}.{name}" for key, part in within.items() if part for name in part.unused))


UNUSED_KEYS = ("apiVersion", "kind", "controller", "scheduler", "job", "image_uri")
KEYS = tuple(key for key in _File.model_fields if key not in (*UNUSED_KEYS, "metrics"))


def read_sweep(path: str | Path, overrides: Sequence[str] = ()) -> Sweep:
    """Read a sweep file.

    Args:
        path: A YAML file, or the name of a bundled sweep (`compare_backends`).
        overrides: Options for every run. Those that name a parameter of the file change its values:
            `seed=1,2` or `seed=[1,2]` varies it, `seed=1` fixes it. Others are ignored.

    Returns:
        The sweep.

    Raises:
        UserError: If the file cannot be read, or breaks W&B's schema; the message has a line per problem.
    """
    if str(path).partition(":")[0].endswith(".py"):
        own = ("model.name=./net.py:build", "data.source=./data.py:build")
        raise UserError(
            f"{path}: a sweep file is YAML, not Python; for your own network: "
            f"{shell_command('ampcompare', 'sweep', 'compare_backends', *own)}"
        )
    file = None
    with suppress(OSError, ValueError):  # a name that is too long or has a NUL; no permission
        file = find_shipped(str(path), "sweeps")  # not a pipe, which would never end
    if file is None:
        known = ", ".join(list_shipped("sweeps"))
        raise UserError(
            f"{path}: no such file; expected a path or one of {known}; "
            "a sweep on W&B's server is wandb:ENTITY/PROJECT/SWEEP, with --status"
        )
    content = read_yaml(file)
    if isinstance(content, dict) and content and not {"method", "parameters"} & content.keys():
        raise UserError(
            f"{file}: not a sweep file, because it has neither method: nor parameters:; to train one run "
            f"with this config: {shell_command('ampcompare', 'run', '--config', file)}"
        )
    sweep, changed = sweep_of(file, content), copy.deepcopy(content)
    is_ours = trains_here(sweep)
    for override in overrides:
        for parameter in (p for p in sweep.parameters if p.key == key_of(override)):
            spec = changed
            for name in parameter.path:
                spec = spec["parameters"][name]
            spec.clear()
            spec.update(_spec_of_override(override, parameter, is_ours))
    return sweep_of(file, changed)


def sweep_of(path: Path, content: Any) -> Sweep:
    """Return the sweep in the content of a sweep file.

    Args:
        path: The name for messages. Its stem is the sweep's name if the content has none.
        content: The parsed YAML or JSON.

    Raises:
        UserError: As `read_sweep`.
    """
    file = parse_model(_File, content, path)
    shared = {key: value for key, value in file if key in Sweep.__dataclass_fields__}
    shared |= {"name": file.name or path.stem, "command": tuple(file.command or DEFAULT_COMMAND)}
    return Sweep(path=path, hyperband=file.early_terminate, unused=file.unused, raw=content, **shared)


def key_of(override: str) -> str:
    """Return the option that an override (`key=value`) sets."""
    return split_override(override)[0]


def _spec_of_override(override: str, parameter: Parameter, is_ours: bool) -> dict[str, Any]:
    """Return the specification that replaces a parameter's distribution.

    A text that is one of the file's values stays one value, commas or not. An option of our training whose
    value is itself a list takes `[30,60]` as one value, and a list of names `a,b` too. The options of other
    programs have no known type: there, brackets are one value where the file has one value.
    """
    key, _, text = override.partition("=")
    if "," in text and text in parameter.settings.get("values", ()):
        return {"value": text}
    option = find_option(parameter.key) if is_ours else None
    spec = option[0] if option and not option[0].is_free_form else None
    takes_list = spec is not None and spec.type is list
    takes_names = spec is not None and takes_list and spec.item is str
    has_brackets = text.startswith(("[", "{"))
    if takes_names and not has_brackets:
        return {"value": text}
    is_yaml = has_brackets or takes_list or "," not in text
    value = parse_yaml_value(key, text) if is_yaml else _split(key, text)
    is_single = not isinstance(value, list)
    if takes_list and not takes_names:
        is_single = is_single or not any(isinstance(part, list) for part in value)
    elif spec is None and has_brackets:
        is_single = is_single or parameter.kind == "constant"
    return {"value" if is_single else "values": value}


def _split(key: str, text: str) -> Any:
    """Return the values between commas, or the text itself if all of it is in quotes."""
    try:
        values = parse_yaml_value(key, f"[{text}]")
    except UserError as problem:
        raise UserError(str(problem).replace(repr(f"[{text}]"), repr(text), 1)) from None
    return values[0] if isinstance(values, list) and len(values) == 1 else values
