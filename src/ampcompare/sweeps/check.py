"""What W&B's schema of a sweep cannot know: whether the training takes these options and logs that metric."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice, pairwise, product
from pathlib import Path
from typing import Any

from ampcompare import metrics
from ampcompare.config import task
from ampcompare.config.arguments import parse
from ampcompare.config.load import check_option, typed_word
from ampcompare.config.schema import Config
from ampcompare.config.sweep_choice import check_parameters
from ampcompare.errors import UserError, did_you_mean
from ampcompare.sweeps.command import build_command
from ampcompare.sweeps.distributions import Parameter, nested
from ampcompare.sweeps.file import Sweep, key_of
from ampcompare.sweeps.points import BACKEND

MOST_TRIED = 20  # combinations of values, for one that runs
ARM = "plan.arm"  # each run's own
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
        # The words of the command and of the command line, with the first value of everything.
        config, parameters = _first(sweep, words)
        check_parameters(config, parameters)
    except UserError as problem:
        return [f"the first run would end at once: {problem}"]
    return [*_wrong_metric(sweep, words)]


def first_config(sweep: Sweep, words: Sequence[str]) -> Config:
    """The config of our training's first run. Raises UserError where it would take no step."""
    return _first(sweep, words)[0]


def _first(sweep: Sweep, words: Sequence[str]) -> tuple[Config, dict[str, Any]]:
    """The first of a sweep's runs that the training takes, and its parameters: not every backend has every
    loss scale. Raises UserError, that of the very first, where it takes none of the first few.
    """
    refusals: list[UserError] = []
    for chosen in _combinations([p for p in sweep.parameters if sweep.is_grid and is_of_backend(p)]):
        try:
            return config_of(sweep, words, chosen), _parameters(sweep, chosen)
        except UserError as problem:
            refusals.append(problem)
    raise refusals[0]


def _combinations(parameters: Sequence[Parameter]) -> Iterator[dict[str, Any]]:
    """Their first few values together, the first of each first; with none of them nothing, once."""
    for values in islice(product(*(p.examples() for p in reversed(parameters))), MOST_TRIED):
        yield dict(zip((p.key for p in parameters), reversed(values), strict=True))


def is_of_backend(parameter: Parameter) -> bool:
    """Whether it is one of those that can make two points one run, or a point none."""
    return parameter.key == BACKEND or parameter.key.startswith("precision.")


def config_of(sweep: Sweep, words: Sequence[str], chosen: Mapping[str, Any]) -> Config:
    """The config of our training's run with these values, by key, and the first one of every other parameter.

    Raises UserError where it would take no step.
    """
    template, parameters = sweep.command[_options_start(sweep) :], _parameters(sweep, chosen)
    with tempfile.TemporaryDirectory() as folder:
        given = build_command(template, sweep.program, parameters, Path(folder) / "parameters.json")
        # A file that is read here and now stands for the words in it.
        texts = [Path(word).read_text() if word.startswith(folder) else word for word in given]
    return parse([*texts, *words])


def _parameters(sweep: Sweep, chosen: Mapping[str, Any]) -> dict[str, Any]:
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
        if parameter.key.startswith("plan.") and parameter.kind != "constant":
            yield f"{parameter.place}: a sweep has one plan; write value: and what it is"
    yield from (f"{where}: {problem}" for problem, where in told.items())
    if ARM in {p.key for p in sweep.parameters} | {key_of(word) for word in words}:
        yield f"{ARM}: each run's own, the sweep sets it; leave it out"


def _wrong_metric(sweep: Sweep, words: Sequence[str]) -> Iterator[str]:
    if sweep.metric is None:
        return
    name, listed = sweep.metric.name, "docs/metrics.md lists every metric"
    # What every run logs because of its task, whichever of the sweep's values it has.
    tasks = []
    for chosen in _combinations([p for p in sweep.parameters if p.key.startswith("task.")]):
        with suppress(UserError):  # this one will say so itself
            own = config_of(sweep, words, chosen).task
            tasks.append(task.logged_keys(own.loss, own.metrics, own.metric))
    of_task = frozenset.intersection(*tasks) if tasks else frozenset()
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
