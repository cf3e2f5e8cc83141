"""`ampcompare why guard`: the smallest set of modules that must stay in fp32, found in short trainings."""

import dataclasses
import math
import shlex
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from ampcompare.config.load import Config
from ampcompare.config.recipes import describe_recipe
from ampcompare.data.batch import Batch
from ampcompare.errors import UserError, one_line, reason
from ampcompare.precision import get_backend
from ampcompare.precision.keep_fp32 import KeepFp32Error, match_modules
from ampcompare.precision.registry import PLAIN
from ampcompare.runtime.atomic_files import write_json
from ampcompare.runtime.console import print_line
from ampcompare.runtime.formatting import plural, some
from ampcompare.system.device import seed_process
from ampcompare.training.losses_and_metrics import call_network
from ampcompare.training.run_context import with_backend
from ampcompare.training.trainer import Trainer
from ampcompare.why.capture import map_tensors, module_calls
from ampcompare.why.op_profile import measure_interleaved, speed_ratio
from ampcompare.why.step import StepState

MARGIN = 0.05  # of what fp32 learns
STEPS = 40
COST_SECONDS = 5.0  # for measuring the cost of the modules in fp32
MIN_LEARNED = 0.01  # fraction of the first loss that fp32 has to learn: the margin is a fraction of that
EXIT_NO_SET = 1  # the exit code where keeping modules in fp32 does not help
KEY = "precision.keep_fp32"
WHOLE = "*"  # the pattern that matches every module
# Outcomes of a search, as the JSON has them.
NO_PROBLEM, FOUND, NOT_A_MODULE, NO_SET = "no problem", "found", "not a module", "no set of modules"
AN_OPTION = "an option"
FP16_EPS = 1e-4  # of the optimizer; 1e-8, the default of Adam, is 0 in fp16
Kept = tuple[str, ...]  # names of the modules that stay in fp32


@dataclass(frozen=True)
class Trial:
    """A short training.

    Attributes:
        kept: The modules in fp32.
        first: The first loss.
        last: The mean loss over the last quarter of the steps; NaN where the training failed.
        trained: Whether any step was taken; False if every step was skipped after an overflow.
        error: The exception that ended the training; empty if there was none.
    """

    kept: Kept
    first: float
    last: float
    trained: bool = True
    error: str = ""


@dataclass
class MinimalSetSearch:
    """Search for a smallest set of modules with which a backend trains about as well as fp32.

    Attributes:
        train: Makes a trial of a backend with modules in fp32.
        margin: How far the loss may be above fp32's, as a fraction of what fp32 learns.
        say: Prints a line; called once a trial.
        bound: The highest loss within the margin; known after `start`.
        trials: The trials so far, by the modules in fp32.
    """

    train: Callable[[str, Kept], Trial]
    backend: str
    margin: float
    say: Callable[[str], None]
    bound: float = math.inf
    trials: dict[Kept, Trial] = field(default_factory=dict)

    def start(self) -> bool:
        """Train in fp32, then with the backend as it is.

        Returns:
            Whether the backend is within the margin as it is.

        Raises:
            UserError: If fp32 learns so little in these steps that a fraction of that means nothing.
        """
        base = self.train(PLAIN, ())
        learned = base.first - base.last
        if not learned > MIN_LEARNED * abs(base.first):
            raise UserError(
                f"fp32 learns too little in a trial (loss {base.first:.4g} to {base.last:.4g}), and the "
                "margin is a fraction of what it learns; raise --steps, or change optimizer.lr"
            )
        self.bound = base.last + self.margin * learned
        self.say(
            f"fp32: loss {base.first:.4g} to {base.last:.4g}; within the margin: at most {self.bound:.4g} "
            f"({100 * self.margin:g}% of what fp32 learns)"
        )
        return self.passes((), f"{self.backend} as it is")

    def passes(self, kept: Kept, description: str) -> bool:
        """Return whether a training with these modules in fp32 is within the margin; try each set once.

        Args:
            kept: The modules.
            description: What to print before the loss.
        """
        if kept not in self.trials:
            trial = self.train(self.backend, kept)
            self.trials[kept] = trial
            self.report(description, trial)
        return self.is_within_margin(self.trials[kept])

    def report(self, description: str, trial: Trial) -> None:
        """Print the loss of a trial."""
        if trial.error:
            self.say(f"{description}: failed ({trial.error})")
        elif self.is_within_margin(trial):
            self.say(f"{description}: loss {trial.last:.4g}, within the margin")
        elif trial.trained:
            self.say(f"{description}: loss {trial.last:.4g}")
        else:
            self.say(f"{description}: loss {trial.last:.4g}, every step skipped")

    def is_within_margin(self, trial: Trial) -> bool:
        """Return whether the loss of a trial is at most the margin above fp32's."""
        return trial.trained and trial.last <= self.bound  # False for NaN

    def find(self, called: Sequence[str]) -> list[str] | None:
        """Return a smallest set of modules that passes.

        A module covers the modules below it, so a set without these is the same question.

        Inner modules are tried before the modules that call them. So a module that calls others is returned
        only where these are not enough: then the overflow is in its own forward.

        Args:
            called: Names of the modules that a forward calls.

        Returns:
            The names, in the order of `called`; None where even the whole network in fp32 does not pass.
        """
        if not self.passes((WHOLE,), "the whole network in fp32"):
            return None
        deepest_first = sorted(called, key=lambda name: -name.count("."))

        def passes(kept: Kept) -> bool:
            covers = tuple(name for name in kept if not any(name != k and _is_below(name, k) for k in kept))
            if WHOLE in kept:
                covers = (WHOLE,)
            return self.passes(covers, f"{join_runs(covers, deepest_first)} in fp32")

        modules = find_minimal_set([*deepest_first, WHOLE], passes)
        return sorted(modules, key=[*called, WHOLE].index)


