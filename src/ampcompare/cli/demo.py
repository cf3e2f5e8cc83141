"""`ampcompare demo`: a whole comparison in minutes on two CPU cores, on synthetic images.

The demo goes the way of a user's own comparison. `bench` measures the speed of each backend whose dtype the
device computes natively. Then each backend trains with five seeds, in one process per backend
(`run_series`), because starting PyTorch and W&B takes longer than a training. The report takes quality from
these runs, and speed from `bench` alone. Network, steps and data are fixed in `configs/demo.yaml`.
`benchmarks/demo_decisions.py` measures how often five seeds decide the accuracy.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ampcompare.command_help import epilog
from ampcompare.config.run_series import FLAG
from ampcompare.errors import UserError
from ampcompare.precision.registry import REGISTRY
from ampcompare.runtime.formatting import listed, rough_duration
from ampcompare.runtime.help_text import BAD_INPUT, STOPPED
from ampcompare.runtime.paths import shell_command
from ampcompare.runtime.startup import let_threads_sleep

if TYPE_CHECKING:
    from rich.console import Console

    from ampcompare.analysis.bench_file import BenchFile
    from ampcompare.bench.runner import BenchmarkArm
    from ampcompare.config.load import Config

CONFIG = ("--config", "demo")
SEEDS = (1, 2, 3, 4, 5)
# Recorded by every run. Options of the user's own, such as plan.margin=1, replace it.
PLAN = ("plan.margin=0.5", f"plan.looks=[{len(SEEDS)}]")
FIXED = ("backend", "seed")  # options that the demo itself varies
BENCH_MINUTES = 0.5
BENCH_FILE = "bench.json"
DEMO_EPILOG = epilog(
    {
        "The whole demo": "ampcompare demo",
        "Shorter training": "ampcompare demo epochs=1",
        "On the CPU of a machine with a GPU": "ampcompare demo device=cpu",
    },
    {0: "success", 1: "a run failed", **BAD_INPUT, **STOPPED},
)
# For the line that says how much time is left.
START_SECONDS = 6.0  # to start a process with PyTorch and W&B
RUN_SECONDS = 0.7  # to begin and end a run
PAGE_SECONDS = 12.0  # to write the page
EVALUATION_COST = 0.3  # the time to evaluate an image, as a fraction of the time to train on it
# The commands for a network of the user's own after the demo: a purpose, and the words after `ampcompare`.
OWN_NETWORK = ("model.name=./net.py:build", "data.source=./data.py:build")
NEXT_COMMANDS = (
    ("speed and memory", ("bench", *OWN_NETWORK)),
    ("quality", ("sweep", "compare_backends", *OWN_NETWORK, "epochs=5")),
    ("all options of a run", ("run", "--help")),
)
TRAIN = (
    "import sys; from ampcompare.entrypoint import main; "
    "sys.exit(main(sys.argv[1:], 'ampcompare demo', brief=True))"
)


def demo(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Options for every run, such as epochs=1."),
    ] = None,
) -> None:
    """Run a complete comparison on synthetic images.

    The demo measures the speed of the backends that this machine computes natively, trains each backend
    with five seeds and writes a comparison page into runs/demo-DATE/report. It takes under three minutes on
    two CPU cores. It needs no account and no download.
    """
    from rich.console import Console

    from ampcompare.analysis.options import AnalysisOptions
    from ampcompare.bench.cli import build_arms
    from ampcompare.bench.training_process import run_with_torch
    from ampcompare.config.load import config_from_cli
    from ampcompare.report.options import ReportOptions
    from ampcompare.report.pipeline import make_report
    from ampcompare.runtime.console import clock, print_line

    let_threads_sleep()
    began = time.monotonic()
    console = Console(highlight=False)
    words = overrides or []
    _refuse_fixed_options(words)
    own = [*CONFIG, *PLAN, f"output_dir=runs/demo-{time.strftime('%Y%m%d-%H%M%S')}", *words]
    config = config_from_cli(own)
    folder = Path(config.output_dir)
    arms = build_arms(own)
    names = [arm.options["backend"] for arm in arms]
    timed = run_with_torch(_backends_with_speed, names, config.device)
    is_timed = len(timed) > 1
    parts = is_timed + len(names) + 1  # bench, the trainings, the report
    seeds = ", ".join(map(str, SEEDS))
    print_line(
        console,
        f"{config.model.name} on synthetic images: {', '.join(names)}, {len(SEEDS)} seeds each",
    )
    untimed = [name for name in names if name not in timed]
    if untimed:
        dtypes = listed(dict.fromkeys(REGISTRY[name].dtype for name in untimed))
        print_line(
            console,
            f"This device does not compute {dtypes} natively: "
            f"the demo compares the accuracy of {listed(untimed)}, not the speed.",
        )

    step_ms: dict[str, float] = {}  # by backend
    if is_timed:
        print_line(console, f"--- 1 of {parts}: speed by bench, about {rough_duration(60 * BENCH_MINUTES)}")
        measured = [arm for arm in arms if arm.options["backend"] in timed]
        benchmark = _measure_speed(measured, folder / BENCH_FILE, console)
        step_ms = {arm.options["backend"]: arm.step_ms or 0.0 for arm in benchmark.arms}

    # A backend that was not timed computes in fp32, as the first one does.
    seconds = [
        estimate_seconds(config, step_ms.get(name, step_ms[names[0]]) / 1e3) for name in names if step_ms
    ]
    for position, name in enumerate(names):
        title = f"--- {is_timed + position + 1} of {parts}: {name}, seeds {seeds}"
        if seconds:
            left = sum(seconds[position:]) + PAGE_SECONDS
            title = f"{title}; about {rough_duration(left)} left"
        print_line(console, title)
        _train(name, own, folder / "seeds.json")

    print_line(console, f"--- {parts} of {parts}: the report; about {rough_duration(PAGE_SECONDS)} left")
    options = AnalysisOptions(bench=str(folder / BENCH_FILE) if is_timed else None)
    make_report(ReportOptions([config.output_dir], f"{config.output_dir}/report", options), console)
    print_line(console, f"done in {clock(time.monotonic() - began)}. Next, with your own network:")
    for purpose, arguments in NEXT_COMMANDS:
        print_line(console, f"{purpose + ':':<22}{shell_command('ampcompare', *arguments)}")


def _backends_with_speed(names: Sequence[str], device: str) -> list[str]:
    """Return the backends whose speed this device can show; needs PyTorch."""
    from ampcompare.bench.doctor import backends_with_speed
    from ampcompare.system.device import resolve_device

    return backends_with_speed(names, resolve_device(device))


def _measure_speed(arms: Sequence[BenchmarkArm], file: Path, console: Console) -> BenchFile:
    """Measure the speed of the arms, and write the results for the report.

    Raises:
        UserError: An arm cannot be measured.
    """
    from ampcompare.bench.runner import Schedule, run_benchmark
    from ampcompare.runtime.atomic_files import write_json

    with console.status("") as status:
        benchmark = run_benchmark(arms, Schedule(BENCH_MINUTES), lambda line: status.update(line))
    for arm in benchmark.arms:
        if arm.failed:
            raise UserError(f"the speed of {arm.label} cannot be measured: {arm.failed}")
    write_json(file, benchmark.model_dump())
    return benchmark


def _train(backend: str, own: Sequence[str], runs_file: Path) -> None:
    """Train a backend with all seeds in one process.

    Raises:
        typer.Exit: A run failed.
    """
    from ampcompare.runtime.atomic_files import write_json
    from ampcompare.runtime.signals import run_to_completion

    write_json(runs_file, [{"overrides": [f"seed={seed}"]} for seed in SEEDS])
    options = [*own, "wandb.mode=offline", f"backend={backend}", FLAG, str(runs_file)]
    environment = {"WANDB_SILENT": "true", "PYTHONUTF8": "1"} | os.environ
    exit_code = run_to_completion([sys.executable, "-c", TRAIN, *options], environment)
    if exit_code:
        raise typer.Exit(exit_code)


def _refuse_fixed_options(overrides: Sequence[str]) -> None:
    """Raise UserError for an option that the demo itself varies."""
    from ampcompare.config.load import parse_overrides

    for key, value in parse_overrides(overrides).values:
        if key in FIXED:
            run = shell_command("ampcompare", "run", *CONFIG, *overrides)
            raise UserError(
                f"{key}={value}: the demo itself varies {' and '.join(FIXED)}; train a single run with: {run}"
            )


def estimate_seconds(config: Config, step_seconds: float) -> float:
    """Return about how long one backend's trainings take, in seconds, from the time of one step."""
    batches = -(-(config.data.train_limit or 0) // config.batch_size)
    steps = config.epochs * -(-batches // config.training.accumulate)
    if config.max_steps is not None:
        steps = min(steps, config.max_steps)
    evaluated = -(-config.epochs // config.eval.every) * (config.data.test_limit or 0)
    each_run = RUN_SECONDS + (steps + EVALUATION_COST * evaluated / config.batch_size) * step_seconds
    return START_SECONDS + len(SEEDS) * each_run
