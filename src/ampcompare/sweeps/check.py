"""What our training makes of a sweep: whether it takes these options and logs that metric, and which points
of a grid of backends and loss scales come to the same run, or to none.

`none` has no loss scale, so that with two of them it is two points and one run; `native_bf16` with a static
one is refused. Each run is made once. A block (order.py) then holds, for one seed, every run that those
points came to: a baseline that all scales share stands among all of them, not before the later ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice, pairwise, product
from pathlib import Path
from typing import Any

from ampcompare import metrics
from ampcompare.config import task
from ampcompare.config.arguments import parse
from ampcompare.config.beside import PlanConfig
from ampcompare.config.canonical import canonical
from ampcompare.config.load import check_option, check_parameters, split_override, typed_values, typed_word
from ampcompare.config.schema import Config
from ampcompare.errors import UserError, did_you_mean
from ampcompare.report.words import plural, some
from ampcompare.sweeps.command import build_command
from ampcompare.sweeps.distributions import nested
from ampcompare.sweeps.file import Sweep, key_of
from ampcompare.sweeps.points import BACKEND, Cells, count_of

MOST_TRIED = 200  # combinations of backend and precision; of more each is a run of its own
MOST_FIRST = 20  # of them, for one that runs
MOST_NAMED = 3
GROUP = "plan."
SCRIPT, PROGRAM = "run_experiment.py", "ampcompare"

Chosen = Mapping[str, Any]  # values of parameters, by their keys


def trains_here(sweep: Sweep) -> bool:
    """Whether the sweep runs our own training, whose options and metrics are known."""
    return _options_start(sweep) is not None


def _options_start(sweep: Sweep) -> int | None:
    """Where in the sweep's command the training's words begin: behind `run_experiment.py`, or behind
    `ampcompare run` however that is started; None where it runs something else.
    """
    words = [sweep.program if word == "${program}" else word for word in sweep.command]
    for place, (word, behind) in enumerate(pairwise([*words, None])):
        if word and Path(word).name == PROGRAM and behind == "run":
            return place + 2
        if sweep.command[place] == "${program}" and word and _is_our_script(Path(word)):
            return place + 1
    return None


def _is_our_script(path: Path) -> bool:
    """Whether it is our script or a copy of it; another project may have a file of that name."""
    with suppress(OSError, ValueError):
        return path.name == SCRIPT and (
            not path.exists() or "ampcompare.entrypoint" in path.read_text(errors="replace")
        )
    return False


def problems_of(sweep: Sweep, words: Sequence[str]) -> list[str]:
    """What the training would not take: a program that is not there, unknown options, a metric it never logs.

    `words` are the `key=value` words that go behind every command.
    """
    here = trains_here(sweep)
    if problems := [*_no_program(sweep, here), *(_wrong_options(sweep, words) if here else ())]:
        return problems
    if not here:
        return []
    try:
        # The words of the command and of the command line, with the first value of everything.
        config, chosen = _first(sweep, words)
        check_parameters(config, _parameters(sweep, chosen))
    except UserError as problem:
        return [f"the first run would end at once: {problem}"]
    return [*_wrong_metric(sweep, config)]


def first_config(sweep: Sweep, words: Sequence[str]) -> Config:
    """The config of our training's first run. Raises UserError where it would take no step."""
    return _first(sweep, words)[0]


def _first(sweep: Sweep, words: Sequence[str]) -> tuple[Config, Chosen]:
    """The first of a sweep's runs that the training takes, and what sets it apart: not every backend has
    every loss scale. Raises UserError, that of the very first, where it takes none of the first few.
    """
    refusals: list[UserError] = []
    telling = [p for p in reversed(sweep.parameters) if sweep.is_grid and _is_of_backend(p.key)]
    for values in islice(product(*(p.examples() for p in telling)), MOST_FIRST):
        chosen = dict(zip((p.key for p in telling), values, strict=True))
        try:
            return config_of(sweep, words, chosen), chosen
        except UserError as problem:
            refusals.append(problem)
    raise refusals[0]


def _is_of_backend(key: str) -> bool:
    """Whether it is one of those that can make two points one run, or a point none."""
    return key == BACKEND or key.startswith("precision.")


def config_of(sweep: Sweep, words: Sequence[str], chosen: Chosen) -> Config:
    """The config of our training's run with these values, and the first one of every other parameter.

    Raises UserError where it would take no step.
    """
    # What a file of them says, the words can say.
    words_of_file = {"${args_json_file}": "${args_json}"}
    template = [words_of_file.get(word, word) for word in sweep.command[_options_start(sweep) :]]
    return parse([*build_command(template, sweep.program, _parameters(sweep, chosen), Path()), *words])


def _parameters(sweep: Sweep, chosen: Chosen) -> dict[str, Any]:
    values = [chosen[p.key] if p.key in chosen else p.examples()[0] for p in sweep.parameters]
    return nested(sweep.parameters, values)


def _no_program(sweep: Sweep, here: bool) -> Iterator[str]:
    named = sweep.program if "${program}" in sweep.command else None
    if named and not Path(named).is_file() and not (here and Path(named).name == PROGRAM):
        todo = "start the sweep from the folder that has it, or write the path out"
        yield f"program={named!r}: no such file in {Path.cwd()}; {todo}"