def find_minimal_set(items: Sequence[str], passes: Callable[[Kept], bool]) -> list[str]:
    """Return a subset of `items` that passes and from which no item can be left out, in their order.

    All items together pass and none alone does not: neither is asked. If a larger set never does worse, the
    subset is minimal. If it does, or if the answers are noisy, the subset is one that passed.

    The search bisects how many items, from the first on, pass: the last of these is needed. It repeats that
    over the items before it, with the needed items added, until the needed items pass alone (Zeller &
    Hildebrandt 2002, with the order of Junker's QuickXplain 2004). A result with k items takes at most
    k (ceil(log2(len(items))) + 1) questions.

    >>> asked = []
    >>> find_minimal_set("abcdefgh", lambda kept: asked.append(kept) or {"b", "f"} <= {*kept}), len(asked)
    (['b', 'f'], 7)
    """

    def in_order(chosen: Sequence[str]) -> Kept:
        return tuple(item for item in items if item in {*chosen})

    needed: list[str] = []
    enough = len(items)  # as many items from the first on, with the needed ones, are known to pass
    while enough and not (needed and passes(in_order(needed))):
        too_few = 0  # as many are known not to pass
        while enough - too_few > 1:
            middle = (too_few + enough) // 2
            if passes(in_order([*items[:middle], *needed])):
                enough = middle
            else:
                too_few = middle
        enough -= 1
        needed.append(items[enough])
    return list(in_order(needed))


def join_runs(names: Sequence[str], order: Sequence[str]) -> str:
    """Return names in an order; more than three neighbours in the order are one range.

    >>> join_runs(["a", "b", "c", "d", "f"], ["a", "b", "c", "d", "e", "f"])
    'a to d (4 modules), f'
    """
    texts: list[str] = []
    for is_named, run in groupby(order, {*names}.__contains__):
        own = [*run] if is_named else []
        texts += own if len(own) <= 3 else [f"{own[0]} to {own[-1]} ({len(own)} modules)"]
    return ", ".join(texts)


def _is_below(name: str, above: str) -> bool:
    return not above or name.startswith(f"{above}.")


def list_called_modules(state: StepState) -> list[str]:
    """Return the names of the modules that a forward calls, in the order of their first call.

    Modules that `precision.keep_fp32` keeps in fp32 already are left out.

    Raises:
        UserError: If `precision.keep_fp32` names a module that the network does not have.
    """
    model = state.build_trainer(with_backend(state.config, PLAIN)).model
    called: dict[nn.Module, None] = {}  # in the order of the first calls
    inputs, _ = state.batches[0]

    def enter(name: str, module: nn.Module, arguments: Any) -> None:
        called.setdefault(module)

    with module_calls(model, enter):
        call_network(model.train(), map_tensors(inputs, lambda tensor: tensor[:2]))
    try:
        always = match_modules(model, state.config.precision.keep_fp32 or ())
    except KeepFp32Error as problem:
        raise UserError(problem) from None
    names = {module: name for name, module in reversed([*model.named_modules()])}
    called_names = [names[module] for module in called if names[module]]
    return [name for name in called_names if not any(name == k or _is_below(name, k) for k in always)]


