"""A sweep file as a Sweep: read, checked against W&B's schema, every violation told at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ampcompare.errors import UserError
from ampcompare.sweeps.command import DEFAULT_COMMAND
from ampcompare.sweeps.parameters import Parameter, kind_of, nested, settings_of
from ampcompare.sweeps.schema import violations


@dataclass(frozen=True)
class Metric:
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
    metric: Metric | None = None
    run_cap: int | None = None
    hyperband: Hyperband | None = None
    project: str | None = None
    entity: str | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def total(self) -> int | None:
        """How many runs it comes to; None for a search without `run_cap`, which goes on until it is stopped."""
        if self.method != "grid":
            return self.run_cap
        points = math.prod(p.grid_size() for p in self.parameters)
        return points if self.run_cap is None else min(points, self.run_cap)

    def grid_point(self, index: int) -> dict[str, Any]:
        """The parameters of one point of the grid, as a tree.

        The first parameter of the file changes fastest: with the backend first, every prefix of the sweep compares
        all backends on equal terms.
        """
        values = []
        for parameter in self.parameters:
            index, place = divmod(index, parameter.grid_size())
            values.append(parameter.grid_value(place))
        return nested(self.parameters, values)


def read_sweep(path: str | Path) -> Sweep:
    """The sweep in a YAML file. Raises UserError with a line for each thing that is wrong."""
    path = Path(path)
    content = _read(path)
    try:
        problems = list(violations(content))
    except RecursionError:  # a YAML anchor that holds itself
        raise UserError(f"{path}: nested too deeply, or in itself") from None
    if problems:
        raise violations_error(path, problems)
    metric = content.get("metric")
    return Sweep(
        path=path,
        name=content.get("name") or path.stem,
        method=content["method"],
        parameters=tuple(_parameters(content["parameters"], ())),
        program=content.get("program"),
        command=tuple(str(word) for word in content.get("command") or DEFAULT_COMMAND),
        metric=Metric(metric["name"], metric.get("goal", "minimize") == "maximize", metric.get("target"))
        if metric
        else None,
        run_cap=content.get("run_cap"),
        hyperband=_hyperband(content["early_terminate"]) if content.get("early_terminate") else None,
        project=content.get("project"),
        entity=content.get("entity"),
        raw=content,
    )


def violations_error(path: Path, problems: list[str]) -> UserError:
    """One error for all that is wrong with a sweep file; a line each."""
    if len(problems) == 1:
        return UserError(f"{path}: {problems[0]}")
    return UserError(f"{path}: {len(problems)} things are wrong, nothing was started:", problems)


def _read(path: Path) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        known = ", ".join(sorted(str(p) for p in Path("sweeps").glob("*.yaml")))
        raise UserError(f"{path}: no such file" + (f"; expected one such as {known}" if known else "")) from None
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        where = f"{path}, line {mark.line + 1}" if mark else str(path)
        raise UserError(f"{where}: not valid YAML: {problem.problem or problem.context}") from None
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as problem:  # ValueError: not UTF-8, a NUL
        reason = getattr(problem, "strerror", None) or problem
        raise UserError(f"{path}: cannot be read as YAML: {reason}") from None
    if not isinstance(content, dict):
        found = "nothing" if content is None else f"a {type(content).__name__}"
        raise UserError(f"{path}: expected a sweep (method, parameters, ...), found {found}")
    if "method" not in content and "parameters" not in content and content:
        raise UserError(
            f"{path}: not a sweep, it has neither method nor parameters; "
            f"a config is run with: python run_experiment.py --config {path}"
        )
    return content


def _parameters(tree: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[Parameter]:
    for name, spec in tree.items():
        if "parameters" in spec:
            yield from _parameters(spec["parameters"], (*path, name))
            continue
        kind = kind_of(spec)
        assert kind is not None
        yield Parameter((*path, name), kind, settings_of(kind, spec))


def _hyperband(early: Mapping[str, Any]) -> Hyperband:
    eta = early.get("eta", 3)
    if "min_iter" in early:
        bands = [early["min_iter"] * eta**i for i in range(20)]
    else:
        bands = sorted({early["max_iter"] // eta**i for i in range(1, early["s"] + 1)} - {0}) or [1]
    return Hyperband(tuple(bands), eta, early.get("strict", False))
