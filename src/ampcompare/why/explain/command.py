"""`ampcompare why explain`: from the words of a command line to a table and a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ampcompare.errors import UserError
from ampcompare.machine.device import set_numerics
from ampcompare.program.console import print_line
from ampcompare.why.explain.as_json import write_json
from ampcompare.why.explain.explained import device_of, explain
from ampcompare.why.explain.measured import measure
from ampcompare.why.explain.setting import settled, shapes_of
from ampcompare.why.explain.table import show
from ampcompare.why.ready import configured

EXPLAINED = "native"  # where the words name no other backend than the one to compare with


def run_explain(
    words: Sequence[str],
    against: str,
    on: str,
    file: Path | None,
    seconds: float,
    rounds: int,
    console: Console,
) -> int:
    """Explain a step; 0. Raises UserError for whatever is wrong with the words."""
    other = configured(words)
    if other.backend == against:
        other = configured(words, backend=EXPLAINED)
    if other.backend == against:
        raise UserError(f"--against {against}: the same backend; name another one, as backend=apex_o1")
    base = configured(words, backend=against)
    device, sheet = device_of(other, on)
    if sheet is not None and rounds:
        raise UserError(
            f"--measure {rounds}: {sheet.name} is taken from its data sheet; leave out --on or this"
        )
    if sheet is None:
        set_numerics(other)
    found = explain((base, other), device, sheet, seconds)
    if rounds:
        configs = [settled(config) for config in (base, other)]
        found.measured = measure(configs, shapes_of(base), device, rounds)
    show(found, console)
    if file is not None:
        write_json(found, file)
        print_line(console, f"Written: {file}; ampcompare report RUNS --explain {file} puts it on the page.")
    return 0