@dataclass(frozen=True)
class TrialTraining:
    """Short trainings of one run's options, each with other modules in fp32.

    Attributes:
        state: The training at which the trials begin.
        config: The options of the run, or with one that is tried.
        batches: The micro-batches of each step.
    """

    state: StepState
    config: Config
    batches: Sequence[Sequence[Batch]]

    def with_eps(self, eps: float) -> "TrialTraining":
        """Return the same trainings with another eps of the optimizer."""
        optimizer = dataclasses.replace(self.config.optimizer, eps=eps)
        return dataclasses.replace(self, config=dataclasses.replace(self.config, optimizer=optimizer))

    def build_trainer(self, backend: str, kept: Kept) -> Trainer:
        """Return a trainer of the backend with these modules in fp32, and those that the run keeps there."""
        names = [*(self.config.precision.keep_fp32 or ()), *kept] or None
        precision = dataclasses.replace(self.config.precision, keep_fp32=names)
        config = dataclasses.replace(self.config, precision=precision)
        return self.state.build_trainer(
            config if backend == config.backend else with_backend(config, backend)
        )

    def train(self, backend: str, kept: Kept) -> Trial:
        """Train all steps, and return the losses."""
        losses = []
        skipped = 0
        try:
            trainer = self.build_trainer(backend, kept)
            with trainer.precision.training_context():
                for number, micro_batches in enumerate(self.batches):
                    self._set_random_states(number)
                    result = trainer.step(micro_batches)
                    losses.append(float(result.loss))  # sync: a trial is its losses
                    skipped += bool(result.skipped)
        except (RuntimeError, UserError) as problem:
            if isinstance(problem, UserError) and not kept:
                raise
            # The network may not run with these modules in another dtype.
            return Trial(kept, math.nan, math.nan, trained=False, error=reason(problem))
        steps = len(self.batches)
        last_quarter = losses[-max(1, steps // 4) :]
        return Trial(kept, losses[0], statistics.fmean(last_quarter), trained=skipped < steps)

    def measure_cost(self, kept: Kept) -> tuple[float, str]:
        """Return how many times as long a step takes with these modules in fp32, and the basis as text."""
        trainers = [self.build_trainer(self.config.backend, names) for names in ((), kept)]
        plain, slower = measure_interleaved(
            trainers, self.batches[0], trainers[0].precision.device, COST_SECONDS
        )
        return speed_ratio(slower, plain)

    def _set_random_states(self, number: int) -> None:
        """Set the random states for a step, from 0; for the first one those of the state."""
        if number == 0:
            self.state.set_random_states()
        else:
            seed_process(self.config.seed + number)


def run_guard(
    state: StepState,
    console: Console,
    *,
    margin: float = MARGIN,
    steps: int = STEPS,
    file: Path | None = None,
) -> int:
    """Find the modules that must stay in fp32; print them, the option that keeps them, and what they cost.

    Args:
        state: The training at which the trials begin.
        console: Where to print.
        margin: How far the loss may be above fp32's, as a fraction of what fp32 learns.
        steps: Optimizer steps of a trial.
        file: File for the result as JSON.

    Returns:
        0 where modules or an option were found, or none is needed; 1 where nothing helps.

    Raises:
        UserError: For bad options, or if the file cannot be written.
    """
    if not 0 < margin < math.inf:
        raise UserError(f"--margin {margin}: expected a number above 0 (a fraction of what fp32 learns)")
    config = state.config
    _check_backend(config)
    called = list_called_modules(state)
    if not called:
        raise UserError(
            f"model.name={config.model.name!r}: the network calls no modules, so none can be kept in fp32"
        )
    trials = TrialTraining(state, config, state.next_steps(steps))

    def say(line: str) -> None:
        print_line(console, one_line(line))

    say(describe_recipe(config))
    say(
        f"which modules of {config.model.name} must stay in fp32 under {config.backend}, beginning with "
        f"{state.title}: {plural(len(called), 'module')}, {plural(steps, 'step')} per trial"
    )
    search = MinimalSetSearch(trials.train, config.backend, margin, say)
    result = _search(search, trials, called)
    if file is not None:
        arguments = {"backend": config.backend, "model": config.model.name, "margin": margin}
        tried = [
            {"kept": trial.kept, "loss": trial.last, "well": search.is_within_margin(trial)}
            for trial in search.trials.values()
        ]
        write_json(file, {**arguments, **vars(result), "trials": tried})
    return EXIT_NO_SET if result.outcome in (NOT_A_MODULE, NO_SET) else 0


@dataclass(frozen=True)
class SearchResult:
    """The result of `why guard`, as its JSON has it.

    Attributes:
        outcome: NO_PROBLEM, FOUND, AN_OPTION, NOT_A_MODULE or NO_SET.
        kept: The modules that have to stay in fp32.
        use: The options to copy: of the optimizer, and what keeps modules in fp32; None if nothing was found.
        cost: How many times as long a step takes with it; None unless modules were found.
    """

    outcome: str
    kept: Sequence[str] = ()
    use: str | None = None
    cost: float | None = None


def _search(search: MinimalSetSearch, trials: TrialTraining, called: Sequence[str]) -> SearchResult:
    """Search for the modules, and print what was found."""
    backend = trials.config.backend
    always = trials.config.precision.keep_fp32 or ()
    further = "further " if always else ""
    if search.start():
        search.say(f"result: no {further}module has to stay in fp32, {backend} is within the margin as it is")
        return SearchResult(NO_PROBLEM)
    options = []
    if _loses_eps(trials.build_trainer(backend, ())):
        options = [f"optimizer.eps={FP16_EPS:g}"]
        trials = trials.with_eps(FP16_EPS)
        trial = trials.train(backend, ())
        search.report(f"with {options[0]}", trial)
        if search.is_within_margin(trial):
            search.say("result: the cause is not in the modules, so none has to stay in fp32")
            search.say(f"use: {options[0]}")
            return SearchResult(AN_OPTION, use=options[0])
        search.say(f"the following trials have {options[0]}, too")
        search.train = trials.train
    modules = search.find(called)
    if modules is None:
        search.say(
            "result: even with every module in fp32, the loss is not within the margin; the cause is outside "
            "the modules: in the network's own forward, the loss, the loss scale or the weight updates"
        )
        return SearchResult(NOT_A_MODULE)
    if WHOLE in modules:
        search.say("result: no set of modules is enough, the whole network has to stay in fp32")
        names = (name for name, _ in trials.build_trainer(PLAIN, ()).model.named_parameters())
        outside = [name for name in names if not any(_is_below(name, module) for module in called)]
        if outside:
            search.say(f"parameters that belong to no called module: {some(outside)}")
        return SearchResult(NO_SET)
    cost, basis = trials.measure_cost(tuple(modules))
    options.append(f"{KEY}={','.join([*always, *modules])}")
    number = f"1 {further}module has" if len(modules) == 1 else f"{len(modules)} {further}modules have"
    search.say(f"result: {number} to stay in fp32: {', '.join(modules)}")
    search.say(f"cost: a step takes {cost:.2f}x as long as without ({basis})")
    search.say(f"use: {shlex.join(options)}")
    return SearchResult(FOUND, modules, " ".join(options), cost)


def _loses_eps(trainer: Trainer) -> bool:
    """Return whether the eps of the optimizer is 0 in the dtype of weights that it updates."""
    groups = [group for group in trainer.optimizer.param_groups if "eps" in group]
    return any(torch.tensor(g["eps"], dtype=p.dtype) == 0 for g in groups for p in g["params"])


def _check_backend(config: Config) -> None:
    """Raise UserError if the backend has no modules to keep in fp32."""
    backend = get_backend(config.backend)
    if backend.is_strict_fp32:
        raise UserError(
            f"backend={config.backend} computes in fp32, so there is no module to keep in fp32; "
            "name another backend, for example backend=fp16"
        )
    if backend.is_fp32:
        raise UserError(
            f"backend={config.backend} switches TF32 for all modules at once, so there is no module to keep "
            "in fp32; name another backend, for example backend=fp16"
        )
