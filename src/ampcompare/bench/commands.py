"""`ampcompare bench ...`, `ampcompare doctor`: the benchmarks. Each imports what it needs when it runs."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from ampcompare.errors import UserError
from ampcompare.program.place import CHECKOUT

Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Folder for JSON and Markdown of the result.")]
Backends = Annotated[str | None, typer.Option(help="Backends, separated by commas; default: all.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")]

bench = typer.Typer(help="Measure speed of training, overhead, batches a second.")


def _in_checkout(module: str) -> Any:
    """A module of the checkout's `benchmarks/`. Raises UserError where there is none."""
    if CHECKOUT is None:
        raise UserError(
            "this benchmark measures AMP Compare itself and needs its checkout; "
            "bench throughput measures your machine"
        )
    sys.path.insert(0, str(CHECKOUT / "benchmarks"))
    return import_module(module)


@bench.command()
def overhead(
    rounds: Annotated[int, typer.Option(min=2, help="Interleaved rounds, over 12 processes.")] = 96,
    out: Out = None,
) -> None:
    """In a checkout: our loop against the bare one, on one CPU thread. Exit code 1 if not within limits."""
    from rich.console import Console

    if not _in_checkout("overhead_table").bench_overhead(rounds, out, Console(highlight=False)):
        raise typer.Exit(1)


@bench.command()
def throughput(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Of every run, as model.name=resnet18.")
    ] = None,
    backends: Backends = None,
    execution: Annotated[
        str, typer.Option(help="Executions, separated by commas; also loops by hand: plain and seed-style.")
    ] = "eager",
    batch_sizes: Annotated[str, typer.Option(help="Batch sizes, separated by commas.")] = "128",
    device: Device = "auto",
    rounds: Annotated[int, typer.Option(min=1, help="Times each combination is measured, in turn.")] = 6,
    steps: Annotated[int, typer.Option(min=5, help="Training steps of one measurement.")] = 100,
    out: Out = Path("bench-results"),
    go_on: Annotated[
        bool, typer.Option("--go-on", help="Keep rounds in DIR; begin with those there.")
    ] = False,
) -> None:
    """Images a second of every combination, speed-up against `none`, and share of the machine's limit."""
    from rich.console import Console

    from ampcompare.bench.throughput.table import bench_throughput
    from ampcompare.precision.backends import REGISTRY

    try:
        sizes = [int(size) for size in batch_sizes.split(",")]
    except ValueError:
        raise UserError(f"--batch-sizes {batch_sizes!r}: expected whole numbers, with commas") from None
    console = Console(highlight=False)
    names, executions = backends.split(",") if backends else [*REGISTRY], execution.split(",")
    bench_throughput(names, executions, sizes, rounds, steps, device, words or [], out, console, go_on)


@bench.command()
def data(
    rounds: Annotated[int, typer.Option(min=2, help="Interleaved rounds.")] = 8,
    images: Annotated[int, typer.Option(min=128, help="Images in an epoch.")] = 5120,
    out: Out = None,
) -> None:
    """In a checkout: batches a second beside PIL and a DataLoader. Exit code 1 below 30 times."""
    from rich.console import Console

    if not _in_checkout("batches_table").bench_data(rounds, images, out, Console(highlight=False)):
        raise typer.Exit(1)


def doctor(
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it all into a file, for programs.")
    ] = None,
) -> None:
    """Say what this machine can do. Device, types and their rates, compiler, W&B account, data."""
    from ampcompare.bench.doctor import run_doctor

    raise typer.Exit(run_doctor(typer.echo, json))
