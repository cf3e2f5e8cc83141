"""`ampcompare why guard`: the smallest set of modules that must stay in fp32, found in short trainings."""

import dataclasses
import math
import shlex
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from torch import nn

from ampcompare.config.load import Config
from ampcompare.data.batch import map_tensors
from ampcompare.errors import UserError, one_line, reason
from ampcompare.precision import get_backend
from ampcompare.precision.keep_fp32 import KeepFp32Error, match_modules
from ampcompare.precision.registry import PLAIN
from ampcompare.runtime.atomic_files import write_json
from ampcompare.runtime.console import print_line
from ampcompare.training.losses_and_metrics import call
from ampcompare.training.run_context import RunContext, make_config, prepare_run
from ampcompare.training.trainer import Trainer
from ampcompare.why.op_profile import in_turns, ratio

MARGIN, STEPS = 0.05, 40
COST_SECONDS = 5.0  # for what the kept modules cost
LEARNED = 0.01  # of the first loss: what fp32 learns at least, for a share of it to mean anything
NOT_FOUND = 1  # the exit code where keeping modules does not help
KEY, WHOLE = "precision.keep_fp32", "*"
Kept = tuple[str, ...]


@dataclass(frozen=True)
class Trial:
    """A short training: its first loss, and the mean over the last quarter of its steps, NaN where it failed.
    `trained`: whether any step was taken; each that overflows is skipped.
    """

    kept: Kept
    first: float
    last: float
    trained: bool = True


@dataclass
class Hunt:
    """The search. `train` makes a trial of a backend with modules kept; `say` takes a line for each."""

    train: Callable[[str, Kept], Trial]
    backend: str
    margin: float
    say: Callable[[str], None]
    bound: float = math.inf
    trials: dict[Kept, Trial] = field(default_factory=dict)

    def begin(self) -> bool:
        """fp32 and the plain backend; whether that is within the margin as it is. Raises UserError where fp32
        learns too little in these steps for a share of that to tell anything.
        """
        base = self.train(PLAIN, ())
        self.say(f"fp32: loss {base.first:.4g} to {base.last:.4g}")
        learned = base.first - base.last
        if not learned > LEARNED * abs(base.first):
            raise UserError(
                f"fp32 learns too little here (loss {base.first:.4g} to {base.last:.4g}) for a share of that "
                "to be a margin; take more --steps, or another optimizer.lr"
            )
        self.bound = base.last + self.margin * learned
        return self.cures((), "nothing")

    def cures(self, kept: Kept, what: str = "") -> bool:
        """Whether a training with these kept is within the margin; each set is tried once."""
        if kept not in self.trials:
            trial = self.trials[kept] = self.train(self.backend, kept)
            is_well = self.is_well(trial)
            mark = ", within the margin" if is_well else "" if trial.trained else ", each step skipped"
            self.say(f"{what or some_of(kept)} kept: loss {trial.last:.4g}{mark}")
        return self.is_well(self.trials[kept])

    def is_well(self, trial: Trial) -> bool:
        """Whether its loss is at most the margin above that of fp32."""
        return trial.trained and trial.last <= self.bound  # NaN is not

    def find(self, called: Sequence[str]) -> list[str] | None:
        """A smallest set of modules that cures when kept; None where keeping all of the network does not.

        What is deepest is tried first: a module that calls others is found only where these are not enough,
        as what overflows is then in its own forward.
        """
        if not self.cures((WHOLE,), "the whole network"):
            return None
        deepest_first = sorted(called, key=lambda name: -name.count("."))
        found = minimal([*deepest_first, WHOLE], lambda one: self.cures(one))
        return sorted(found, key=[*called, WHOLE].index)


def minimal(items: Sequence[str], cures: Callable[[Kept], bool]) -> list[str]:
    """A set of `items` that cures and of which none can be left out, in their order.

    All items are known to cure, none at all is known not to; neither is asked. Where more of the items never
    do harm, the set is minimal. Where they do, or the answers are noisy, it is one that cured.

    Bisection over how many of the items, from the first on, are enough: the last of these is needed. Then the
    same over those before it, the found one being there each time, until the found ones are enough alone
    (Zeller & Hildebrandt 2002, with the order of Junker's QuickXplain 2004). With k in the result at most
    k times (log2 of the items, rounded up, plus 1) sets are asked.

    >>> asked = []
    >>> minimal("abcdefgh", lambda kept: asked.append(kept) or {"b", "f"} <= {*kept}), len(asked)
    (['b', 'f'], 7)
    """

    def in_order(chosen: Sequence[str]) -> Kept:
        return tuple(item for item in items if item in {*chosen})

    found: list[str] = []
    enough = len(items)  # so many from the first on, with the found ones, are known to cure
    while enough and not (found and cures(in_order(found))):
        too_few = 0  # and so many not
        while enough - too_few > 1:
            middle = (too_few + enough) // 2
            if cures(in_order([*items[:middle], *found])):
                enough = middle
            else:
                too_few = middle
        enough -= 1
        found.append(items[enough])
    return list(in_order(found))


def _is_below(name: str, above: str) -> bool:
    return not above or name.startswith(f"{above}.")


