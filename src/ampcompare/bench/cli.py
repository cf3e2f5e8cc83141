"""`ampcompare bench` and `ampcompare doctor`. Each imports what it needs when it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ampcompare.command_help import epilog
from ampcompare.precision.registry import PLAIN, REGISTRY
from ampcompare.runtime.help_text import STOPPED

if TYPE_CHECKING:
    from rich.console import Console

    from ampcompare.analysis.bench_file import BenchFile
    from ampcompare.bench.runner import BenchmarkArm

LISTED = ("backend", "execution", "batch_size", "memory_format")  # options that may be lists
BENCH_EPILOG = epilog(
    {
        "Your own network and data, for a later report": (
            "ampcompare bench model.name=./net.py:build data.source=./data.py:build --json bench.json"
        ),
        "Two backends, eager and compiled": (
            "ampcompare bench --config demo backend=none,native execution=eager,compile"
        ),
        "How speed and memory grow with the batch size": (
            "ampcompare bench --config demo batch_size=16,32,64"
        ),
    },
    {
        0: "all trainings were measured",
        1: "a training failed; the others were measured",
        2: "an option or an input is wrong, or the baseline cannot be measured",
        **STOPPED,
    },
)
DOCTOR_EPILOG = epilog(
    {"Check this machine": "ampcompare doctor"}, {0: "runs can start here", 1: "no run can start here"}
)


def _default_backends_of(device: str) -> list[str]:
    from ampcompare.bench.doctor import default_backends
    from ampcompare.system.device import resolve_device

    return default_backends(resolve_device(device))


def build_arms(overrides: list[str]) -> list[BenchmarkArm]:
    """Return one arm for each combination of the listed options, fp32 first.

    Args:
        overrides: Options of a run. Those in LISTED may be lists, as `backend=none,native`.

    Raises:
        UserError: An option or a value is not allowed.
    """
    from ampcompare.bench.runner import BenchmarkArm
    from ampcompare.bench.training_process import run_with_torch
    from ampcompare.config.load import check_split_lists, config_from_cli, split_override
    from ampcompare.config.option_spec import split_list

    check_split_lists(overrides, LISTED)
    rest: list[str] = []
    listed: dict[str, list[str]] = {"backend": [PLAIN]}
    is_default = True
    for override in overrides:
        key, equals, value = split_override(override)
        if key in LISTED and equals:
            listed[key] = [*dict.fromkeys(split_list(value) or [value])]
            is_default &= key != "backend"
        else:
            rest.append(override)
    combinations = [_combine(rest, listed, values) for values in product(*listed.values())]
    configs = [config_from_cli(own) for _, own in combinations]  # A typo is found before torch is loaded.
    if is_default:
        listed["backend"] = run_with_torch(_default_backends_of, configs[0].device)
    listed["backend"].sort(key=lambda name: not (name in REGISTRY and REGISTRY[name].is_strict_fp32))
    arms = []
    for values in product(*listed.values()):
        options, own = _combine(rest, listed, values)
        if is_default:
            config_from_cli(own)
        differing = [f"{k}={v}" for k, v in options.items() if k != "backend" and len(listed[k]) > 1]
        arms.append(BenchmarkArm(options, own, " ".join([options["backend"], *differing])))
    return arms


def _combine(
    rest: Sequence[str], listed: Mapping[str, list[str]], values: Sequence[str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the listed options with these values, and all overrides."""
    options = dict(zip(listed, values, strict=True))
    return options, (*rest, *(f"{key}={value}" for key, value in options.items()))


def bench(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help=f"Options of a run. {', '.join(LISTED[:-1])} and {LISTED[-1]} may be comma-separated lists. "
            "Every combination is measured.",
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Config file to start from: a path, or a name such as demo or reference."
        ),
    ] = None,
    minutes: Annotated[
        float,
        typer.Option(
            metavar="MINUTES",
            min=0.1,
            help="Time limit for the measured rounds of all backends together, without preparation; with "
            "--restarts of each start.",
        ),
    ] = 1.0,
    restarts: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Number of times that the process of each backend is started. From 3 on, the confidence "
            "intervals hold for other starts, too, and not for these processes only.",
        ),
    ] = 1,
    prepare_minutes: Annotated[
        float,
        typer.Option(
            metavar="MINUTES",
            min=0.1,
            help="Time limit for loading all backends, and again for the first steps of each, which compile.",
        ),
    ] = 10.0,
    json: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", dir_okay=False, help="Write all results as JSON, for `ampcompare report --bench`."
        ),
    ] = None,
) -> None:
    """Measure speed and memory of a training step per backend.

    Each backend trains in its own process, a few steps at a time, interleaved with the others. The baseline
    is measured twice: the second measurement is an A/A control. It is strict fp32 if that is among the
    backends, otherwise the first of them. Takes about a minute, after the preparation. Without backend=...,
    the backends that suit the device are measured.
    """
    from rich.console import Console

    from ampcompare.bench import output
    from ampcompare.bench.runner import Schedule, run_benchmark
    from ampcompare.config.load import config_from_cli
    from ampcompare.config.recipes import describe_recipe

    arms = build_arms([*(["--config", config] if config else []), *(overrides or [])])
    schedule = Schedule(minutes, prepare_minutes, starts=restarts)
    console = Console(highlight=False)
    _print_prose(console, output.describe_plan(arms, schedule))
    _print_prose(console, describe_recipe(config_from_cli(arms[0].overrides)))
    with console.status("") as status:
        result = run_benchmark(arms, schedule, lambda line: status.update(line))
    raise typer.Exit(show_result(result, arms, console, json=json))


def show_result(
    result: BenchFile,
    arms: Sequence[BenchmarkArm],
    console: Console,
    *,
    json: Path | None = None,
) -> int:
    """Print the result of a benchmark, write its files, and return the exit code: 1 if a training failed.

    Args:
        arms: The arms that were to be measured, the baseline first.
        json: The file for the result; None: none is written.
    """
    from ampcompare.bench import output
    from ampcompare.runtime.atomic_files import write_json
    from ampcompare.runtime.console import print_line

    output.print_table(result, console)
    for line in output.sentences(result):
        _print_prose(console, line)
    next_command = output.next_command(result, arms)
    if next_command:
        print_line(console, next_command)
    if json is not None:
        write_json(json, result.model_dump())
    return int(any(arm.failed for arm in (*result.arms, result.control)))


def _print_prose(console: Console, line: str) -> None:
    """Print a line that a terminal must not break inside a word; a file gets it as one line."""
    from ampcompare.runtime.console import print_line

    if console.is_terminal:
        console.print(line, markup=False, highlight=False, emoji=False)
    else:
        print_line(console, line)


def doctor() -> None:
    """Check what this machine can do.

    Prints the device, the throughput of each dtype, whether torch.compile works, the W&B account and the
    data that are already here. Takes a few seconds and needs no network.
    """
    from ampcompare.bench.doctor import run_doctor

    raise typer.Exit(run_doctor(typer.echo))
