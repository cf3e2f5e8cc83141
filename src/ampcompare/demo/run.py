"""The demo from its words to its page: measure, choose, train under each backend, report. Free of torch.

Every line says what comes next and how long it will take; how long is corrected by what was taken so far.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from ampcompare.config.arguments import parse
from ampcompare.config.load import Config
from ampcompare.demo import plan
from ampcompare.errors import UserError
from ampcompare.program.child import answer_of, see_through
from ampcompare.program.console import clock
from ampcompare.program.place import as_typed
from ampcompare.sweeps.order import in_blocks

MEASURING = 20.0  # seconds: PyTorch begins, the probe, a few steps of the network in two types
CONFIG = ("--config", "demo")
# A worker that waits for another sleeps instead of spinning: beside other work on the same cores spinning
# made ResNet50's steps ten times as long (two cores, a load of 8: 12 s instead of 1.3 s). W&B's own lines
# would say thrice that nothing is uploaded.
ENVIRONMENT = {"OMP_WAIT_POLICY": "passive", "WANDB_SILENT": "true"}

Say = Callable[[str], None]


def run_demo(words: Sequence[str], say: Say, report: Callable[[str, str], object]) -> int:
    """Train and compare; returns the exit code. `words` are options of every run, which go before our choice;
    `report(folder, out)` writes the page. Raises UserError.
    """
    began = time.monotonic()
    if names_backend(words):
        raise UserError(
            f"{' '.join(words)}: the demo trains {', '.join(plan.BACKENDS['float16'])}; one backend alone: "
            + as_typed("ampcompare", "run", *CONFIG, *words)
        )
    words = [f"output_dir=runs/demo-{time.strftime('%Y%m%d-%H%M%S')}", *words]
    config = parse([*CONFIG, *words])
    say(
        f"{config.model.name} is trained three times on made-up images, once in fp32 and twice in mixed "
        "precision; no account, no download. "
        f"First, what a training step costs here: about {plan.about(MEASURING)}"
    )
    costs = measured(words)
    dtype = plan.choose_type(costs)
    say(f"{costs.device}: {_rates(costs, dtype)}{_load()}")
    say(plan.why_type(costs, dtype))
    rung = plan.choose_rung(costs.seconds["float32"] + 2 * costs.seconds[dtype])
    own = [*plan.words_of(rung, config.batch_size * config.training.accumulate), *words]
    final = parse([*CONFIG, *own])
    order = [backend for backend, _ in in_blocks(final.output_dir, plan.BACKENDS[dtype], [None])]
    steps = _steps(final)
    expected = plan.parts(order, dtype, costs, steps, -(-final.epochs // final.eval.every))
    say(
        f"{plan.EPOCHS} epochs of {rung} steps, as many as the time allows"
        if steps == plan.EPOCHS * rung
        else f"{steps} steps, as asked for"
    )
    status, taken = _train(order, own, expected, say)
    if status:
        return status
    _announce(expected, taken, say)
    report(final.output_dir, f"{final.output_dir}/report")
    say(f"done in {clock(time.monotonic() - began)}")
    say(f"what this machine is good for:   {as_typed('ampcompare', 'doctor')}")
    say(f"a training of your own:          {as_typed('ampcompare', 'run', '--help')}")
    return 0


def names_backend(words: Sequence[str]) -> bool:
    """Whether the words ask for a backend, in whichever of their forms. Raises UserError for bad ones."""
    by_word = any(word.lstrip("-+").partition("=")[0] == "backend" for word in words)
    return by_word or parse([*CONFIG, *words]).backend != parse([*CONFIG]).backend


def measured(words: Sequence[str]) -> plan.Costs:
    """What training costs here, from a process of its own. Raises UserError."""
    request = json.dumps({"words": [*CONFIG, *words]})
    command = [sys.executable, "-m", "ampcompare.demo.measure", request]
    done = answer_of(command, _environment())
    if done.returncode:
        (last,) = done.stderr.strip().splitlines()[-1:] or [f"no message, exit code {done.returncode}"]
        if not (message := last.partition("UserError: ")[2]):
            sys.stderr.write(done.stderr)
        raise UserError(f"demo: no training step can be measured here: {message or last}")
    return plan.Costs(**json.loads(done.stdout.strip().splitlines()[-1]))


def _train(
    order: Sequence[str], words: Sequence[str], expected: Sequence[plan.Part], say: Say
) -> tuple[int, list[float]]:
    """Train under each backend in turn; returns an exit code that is not 0, else 0; the seconds of each."""
    taken: list[float] = []
    for backend in order:
        _announce(expected, taken, say)
        start = time.monotonic()
        command = [sys.executable, "-m", "ampcompare.demo.train", *CONFIG, "wandb.mode=offline", *words]
        if code := see_through([*command, f"backend={backend}"], _environment()):
            return code, taken
        taken.append(time.monotonic() - start)
    return 0, taken


def _announce(expected: Sequence[plan.Part], taken: Sequence[float], say: Say) -> None:
    """What comes next, how long it will take, and how long all that is left."""
    number, left = len(taken), plan.seconds_left(expected, taken)
    now = left - plan.seconds_left(expected, taken, skip=1)
    then = [part.name for part in expected[number + 1 :]]
    rest = f"; then {', '.join(then)}: {plan.about(left)} left in all" if then else ""
    say(f"--- {number + 1} of {len(expected)}: {expected[number].name}, about {plan.about(now)}{rest}")


def _rates(costs: plan.Costs, dtype: str) -> str:
    each = [
        f"{plan.SHORT[kind]} {costs.seconds[kind]:.2g} s"
        for kind in ("float32", dtype)
        if kind in costs.seconds
    ]
    return f"a training step takes {', '.join(each)}"


def _load() -> str:
    """What else the machine does, where that is much: it makes all of this slower."""
    cores, load = os.cpu_count() or 1, os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load <= 1.5 * cores:
        return ""
    return f" (beside other work: a load of {load:.0f} on {cores} cores; speeds will be of that, too)"


def _steps(config: Config) -> int:
    """Optimizer steps of a run."""
    images = config.data.train_limit or 0
    batches = -(-images // config.batch_size)
    steps = config.epochs * -(-batches // config.training.accumulate)
    return steps if config.max_steps is None else min(steps, config.max_steps)


def _environment() -> Mapping[str, str]:
    return ENVIRONMENT | os.environ
