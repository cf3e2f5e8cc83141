"""`ampcompare demo`: ResNet50 in fp32 and under two mixed backends on made-up images, in minutes anywhere.

Speed is measured by `bench`, quality by three trainings. Network and batch size stay; what a machine decides
is the half type and the number of steps.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ampcompare.errors import UserError
from ampcompare.program.place import as_typed
from ampcompare.program.starting import let_threads_sleep

if TYPE_CHECKING:
    from ampcompare.config.load import Config

BACKENDS = {"float16": ("none", "native", "apex_o1"), "bfloat16": ("none", "native_bf16", "apex_o1_bf16")}
CONFIG = ("--config", "demo")
# A run, without the last lines on what to do with it.
TRAIN = (
    "import sys; from ampcompare.entrypoint import main; "
    "sys.exit(main(sys.argv[1:], 'ampcompare demo', brief=True))"
)
EPOCHS = 4
# Steps an epoch. The lowest shows a learning curve; above the highest nothing new is seen.
RUNGS = (6, 8, 12, 16, 24, 32, 48, 64)
ROWS_AN_EPOCH = 6  # at most
# Seconds. The whole is to stay within 180 on an idle machine.
MEASURING = 30.0
FOR_STEPS = 80.0
START = 7.0  # of a run: PyTorch and W&B begin and end, the network is made
EVALUATION = 10.0  # of 200 images, in training steps in fp32: 25 batches of forward alone
PAGE = 10.0


def demo(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Options of every run, such as epochs=1.")
    ] = None,
) -> None:
    """Train and compare three backends on synthetic data. ResNet50, offline, up to the comparison page."""
    from rich.console import Console

    from ampcompare.bench import output
    from ampcompare.bench.commands import build_arms
    from ampcompare.bench.runner import Schedule, run_benchmark
    from ampcompare.config.arguments import parse
    from ampcompare.program.child import see_through
    from ampcompare.program.console import clock, print_line
    from ampcompare.program.files import write_json
    from ampcompare.report.command import make_report
    from ampcompare.report.request import Request
    from ampcompare.sweeps.order import in_blocks

    let_threads_sleep()
    console, began = Console(highlight=False), time.monotonic()

    def say(line: str) -> None:
        print_line(console, line)

    given = [f"output_dir=runs/demo-{time.strftime('%Y%m%d-%H%M%S')}", *(words or [])]
    config = parse([*CONFIG, *given])
    if config.backend != parse([*CONFIG]).backend or any(w.lstrip("-").startswith("backend=") for w in given):
        alone = as_typed("ampcompare", "run", *CONFIG, *(words or []))
        raise UserError(f"the demo trains {', '.join(BACKENDS['float16'])}; one backend alone: {alone}")
    folder = config.output_dir
    say(
        f"{config.model.name} is trained three times on made-up images, once in fp32 and twice in mixed "
        f"precision; no account, no download. First, what a training step costs here: {about(MEASURING)}"
    )
    backends = BACKENDS[_half_type(config)]
    arms = build_arms([*CONFIG, *given, f"backend={','.join(backends)}"])
    with console.status("") as status:
        speeds = run_benchmark(arms, Schedule(MEASURING / 60), lambda line: status.update(line))
    if failed := [row for row in speeds.arms if row.failed]:
        raise UserError(f"no training step of {failed[0].label} can be measured here: {failed[0].failed}")
    output.print_table(speeds, console, console.width if console.is_terminal else None)
    bench = Path(folder, "bench.json")
    write_json(bench, output.as_json(speeds))
    seconds = {row.label: (row.step_ms or 0.0) / 1e3 for row in speeds.arms}
    rung = choose_rung(sum(seconds.values()))
    own = [*words_of(rung, config.batch_size * config.training.accumulate), *given]
    final = parse([*CONFIG, *own])
    steps, evaluations = _steps(final), -(-final.epochs // final.eval.every)
    order = [backend for backend, _ in in_blocks(folder, backends, [None])]
    environment = {"WANDB_SILENT": "true", "PYTHONUTF8": "1"} | os.environ
    for number, backend in enumerate(order, 1):
        expected = START + steps * seconds[backend] + evaluations * EVALUATION * seconds["none"]
        say(f"--- {number} of 4: {backend}, {steps} steps, {about(expected)}")
        command = [sys.executable, "-c", TRAIN, *CONFIG, "wandb.mode=offline", *own, f"backend={backend}"]
        if code := see_through(command, environment):
            raise typer.Exit(code)
    say(f"--- 4 of 4: the page, {about(PAGE)}")
    make_report(Request([folder], f"{folder}/report", bench=str(bench)), console)
    say(f"done in {clock(time.monotonic() - began)}")
    if any(row.facts.get("is_computed_in_fp32") for row in speeds.arms):
        say(f"with units for the half type:      {as_typed('ampcompare', 'demo', 'device=cuda')}")
    say(f"speed and memory of your network:  {as_typed('ampcompare', 'bench', 'model.name=./net.py:build')}")
    say(f"a training of your own:            {as_typed('ampcompare', 'run', '--help')}")


def _half_type(config: Config) -> str:
    """The half type to train in here, by the rule of `ampcompare doctor`."""
    from ampcompare.machine.device import is_channels_last, resolve_device
    from ampcompare.machine.probe import half_type, probe

    device = resolve_device(config.device)
    return half_type(probe(device, channels_last=is_channels_last(config.memory_format, device)))


def choose_rung(seconds_a_round: float) -> int:
    """Steps an epoch: the most whose steps fit, `seconds_a_round` for one under each backend.

    >>> choose_rung(0.4), choose_rung(1.6), choose_rung(60.0)
    (48, 12, 6)
    """
    fitting = [rung for rung in RUNGS if EPOCHS * rung * seconds_a_round <= FOR_STEPS]
    return max(fitting, default=RUNGS[0])


def words_of(rung: int, images_a_step: int) -> list[str]:
    """The options of every run that go by the number of steps an epoch: the scale grows once in each, so that
    it is seen to.
    """
    return [
        f"epochs={EPOCHS}",
        f"data.train_limit={rung * images_a_step}",
        f"precision.growth_interval={rung}",
        f"log.every={-(-rung // ROWS_AN_EPOCH)}",
        f"diagnostics.every={max(1, rung // 2)}",
    ]


def _steps(config: Config) -> int:
    """Optimizer steps of a run."""
    batches = -(-(config.data.train_limit or 0) // config.batch_size)
    steps = config.epochs * -(-batches // config.training.accumulate)
    return steps if config.max_steps is None else min(steps, config.max_steps)


def about(seconds: float) -> str:
    """Seconds as one says them.

    >>> about(7.0), about(38.0), about(150.0), about(601.0)
    ('about 10 s', 'about 40 s', 'about 2 min 30 s', 'about 10 min')
    """
    minutes, rest = divmod(max(10, round(seconds / 10) * 10), 60)
    told = [f"{minutes} min"] * bool(minutes) + [f"{rest} s"] * bool(rest and minutes < 10)
    return f"about {' '.join(told)}"
