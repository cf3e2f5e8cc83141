"""A sweep file as a Sweep: W&B's schema as pydantic models, whatever breaks it told at once."""

import copy
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, PlainValidator, TypeAdapter, model_validator

from ampcompare.config.load import parse_values
from ampcompare.errors import UserError
from ampcompare.program.checked import Checked, Text, checked, refused
from ampcompare.program.place import as_typed, find_shipped, names_shipped
from ampcompare.program.yaml_file import read_word, read_yaml
from ampcompare.sweeps.command import DEFAULT_COMMAND, checked_word
from ampcompare.sweeps.distributions import Parameter, parse_spec
from ampcompare.sweeps.sweep import Count, Hyperband, Objective, Sweep, count_of

MOST_POINTS = 100_000  # of a grid


def _option(name: str) -> str:
    if "=" in name:
        raise refused("expected the name of an option")
    return name


def _spec(spec: Any) -> tuple[Parameter, ...]:
    """A group as what is in it, an option as its distribution and settings."""
    if isinstance(spec, Mapping) and "parameters" in spec:
        return _Group.model_validate(spec).parameters
    return (Parameter((), *parse_spec(spec)),)


_OPTIONS = dict[Annotated[Text, AfterValidator(_option)], Annotated[Any, PlainValidator(_spec)]]
_TREE: TypeAdapter[dict[str, Any]] = TypeAdapter(Annotated[_OPTIONS, Field(min_length=1)])


def _flat(tree: Any) -> tuple[Parameter, ...]:
    within = _TREE.validate_python(tree).items()
    return tuple(replace(p, path=(name, *p.path)) for name, found in within for p in found)


Parameters = Annotated[tuple[Parameter, ...], PlainValidator(_flat)]


class _Group(Checked):
    parameters: Parameters


class _File(Checked):
    method: Literal["grid", "random", "bayes"]
    parameters: Parameters
    metric: Objective | None = None
    command: Annotated[list[Annotated[str, PlainValidator(checked_word)]], Field(min_length=1)] | None = None
    run_cap: Count | None = None
    early_terminate: Hyperband | None = None
    name: Text | None = None
    description: Text | None = None
    project: Text | None = None
    entity: Text | None = None
    program: Text | None = None

    @model_validator(mode="after")
    def _can_be_run(self) -> Self:
        """That its parts, each in order, fit together."""
        if not self.metric and (self.method == "bayes" or self.early_terminate):
            who = "bayes" if self.method == "bayes" else "early_terminate"
            such = "such as metric: {name: eval/accuracy, goal: maximize}"
            raise refused(f"metric: missing; {who} needs one to go by, {such}")
        if not self.program and (self.command is None or "${program}" in self.command):
            raise refused("program: missing; expected the script, such as program: run_experiment.py")
        keys = [parameter.key for parameter in self.parameters]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise refused(f"parameters: {twice[0]} is in there twice; leave one out")
        if self.method == "grid":
            for p in (p for p in self.parameters if not p.is_listed):
                todo = "list values without probabilities, use int_uniform or q_uniform, or method random"
                raise refused(f"parameters.{p.key}: a grid cannot run through {p.kind}; {todo}")
            if (count := count_of(self.parameters)) > MOST_POINTS:
                most = f"a grid has at most {MOST_POINTS:,}, use method random or bayes"
                raise refused(f"parameters: {count:,} points; {most}")
        return self


KEYS = tuple(_File.model_fields)


def read_sweep(path: str | Path, words: Sequence[str] = ()) -> Sweep:
    """The sweep in a YAML file, or that of this name which comes along. `words` (`seed=[1,2]`) that name one
    of its parameters change its values. Raises UserError with a line for each thing that breaks W&B's schema.
    """
    file = None
    with suppress(OSError, ValueError):  # a name too long, a NUL in it, no right to look
        file = find_shipped(str(path), "sweeps")  # a pipe is none: it would never end
    if file is None:
        known = ", ".join(names_shipped("sweeps"))
        raise UserError(f"{path}: no such file; expected a path or one of {known}")
    content = read_yaml(file)
    if isinstance(content, dict) and content and not {"method", "parameters"} & content.keys():
        todo = f"a config is run with: {as_typed('ampcompare', 'run', '--config', file)}"
        raise UserError(f"{file}: not a sweep, it has neither method nor parameters; {todo}")
    sweep, changed = sweep_of(file, content), copy.deepcopy(content)
    for word in words:
        key, _, text = word.partition("=")
        for varied in (p for p in sweep.parameters if p.key == key_of(word)):
            is_constant = varied.kind == "constant"
            spec, value = changed, read_word(key, text) if is_constant else parse_values(varied.key, text)
            for name in varied.path:
                spec = spec["parameters"][name]
            spec.clear()
            spec["values" if isinstance(value, list) and not is_constant else "value"] = value
    return sweep_of(file, changed)


def sweep_of(path: Path, content: Any) -> Sweep:
    """The sweep in what such a file holds, wherever it was kept; `path` is what messages call it. Raises
    UserError as `read_sweep`.
    """
    file = checked(_File, content, path)
    shared = {key: value for key, value in file if key in Sweep.__dataclass_fields__}
    shared |= {"name": file.name or path.stem, "command": tuple(file.command or DEFAULT_COMMAND)}
    return Sweep(path=path, hyperband=file.early_terminate, raw=content, **shared)


def key_of(word: str) -> str:
    """The option of a word of a command line, however it is written."""
    return word.removeprefix("--").lstrip("+").partition("=")[0]
