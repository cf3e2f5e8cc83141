"""`ampcompare reproduce`: the list, the runs with their report, a sweep file, or runs that exist judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ampcompare.errors import UserError, reason
from ampcompare.program.files import make_folder
from ampcompare.program.place import as_typed

if TYPE_CHECKING:
    from rich.console import Console

    from ampcompare.reproduce.as_sweep import Repetition

SEEDS = 3


def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The publication, or a YAML file; none: lists them.")
    ] = None,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Options of every run, as device=cuda.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs of each arm; 3 by default.")] = None,
    scale: Annotated[
        float | None, typer.Option(help="For a look: that much of its epochs, images and batch size.")
    ] = None,
    network: Annotated[str | None, typer.Option(metavar="tiny", help="For a look: another network.")] = None,
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder of the runs; with --runs, of the report.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Runs at a time; default: GPUs, or one.")] = None,
    runs: Annotated[
        list[str] | None, typer.Option(metavar="SOURCE", help="Judge these runs instead, as report does.")
    ] = None,
    write_sweep: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it as a sweep file instead, for W&B too.")
    ] = None,
) -> None:
    """Run what others have published and judge it. Started again, it goes on.

    Exit code 3: a published figure is not reproduced.
    """
    from rich.console import Console

    from ampcompare.reproduce.as_sweep import Repetition

    console, given = Console(highlight=False), tuple(words or ())
    looks = {"--scale": scale, "--network": network, "--workers": workers, "--write-sweep": write_sweep}
    if name is None:
        _leave_out(looks | {"--runs": runs, "--out": out}, "of which publication? give its name")
        _list(seeds or SEEDS)
        return
    if runs:
        _leave_out(
            {"--seeds": seeds} | looks | dict.fromkeys(given, ""),
            "--runs judges runs that exist; leave it out",
        )
        raise typer.Exit(_judge(name, runs, out or "report", console))
    if scale is not None and not 0 < scale <= 1:
        raise UserError(f"--scale {scale:g}: expected a number above 0 and at most 1")
    repetition = Repetition(name, seeds or SEEDS, 1.0 if scale is None else scale, network, given)
    repetition.configs()  # what is wrong with them is said before anything is written
    if write_sweep is None:
        raise typer.Exit(_run(repetition, out, workers, console))
    _leave_out({"--out": out, "--workers": workers}, "--write-sweep runs nothing; leave it out")
    _write(repetition, write_sweep)


def _leave_out(options: Mapping[str, Any], why: str) -> None:
    for option, value in options.items():
        if value is not None:
            raise UserError(f"{f'{option} {value}'.rstrip()}: {why}")


def _list(seeds: int) -> None:
    from ampcompare.reproduce.listing import lines

    for line in lines(seeds):
        typer.echo(line)


def _judge(name: str, runs: Sequence[str], out: str, console: Console) -> int:
    from ampcompare.report.command import make_report
    from ampcompare.report.request import Request

    return make_report(Request([*runs], out, reproduce=name), console)


def _write(repetition: Repetition, path: Path) -> None:
    if path.exists():
        raise UserError(f"--write-sweep {path}: there is such a file; name another, or remove it")
    _put(path, repetition.text(repetition.words, str(path)), f"--write-sweep {path}")
    typer.echo(f"{path}: {as_typed('ampcompare', 'sweep', path)}, or {as_typed('wandb', 'sweep', path)}")


def _run(repetition: Repetition, out: str | None, workers: int | None, console: Console) -> int:
    """Through the sweep runner, which goes on where it was and ends with the report."""
    from ampcompare.config.load import split_override
    from ampcompare.sweeps.run import run_sweep

    given = dict(split_override(word) for word in repetition.words)
    if out is not None and "output_dir" in given:
        raise UserError(f"--out {out}: output_dir={given['output_dir']} says it too; leave one out")
    folder = Path(out or given.get("output_dir") or Path("runs") / repetition.sweep_name)
    file = make_folder(folder, f"--out {folder}") / "sweep.yaml"
    _put(file, repetition.text(), f"--out {folder}")
    own = [word for word in repetition.words if split_override(word)[0] != "output_dir"]
    return run_sweep(str(file), [*own, f"output_dir={folder}"], console, workers=workers)


def _put(path: Path, text: str, option: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as problem:
        raise UserError(f"{option}: {reason(problem)}; name a file that can be written") from None
