"""A sweep file as a Sweep: W&B's schema as pydantic models, whatever breaks it told at once."""

import copy
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, PlainValidator, TypeAdapter, model_validator

from ampcompare.errors import UserError
from ampcompare.program.checked import Checked, Number, Text, checked, refused
from ampcompare.program.place import as_typed, find_shipped, names_shipped
from ampcompare.program.yaml_file import read_word, read_yaml
from ampcompare.sweeps.command import DEFAULT_COMMAND, checked_word
from ampcompare.sweeps.distributions import Parameter, parse_spec
from ampcompare.sweeps.points import MOST_POINTS, Axes, Cells, Point, count_of, points_of

HYPERBANDS = 20  # of min_iter, which has no last one


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
Count = Annotated[int, Field(ge=1)]


class _Group(Checked):
    parameters: Parameters


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

    @property
    def learns(self) -> bool:
        """Whether its points follow from what the ones before came to; else from the file alone."""
        return self.method == "bayes"

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
    if isinstance(content, dict) and content and not {"method", "parameters"} & content.keys():
        todo = f"a config is run with: {as_typed('ampcompare', 'run', '--config', file)}"
        raise UserError(f"{file}: not a sweep, it has neither method nor parameters; {todo}")
    sweep, changed = sweep_of(file, content), copy.deepcopy(content)
    for word in words:
        key, _, text = word.partition("=")
        for varied in (p for p in sweep.parameters if p.key == key_of(word)):
            spec, value = changed, read_word(key, text)
            for name in varied.path:
                spec = spec["parameters"][name]
            spec.clear()
            spec["values" if isinstance(value, list) and varied.kind != "constant" else "value"] = value
    return sweep_of(file, changed)


def sweep_of(path: Path, content: Any) -> Sweep:
    """The sweep in what such a file holds, wherever it was kept; `path` is what messages call it. Raises
    UserError as `read_sweep`.
    """
    file = checked(_File, content, path)
    as_written = ("method", "parameters", "program", "metric", "run_cap", "project", "entity")
    return Sweep(
        path=path,
        name=file.name or path.stem,
        command=tuple(file.command or DEFAULT_COMMAND),
        hyperband=file.early_terminate,
        raw=content,
        **{key: getattr(file, key) for key in as_written},
    )


def key_of(word: str) -> str:
    """The option of a word of a command line, however it is written."""
    return word.removeprefix("--").lstrip("+").partition("=")[0]