def _wrong_options(sweep: Sweep, words: Sequence[str]) -> Iterator[str]:
    told: dict[str, str] = {}  # what is wrong, and where it is first
    for parameter in sweep.parameters:
        for value in parameter.examples():
            try:
                check_option(parameter.key, typed_word(parameter.key, str(value)))  # as the program sees it
            except UserError as problem:
                told.setdefault(str(problem), parameter.place)
        if parameter.key.startswith(GROUP) and parameter.kind != "constant":
            yield f"{parameter.place}: a sweep has one plan; write value: and what it is"
    yield from (f"{where}: {problem}" for problem, where in told.items())
    if f"{GROUP}arm" in {p.key for p in sweep.parameters} | {key_of(word) for word in words}:
        yield f"{GROUP}arm: each run's own, the sweep sets it; leave it out"


def _wrong_metric(sweep: Sweep, config: Config) -> Iterator[str]:
    if sweep.metric is None:
        return
    name, listed = sweep.metric.name, "docs/metrics.md lists every metric"
    of_task = task.logged_keys(config.task.loss, config.task.metrics, config.task.metric)
    metric = metrics.find(name)
    known = {key for key in metrics.METRICS if not task.is_of_task(key)} | of_task
    if name not in known and (metric is None or metric.key not in known):
        near = did_you_mean(name, sorted(known), 0.5)
        yield f"metric.name={name!r}: the training never logs it; {near or listed}"
    elif metric and metric.no_goal:
        yield f"metric.name={name!r}: is {metric.no_goal}, nothing to go by; {listed}"
    elif sweep.hyperband and (
        metric.when == metrics.END if metric else name.startswith(metrics.best_of(metrics.EVAL))
    ):
        why = "is logged at the end only, and early_terminate looks at a run as it goes on"
        yield f"metric.name={name!r}: {why}"


def plan_of(sweep: Sweep, words: Sequence[str]) -> PlanConfig:
    """The plan that the runs will have in their config, with the `key=value` words behind every command.

    Of a program that is not ours it is what file and words say, as far as it is a plan. Raises UserError.
    """
    if trains_here(sweep):
        return first_config(sweep, words).plan
    found: dict[str, Any] = {p.key: p.grid_value(0) for p in sweep.parameters if p.is_listed}
    found |= dict(split_override(word) for word in words)
    names = [name for name in PlanConfig.__dataclass_fields__ if f"{GROUP}{name}" in found]
    try:
        typed = typed_values(Config(), {f"{GROUP}{name}": found[f"{GROUP}{name}"] for name in names})
    except UserError:  # options of its own that are called so
        return PlanConfig()
    return PlanConfig(**{key.removeprefix(GROUP): value for key, value in typed.items()})


@dataclass(frozen=True)
class Same:
    """The points that are runs (`cells`; None: all of them), which values come to one run (the first stand
    for the others), and why others are left out.
    """

    cells: Cells | None = None
    alike: tuple[tuple[Chosen, ...], ...] = ()
    refusals: tuple[str, ...] = ()

    def said(self, sweep: Sweep) -> Iterator[str]:
        """What is to be said before the first run: the number of points and of runs, and why these differ."""
        if sweep.cells is None:
            return
        points = count_of([p for p in sweep.parameters if p != sweep.axes.seed]) * sweep.seeds
        runs = len(replace(sweep, control=False, run_cap=None).points)
        ones = []
        for alike in self.alike:
            shared = " ".join(
                f"{k}={v}" for k, v in alike[0].items() if all(other[k] == v for other in alike)
            )
            ones.append(f"{len(alike)} points{f' of {shared}' if shared else ''} are one run")
        why = f": {some(ones, MOST_NAMED)}" if ones else ""
        yield f"{plural(points, 'point')}, {plural(runs, 'different run')}{why}"
        if self.refusals:
            yield f"left out, as they cannot run: {some(self.refusals, MOST_NAMED)}"


def same_runs(sweep: Sweep, words: Sequence[str]) -> Same:
    """What the points of the grid come to, with the `key=value` words behind every command.

    Raises UserError where none of them could run.
    """
    telling = [p for p in sweep.parameters if _is_of_backend(p.key) and p.is_listed and p.grid_size() > 1]
    if not (sweep.is_grid and trains_here(sweep) and telling and count_of(telling) <= MOST_TRIED):
        return Same()
    groups: dict[str, dict[tuple[int, ...], Chosen]] = {}  # what trains the same, by number and value
    refused: dict[str, None] = {}
    for numbers in product(*(range(p.grid_size()) for p in telling)):
        chosen = {p.key: p.grid_value(n) for p, n in zip(telling, numbers, strict=True)}
        try:
            effect = canonical(config_of(sweep, words, chosen).to_dict())
        except UserError as problem:
            refused[str(problem).partition("; ")[0]] = None
        else:
            groups.setdefault(json.dumps(effect, sort_keys=True, default=str), {})[numbers] = chosen
    if not groups:
        raise UserError(f"{sweep.path}: no point of the grid can run: {next(iter(refused))}")
    merged = [alike for alike in groups.values() if len(alike) > 1]
    if not refused and not merged:
        return Same()
    folded = {p.key for alike in merged for i, p in enumerate(telling) if len({n[i] for n in alike}) > 1}
    kept = frozenset(next(iter(alike)) for alike in groups.values())
    cells = Cells(tuple(p.key for p in telling), kept, frozenset(folded))
    return Same(cells, tuple(tuple(alike.values()) for alike in merged), tuple(refused))