def called_by(setting: RunContext, config: Config) -> list[str]:
    """The names of the modules that a forward calls, in the order of their first call, without those that
    are kept anyway. Raises UserError for a name to be kept that there is not.
    """
    model = setting.build_trainer(config).model
    order: dict[nn.Module, None] = {}
    hooks = [m.register_forward_pre_hook(lambda m, _: order.setdefault(m)) for m in model.modules()]
    inputs = map_tensors(setting.first_steps(1)[0][0][0], lambda tensor: tensor[:2])
    with torch.no_grad():
        call(model.train(), inputs)
    for hook in hooks:
        hook.remove()
    names = {module: name for name, module in reversed([*model.named_modules()])}
    try:
        always = match_modules(model, config.precision.keep_fp32 or ())
    except KeepFp32Error as problem:
        raise UserError(problem) from None
    every = (names[module] for module in order if names[module])
    return [name for name in every if not any(name == k or _is_below(name, k) for k in always)]


def run_guard(
    words: Sequence[str],
    console: Console,
    *,
    margin: float = MARGIN,
    steps: int = STEPS,
    file: Path | None = None,
) -> int:
    """Find the modules, print how and what they cost; 0 where they were found or none is needed, 1 where
    keeping modules does not help. Raises UserError.
    """
    if not 0 < margin < math.inf:
        raise UserError(f"--margin {margin}: expected a number above 0, a share of what fp32 learns")
    config = make_config(words)
    if get_backend(config.backend).is_fp32:
        is_strict = get_backend(config.backend).is_strict_fp32
        why = "is fp32 here" if is_strict else "has TF32 on or off for all modules, none can be kept in fp32"
        raise UserError(f"backend={config.backend}: {why}; name another backend, such as backend=fp16")
    setting = prepare_run(config)
    called = called_by(setting, dataclasses.replace(config, backend=PLAIN))
    if not called:
        raise UserError(f"model.name={config.model.name!r}: calls no modules to choose from")
    batches = setting.first_steps(steps)

    def say(line: str) -> None:
        print_line(console, one_line(line))

    def with_kept(backend: str, kept: Kept) -> Config:
        names = [*(config.precision.keep_fp32 or ()), *kept] or None
        precision = dataclasses.replace(config.precision, keep_fp32=names)
        tf32 = config.tf32 and backend != PLAIN
        return dataclasses.replace(config, backend=backend, precision=precision, tf32=tf32)

    def train(backend: str, kept: Kept) -> Trial:
        losses = []
        try:
            trainer = setting.build_trainer(with_kept(backend, kept))
            with trainer.precision.training_context():
                for number, one in enumerate(batches):
                    torch.manual_seed(config.seed + number)
                    losses.append(float(trainer.step(one).loss))  # sync: a trial is its losses
        except RuntimeError as problem:  # a network that cannot be computed with just these in another type
            say(f"failed: {reason(problem)}")
            return Trial(kept, math.nan, math.nan, trained=False)
        skipped = int(trainer.precision.skipped_steps())  # sync: as above
        return Trial(kept, losses[0], statistics.fmean(losses[-max(1, steps // 4) :]), skipped < steps)

    say(f"{config.backend} on {config.model.name}: {len(called)} modules, {steps} steps each trial")
    hunt = Hunt(train, config.backend, margin, say)
    told: dict[str, object] = {"outcome": "no problem", "kept": [], "use": None, "cost": None}
    if hunt.begin():
        say(f"within {margin:.0%} of what fp32 learns: nothing has to be kept in fp32")
    elif (found := hunt.find(called)) is None:
        told["outcome"] = "not a module"
        say("not even with the whole network in fp32: what is left is the loss, its scale, the updates")
    elif WHOLE in found:
        told["outcome"] = "no set of modules"
        say("no set of modules helps: only the whole network in fp32 does")
        if outside := parameters_outside(
            setting.build_trainer(dataclasses.replace(config, backend=PLAIN)), called
        ):
            say(f"parameters outside of the modules that the forward calls: {some_of(outside, 'parameters')}")
    else:
        use = f"{KEY}={','.join([*(config.precision.keep_fp32 or ()), *found])}"
        trainers = [setting.build_trainer(with_kept(config.backend, kept)) for kept in ((), tuple(found))]
        plain, slower = in_turns(trainers, batches[0], setting.world.device, COST_SECONDS)
        value, how = ratio(slower, plain)
        told |= {"outcome": "found", "kept": found, "use": use, "cost": value}
        noun = "this module" if len(found) == 1 else f"these {len(found)} modules"
        say(f"to stay within the margin {config.backend} needs {noun} in fp32: {', '.join(found)}")
        say(f"a step then takes {value:.2f} times as long ({how})")
        say(f"use: {shlex.quote(use)}")
    if file is not None:
        trials = [
            {"kept": trial.kept, "loss": trial.last, "well": hunt.is_well(trial)}
            for trial in hunt.trials.values()
        ]
        about = {"backend": config.backend, "model": config.model.name, "margin": margin}
        write_json(file, {**about, **told, "trials": trials})
    return NOT_FOUND if told["outcome"] in ("not a module", "no set of modules") else 0


def parameters_outside(trainer: Trainer, called: Sequence[str]) -> list[str]:
    """Return the names of the parameters that no called module holds, itself or in a module below it."""
    names = (name for name, _ in trainer.model.named_parameters())
    return [name for name in names if not any(_is_below(name, module) for module in called)]


def some_of(names: Sequence[str], noun: str = "modules") -> str:
    """The names, of many how many and the ends."""
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} {noun} ({names[0]} to {names[-1]})"
