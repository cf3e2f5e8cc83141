"""A sweep file as a Sweep: read, checked against W&B's schema, every violation told at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ampcompare.errors import UserError
from ampcompare.program.place import as_typed, names_shipped
from ampcompare.program.yaml_file import read_yaml
from ampcompare.sweeps.file.command import DEFAULT_COMMAND
from ampcompare.sweeps.file.parameters import Parameter, complete, kind_of
from ampcompare.sweeps.file.violations import early_violations, leaf_violations, violations
from ampcompare.sweeps.methods import METHODS
from ampcompare.sweeps.points import Cells, Points

CONTROL, BOOKENDS = "plan.control", "bookends"
LONGEST = 400  # characters of what is said of one thing


@dataclass(frozen=True)
class Objective:
    """What the sweep goes by: a logged metric, which way is better, and the value that is good enough."""

    name: str
    maximize: bool = False
    target: float | None = None


@dataclass(frozen=True)
class Hyperband:
    """Early termination: at the n-th value of the metric in `bands`, only the best 1/eta of the runs go on.

    Unless `strict`, a run is judged by its best value so far rather than by its newest.
    """

    bands: tuple[int, ...]
    eta: int = 3
    strict: bool = False


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
    cells: Cells | None = None  # the runs of one seed, where not each point is one of its own
    in_file_order: bool = False  # as sweeps went that began before there were blocks
    on_server: bool = False  # whether W&B's server knows it under its name

    @property
    def is_grid(self) -> bool:
        """Whether every point is run once, in blocks (order.py) unless hyperband compares runs in passing."""
        return METHODS[self.method].is_grid

    @cached_property
    def points(self) -> Points:
        """The runs of a grid, by their number."""
        is_drawn = not (self.in_file_order or self.hyperband)
        return Points(self.name, self.parameters, self.added, self.control, is_drawn, self.cells)

    def total(self) -> int | None:
        """How many runs it comes to; None for a search without `run_cap`: it goes on until it is stopped."""
        if not self.is_grid:
            return self.run_cap
        points = self.points.count
        return points if self.run_cap is None else min(points, self.run_cap)

    def grid_point(self, index: int) -> dict[str, Any]:
        """The parameters of one run of the grid, as a tree."""
        return self.points.point(index).parameters


Check = Callable[[Sweep, bool], list[str]]


def read_sweep(path: str | Path, check: Check | None = None) -> Sweep:
    """The sweep in a YAML file. Raises UserError with a line for each thing that is wrong.

    `check` says what else is wrong with a sweep; where the file breaks the schema it gets what is left of it.
    """
    path = Path(path)
    content = _read(path)
    return sweep_of(path, content, check)


def sweep_of(path: Path, content: Mapping[str, Any], check: Check | None = None) -> Sweep:
    """The sweep in what such a file holds, wherever it was kept; `path` is what messages call it. Raises
    UserError as `read_sweep`.
    """
    problems = list(violations(content))
    sweep = _sweep(path, content)
    keys = [parameter.key for parameter in sweep.parameters]
    for twice in dict.fromkeys(key for key in keys if keys.count(key) > 1):
        problems.append(f"parameters: {twice} is in there twice; leave one out")
    problems += check(sweep, not problems) if check else []
    told = [problem if len(problem) <= LONGEST else problem[: LONGEST - 3] + "..." for problem in problems]
    if len(told) == 1:
        raise UserError(f"{path}: {told[0]}")
    if told:
        raise UserError(f"{path}: {len(told)} things are wrong, nothing was started:", told)
    return sweep


def _sweep(path: Path, content: Mapping[str, Any]) -> Sweep:
    """What can be understood of a sweep, all of it where it breaks no rule."""

    def part(key: str, kind: type) -> Any:
        value = content.get(key)
        return value if isinstance(value, kind) else None

    metric, early, tree = part("metric", dict), part("early_terminate", dict), part("parameters", dict)
    command, objective = part("command", list), None
    if metric:
        is_rising = metric.get("goal") == "maximize"
        objective = Objective(str(metric.get("name")), is_rising, metric.get("target"))
    parameters = tuple(_parameters(tree or {}, ()))
    planned = [p.settings["value"] for p in parameters if p.key == CONTROL and p.kind == "constant"]
    return Sweep(
        path=path,
        name=part("name", str) or path.stem,
        method=part("method", str) or "grid",
        parameters=parameters,
        program=part("program", str),
        command=tuple(str(word) for word in command or DEFAULT_COMMAND),
        metric=objective,
        run_cap=part("run_cap", int),
        hyperband=_hyperband(early) if early and not list(early_violations(early)) else None,
        project=part("project", str),
        entity=part("entity", str),
        raw=content,
        control=planned == [BOOKENDS],
    )


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():  # a pipe would never end
        known = ", ".join(names_shipped("sweeps"))
        raise UserError(f"{path}: no such file; expected a path or one of {known}")
    content = read_yaml(path)
    if not isinstance(content, dict):
        found = "nothing" if content is None else f"a {type(content).__name__}"
        raise UserError(f"{path}: expected a sweep (method, parameters, ...), found {found}")
    if "method" not in content and "parameters" not in content and content:
        todo = f"a config is run with: {as_typed('ampcompare', 'run', '--config', path)}"
        raise UserError(f"{path}: not a sweep, it has neither method nor parameters; {todo}")
    return content


def _parameters(tree: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[Parameter]:
    """The parameters of a tree that are in order."""
    for name, spec in tree.items():
        if not isinstance(name, str) or not isinstance(spec, dict):
            continue
        if isinstance(spec.get("parameters"), dict):
            yield from _parameters(spec["parameters"], (*path, name))
        elif (kind := kind_of(spec)) and not list(leaf_violations(spec, name, None)):
            yield Parameter((*path, name), kind, complete(kind, spec))


def _hyperband(early: Mapping[str, Any]) -> Hyperband:
    eta = early.get("eta", 3)
    if "min_iter" in early:
        bands = [early["min_iter"] * eta**i for i in range(20)]
    else:
        bands = sorted({early["max_iter"] // eta**i for i in range(1, early["s"] + 1)} - {0}) or [1]
    return Hyperband(tuple(bands), eta, early.get("strict", False))
