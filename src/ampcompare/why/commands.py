"""`ampcompare why`: explain, diff, guard. Free of torch until one of them runs."""

from __future__ import annotations

import typer

why = typer.Typer(
    name="why",
    help="Why mixed precision is as fast, as small, as exact as it is: for a network and a setting, beside "
    "or before a training.",
    no_args_is_help=True,
)
