"""What our training makes of a sweep: whether it takes these options and logs that metric, and which points
of a grid of backends and loss scales come to the same run, or to none.

`none` has no loss scale, so that with two of them it is two points and one run; `native_bf16` with a static
one is refused. Each run is made once, and a block (order.py) holds, for one seed, every run that those points
came to: a baseline that all scales share stands among all of them, not before the later ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice, pairwise, product
from pathlib import Path
from typing import Any

from ampcompare import metrics
from ampcompare.config import task
from ampcompare.config.arguments import parse
from ampcompare.config.beside import PlanConfig
from ampcompare.config.build import build
from ampcompare.config.canonical import canonical
from ampcompare.config.load import check_option, check_parameters, split_override, typed_word
from ampcompare.config.schema import LEAVES, Config
from ampcompare.errors import UserError, did_you_mean
from ampcompare.report.words import plural, some
from ampcompare.sweeps.command import build_command
from ampcompare.sweeps.distributions import Parameter, nested
from ampcompare.sweeps.file import Sweep, key_of
from ampcompare.sweeps.points import BACKEND, Cells, count_of

MOST_TRIED = 200  # combinations of backend and precision; of more each is a run of its own
MOST_FIRST = 20  # of them, for one that runs
MOST_NAMED = 3
GROUP = "plan."
SCRIPT, PROGRAM = "run_experiment.py", "ampcompare"


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
        parameters, config = _first(sweep, words)
        check_parameters(config, parameters)
    except UserError as problem:
        return [f"the first run would end at once: {problem}"]
    return [*_wrong_metric(sweep, config)]


def first_config(sweep: Sweep, words: Sequence[str]) -> Config:
    """The config of our training's first run. Raises UserError where it would take no step."""
    return _first(sweep, words)[1]


def _first(sweep: Sweep, words: Sequence[str]) -> tuple[dict[str, Any], Config]:
    """The first of the points that the training takes, and its config: not every backend has every loss
    scale. Raises UserError, that of the very first, where it takes none of the first few.
    """
    refusals: list[UserError] = []
    for _, parameters, found in islice(_tried(sweep, words), MOST_FIRST):
        if isinstance(found, Config):
            return parameters, found
        refusals.append(found)
    raise refusals[0]


def _telling(sweep: Sweep) -> list[Parameter]:
    """Those that can make two points one run, or a point none."""
    found = [p for p in sweep.parameters if p.key == BACKEND or p.key.startswith("precision.")]
    return [p for p in found if sweep.is_grid and p.is_listed and p.grid_size() > 1]


def _tried(
    sweep: Sweep, words: Sequence[str]
) -> Iterator[tuple[tuple[int, ...], dict[str, Any], Config | UserError]]:
    """Every combination of what tells, by number, with the first value of all else: the parameters, and the
    config that the training makes of them, or why it would take no step.
    """
    telling = _telling(sweep)
    # What a file of them says, the words can say.
    as_words = {"${args_json_file}": "${args_json}"}
    template = [as_words.get(word, word) for word in sweep.command[_options_start(sweep) :]]
    for numbers in product(*(range(p.grid_size()) for p in telling)):
        at = dict(zip((p.key for p in telling), numbers, strict=True))
        values = [p.grid_value(at[p.key]) if p.key in at else p.examples()[0] for p in sweep.parameters]
        parameters = nested(sweep.parameters, values)
        found: Config | UserError
        try:
            found = parse([*build_command(template, sweep.program, parameters, Path()), *words])
        except UserError as problem:
            found = problem
        yield numbers, parameters, found


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
    keys = [key for key in LEAVES if key.startswith(GROUP) and key in found]
    try:
        return build(Config(), ("", {key: found[key] for key in keys})).plan
    except UserError:  # options of its own that are called so
        return PlanConfig()


def same_runs(sweep: Sweep, words: Sequence[str]) -> tuple[Cells | None, list[str]]:
    """Which points of the grid are runs (None: each of them), with the `key=value` words behind every
    command, and what is to be said of it.

    Raises UserError where none of them could run.
    """
    telling = _telling(sweep)
    if not telling or not trains_here(sweep) or (count := count_of(telling)) > MOST_TRIED:
        return None, []
    kept: dict[str, tuple[int, ...]] = {}  # the first point of those that train the same
    refused: list[str] = []
    for numbers, _, found in _tried(sweep, words):
        if isinstance(found, Config):
            effect = json.dumps(canonical(found.to_dict()), sort_keys=True, default=str)
            kept.setdefault(effect, numbers)
        else:
            refused.append(str(found).partition("; ")[0])
    if not kept:
        raise UserError(f"{sweep.path}: no point of the grid can run: {refused[0]}")
    if len(kept) == count:
        return None, []
    cells = Cells(tuple(p.key for p in telling), frozenset(kept.values()))
    runs = len(replace(sweep, cells=cells, control=False, run_cap=None).points)
    why = ": those that train the same are one" if len(kept) + len(refused) < count else ""
    said = [f"{plural(count_of(sweep.parameters), 'point')}, {plural(runs, 'different run')}{why}"]
    if refused:
        said.append(f"left out, as they cannot run: {some([*dict.fromkeys(refused)], MOST_NAMED)}")
    return cells, said
