"""`ampcompare bench`, `ampcompare doctor`. Each imports what it needs when it runs."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ampcompare.errors import UserError
from ampcompare.precision.backends import REGISTRY

if TYPE_CHECKING:
    from ampcompare.bench.compare import Arm

LISTED = ("backend", "execution", "batch_size")  # what may be a list, as backend=none,native
USUAL = ("none", "native", "native_bf16", "apex_o1")


def arms_of(words: list[str]) -> list[Arm]:
    """An arm for each combination of what is listed, fp32 first, each checked. Raises UserError."""
    from ampcompare.bench.compare import Arm
    from ampcompare.config.arguments import parse

    rest, listed = [], {"backend": [*USUAL]}
    for word in words:
        key, equals, value = word.removeprefix("--").partition("=")
        if key in LISTED and equals:
            listed[key] = [*dict.fromkeys(one.strip() for one in value.strip("[]").split(","))]
        else:
            rest.append(word)
    listed["backend"].sort(key=lambda name: not (name in REGISTRY and REGISTRY[name].is_fp32))
    arms = []
    for values in product(*listed.values()):
        options = dict(zip(listed, values, strict=True))
        given = (*rest, *(f"{key}={value}" for key, value in options.items()))
        parse(given)
        differs = [f"{k}={v}" for k, v in options.items() if k != "backend" and len(listed[k]) > 1]
        arms.append(Arm(options, given, " ".join([options["backend"], *differs])))
    return arms


def bench(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="Options of a run; backend, execution, batch_size may be lists."
        ),
    ] = None,
    config: Annotated[str | None, typer.Option(metavar="NAME", help="A config, such as demo.")] = None,
    minutes: Annotated[float, typer.Option(min=0.1, help="Time for the rounds, at most.")] = 1.0,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", dir_okay=False, help="Write it all, for report --bench.")
    ] = None,
    chart: Annotated[
        Path | None, typer.Option(metavar="FILE", dir_okay=False, help="Draw it, as .png or .svg.")
    ] = None,
) -> None:
    """Speed and memory of a training step under each backend, measured in turns.

    Network and data are those of a run: model.name=./net.py:build data.source=./data.py:build.
    """
    from rich.console import Console

    from ampcompare.bench import show
    from ampcompare.bench.compare import compare
    from ampcompare.program.console import print_line
    from ampcompare.program.files import write_json

    if chart is not None and chart.suffix.lower() not in (".png", ".svg"):
        raise UserError(f"--chart {str(chart)!r}: expected a name that ends in .png or .svg")
    given = [*(["--config", config] if config else []), *(words or [])]
    arms, console = arms_of(given), Console(highlight=False)
    print_line(
        console, f"{', '.join(arm.label for arm in arms)} and a control take turns for {minutes:g} min"
    )
    with console.status("") as status:
        found = compare(arms, minutes, lambda line: status.update(line))
    if why := found.arms[0].failed:
        raise UserError(f"{found.arms[0].label}: {why}; as a run: ampcompare run {' '.join(arms[0].words)}")
    console.print(show.table(found))
    for line in show.sentences(found, arms):
        print_line(console, line)
    if json is not None:
        write_json(json, show.as_json(found))
    if chart is not None:
        show.draw(found, chart)


def doctor() -> None:
    """Say what this machine can do. Device, types and their rates, compiler, W&B account, data."""
    from ampcompare.bench.doctor import run_doctor

    raise typer.Exit(run_doctor(typer.echo))
