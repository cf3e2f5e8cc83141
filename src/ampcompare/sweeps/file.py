"""A sweep file as a Sweep: W&B's schema as pydantic models, whatever breaks it told at once."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, PlainValidator, ValidationError, model_validator

from ampcompare.errors import UserError
from ampcompare.program.checked import Checked, Number, Text, lines_of, refused, wrong_file
from ampcompare.program.place import as_typed, find_shipped, names_shipped
from ampcompare.program.yaml_file import read_word, read_yaml
from ampcompare.sweeps.command import DEFAULT_COMMAND, macro_problem
from ampcompare.sweeps.distributions import Parameter, parse_spec
from ampcompare.sweeps.points import MOST_POINTS, Axes, Cells, Point, count_of, points_of

CONTROL, BOOKENDS = "plan.control", "bookends"
# Known to W&B, without a meaning where there is no W&B server.
ONLY_WITH_SERVER = ("controller", "image_uri", "job", "launch", "prior_runs", "scheduler")
HYPERBANDS = 20  # of min_iter, which has no last one


def _word(word: Any) -> str:
    if problem := macro_problem(word):
        raise refused(problem)
    return str(word)


def _option(name: str) -> str:
    if "=" in name:
        raise refused("expected the name of an option")
    return name


def _spec(spec: Any) -> Any:
    """A group as what is in it, an option as its distribution and settings."""
    if isinstance(spec, Mapping) and "parameters" in spec:
        return _Group.model_validate(spec).parameters
    return parse_spec(spec)


Options = Annotated[
    dict[Annotated[Text, AfterValidator(_option)], Annotated[Any, PlainValidator(_spec)]],
    Field(min_length=1),
]
Count = Annotated[int, Field(ge=1)]


class _Group(Checked):
    parameters: Options


class Objective(Checked):
    """What the sweep goes by: a logged metric, which way is better, and the value that is good enough."""

    name: Text
    goal: Literal["minimize", "maximize"] = "minimize"
    target: Number | None = None
    impute: Any = None  # for W&B's own search; TPE learns from finished runs alone
    impute_while_running: Any = None

    @property
    def maximize(self) -> bool:
        """Whether more is better."""
        return self.goal == "maximize"

    def is_reached(self, value: float) -> bool:
        """Whether the value is as good as the target; never where there is none."""
        return self.target is not None and (value >= self.target if self.maximize else value <= self.target)


class Hyperband(Checked):
    """Early termination: at the n-th value of the metric in `bands`, only the best 1/eta of the runs go on.

    Unless `strict`, a run is judged by its best value so far rather than by its newest.
    """

    type: Literal["hyperband"]
    min_iter: Count | None = None
    max_iter: Count | None = None
    s: Count | None = None
    eta: Annotated[int, Field(ge=2)] = 3
    strict: bool = False

    @model_validator(mode="after")
    def _one_of_two_ways(self) -> Self:
        if (self.min_iter is None) == (self.max_iter is None) or (self.max_iter is None) != (self.s is None):
            raise refused("expected min_iter, or max_iter and s: after how many values runs are compared")
        return self

    @property
    def bands(self) -> tuple[int, ...]:
        """In their order."""
        if self.min_iter is not None:
            return tuple(self.min_iter * self.eta**i for i in range(HYPERBANDS))
        found = {(self.max_iter or 0) // self.eta**i for i in range(1, (self.s or 0) + 1)}
        return tuple(sorted(found - {0})) or (1,)


class _File(Checked):
    method: Literal["grid", "random", "bayes"]
    parameters: Options
    metric: Objective | None = None
    command: Annotated[list[Annotated[str, PlainValidator(_word)]], Field(min_length=1)] | None = None
    run_cap: Count | None = None
    early_terminate: Hyperband | None = None
    name: Text | None = None
    description: Text | None = None
    project: Text | None = None
    entity: Text | None = None
    program: Text | None = None


KEYS = tuple(_File.model_fields)


@dataclass(frozen=True)
class Sweep:
    """What a sweep file says."""

    path: Path
    name: str
    method: str
    parameters: tuple[Parameter, ...]
    program: str | None = None
    command: tuple[str, ...] = DEFAULT_COMMAND
    metric: Objective | None = None
    run_cap: int | None = None
    hyperband: Hyperband | None = None
    project: str | None = None
    entity: str | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, compare=False)
    control: bool = False  # the baseline once more, before and behind the others
    added: tuple[tuple[Any, ...], ...] = ()  # groups of seeds beyond the file's, in the order of their coming
    cells: Cells | None = None  # which points are runs, where not each is one of its own
    on_server: bool = False  # whether W&B's server knows it under its name

    @property
    def is_grid(self) -> bool:
        """Whether every point is run once, in blocks (order.py) unless hyperband compares runs in passing."""
        return self.method == "grid"

    @cached_property
    def axes(self) -> Axes:
        """Its parameters by what a comparison makes of them."""
        return Axes(self.parameters)

    @cached_property
    def points(self) -> list[Point]:
        """The runs of a grid, in their order."""
        of = (self.name, self.axes, self.cells, self.added, self.run_cap)
        return points_of(*of, has_control=self.control, in_blocks=self.hyperband is None)

    @property
    def seeds(self) -> int:
        """How many seeds each value has, those that were added included."""
        own = self.axes.seed
        return (own.grid_size() if own else 1) + sum(map(len, self.added))

    def total(self) -> int | None:
        """How many runs it comes to; None for a search without `run_cap`: it goes on until it is stopped."""
        return len(self.points) if self.is_grid else self.run_cap


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
    if not isinstance(content, dict):
        found = "nothing" if content is None else f"a {type(content).__name__}"
        raise UserError(f"{file}: expected a sweep (method, parameters, ...), found {found}")
    if "method" not in content and "parameters" not in content and content:
        todo = f"a config is run with: {as_typed('ampcompare', 'run', '--config', file)}"
        raise UserError(f"{file}: not a sweep, it has neither method nor parameters; {todo}")
    return sweep_of(file, _with_values(content, words))


def sweep_of(path: Path, content: Mapping[str, Any]) -> Sweep:
    """The sweep in what such a file holds, wherever it was kept; `path` is what messages call it. Raises
    UserError as `read_sweep`.
    """
    of_server = [key for key in ONLY_WITH_SERVER if key in content]
    lines = [f"{key}: works with W&B's server only; leave it out, or use wandb sweep" for key in of_server]
    try:
        file = _File.model_validate({key: value for key, value in content.items() if key not in of_server})
    except ValidationError as problem:
        raise wrong_file(path, [*lines, *lines_of(problem)]) from None
    parameters = tuple(_parameters(file.parameters, ()))
    if lines := [*lines, *_contradictions(file, parameters)]:
        raise wrong_file(path, lines)
    as_written = ("method", "program", "metric", "run_cap", "project", "entity")
    return Sweep(
        path=path,
        name=file.name or path.stem,
        parameters=parameters,
        command=tuple(file.command or DEFAULT_COMMAND),
        hyperband=file.early_terminate,
        raw=content,
        control=[p.settings.get("value") for p in parameters if p.key == CONTROL] == [BOOKENDS],
        **{key: getattr(file, key) for key in as_written},
    )


def _parameters(tree: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[Parameter]:
    for name, found in tree.items():
        if isinstance(found, dict):
            yield from _parameters(found, (*path, name))
        else:
            yield Parameter((*path, name), *found)


def _contradictions(file: _File, parameters: Sequence[Parameter]) -> Iterator[str]:
    """What is wrong although each part of the file is in order."""
    if not file.metric and (file.method == "bayes" or file.early_terminate):
        who = "bayes" if file.method == "bayes" else "early_terminate"
        such = "such as metric: {name: eval/accuracy, goal: maximize}"
        yield f"metric: missing; {who} needs one to go by, {such}"
    if not file.program and (file.command is None or "${program}" in file.command):
        yield "program: missing; expected the script to run, such as program: run_experiment.py"
    keys = [parameter.key for parameter in parameters]
    for key in dict.fromkeys(key for key in keys if keys.count(key) > 1):
        yield f"parameters: {key} is in there twice; leave one out"
    if file.method != "grid":
        return
    drawn = [parameter for parameter in parameters if not parameter.is_listed]
    for parameter in drawn:
        todo = "list values without probabilities, use int_uniform or q_uniform, or method random or bayes"
        yield f"{parameter.place}: a grid cannot run through {parameter.kind}; {todo}"
    if not drawn and (count := count_of(parameters)) > MOST_POINTS:
        yield f"parameters: {count:,} points; a grid has at most {MOST_POINTS:,}, use method random or bayes"


def key_of(word: str) -> str:
    """The option of a word of a command line, however it is written."""
    return word.removeprefix("--").lstrip("+").partition("=")[0]


def _with_values(content: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """The content of a file with these values of its parameters: one, or a list of them to vary."""
    changed = copy.deepcopy(dict(content))
    specs = dict(_specs(changed.get("parameters"), ""))
    for word in words:
        key, _, text = word.partition("=")
        if (spec := specs.get(key_of(key))) is not None:
            value = read_word(key, text)
            is_varied = isinstance(value, list) and "value" not in spec
            spec.clear()
            spec["values" if is_varied else "value"] = value
    return changed


def _specs(tree: Any, prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, spec in tree.items() if isinstance(tree, dict) else ():
        if isinstance(spec, dict) and "parameters" in spec:
            yield from _specs(spec["parameters"], f"{prefix}{name}.")
        elif isinstance(spec, dict):
            yield f"{prefix}{name}", spec
