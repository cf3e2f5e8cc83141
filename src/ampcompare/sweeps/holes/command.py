"""`ampcompare sweep ... --missing` and `--fill`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from ampcompare.errors import UserError
from ampcompare.sweeps.holes.look import look
from ampcompare.sweeps.holes.show import show
from ampcompare.sweeps.holes.target import is_on_server, target_of
from ampcompare.sweeps.run import Request, command_again


def see_holes(
    source: str, words: Sequence[str], console: Console, *, fill: bool, missing: bool, **asked: Any
) -> int:
    """List the points of the sweep that are missing, failed or still running, or run them.

    Returns the exit code: 0 where the sweep is whole, 3 where it is not; of `fill` as `run_sweep` does.
    Raises UserError for bad input; `missing` writes and starts nothing.
    """
    if fill and missing:
        raise UserError("--missing --fill: one lists the holes, the other runs them; leave one out")
    request = Request(**asked)
    if request.until_decided:
        raise UserError("--until-decided: adds seeds, and this looks at those there are; leave it out")
    target = target_of(source, words, request)
    if missing:
        again = command_again(source, request, target.given, target.url, "--fill")
        return show(look(target), console, again)
    from ampcompare.sweeps.holes.fill import fill_holes

    return fill_holes(target, request, source, words, console)


def refuse_server(source: str) -> None:
    """Raise UserError for a sweep on W&B's server of which nothing is asked that can be done here."""
    if is_on_server(source):
        todo = "--missing lists its holes, --fill runs them here, wandb agent runs the rest"
        raise UserError(f"{source}: is on W&B's server; {todo}")
