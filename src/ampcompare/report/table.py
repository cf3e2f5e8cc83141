"""The comparison as a table in the terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ampcompare.report import words
from ampcompare.report.palette import styles
from ampcompare.report.verdict import Analysis


def print_table(analysis: Analysis, console: Console) -> None:
    """Print the table by backend, the headline and the reasons for doubt. Fits 80 columns."""
    setting = analysis.setting
    title = Text(words.printable(" · ".join([setting.words, *setting.devices])), style="bold")
    table = Table(title=title, title_justify="left", header_style="dim", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("backend", overflow="fold")
    for name in ("runs", "images/s", "speed-up", "peak MiB", "best acc.", "points", "skipped"):
        table.add_column(name, justify="right")
    looks = {style.label: style for style in styles(g.label for g in analysis.groups)}
    for group in analysis.groups:
        comparison = analysis.comparison(group.label)
        speed, memory = group.figure("images_per_second"), group.figure("peak_mib")
        accuracy, skipped = group.figure("best_accuracy"), group.figure("skipped_steps")
        is_base = group is analysis.baseline
        table.add_row(
            Text(words.printable(group.label), style=looks[group.label].colour),
            f"{len(group.counted)}{' !' if group.is_unfinished else ''}",
            words.number(speed.median if speed else None),
            "1" if is_base else words.ratio(comparison.speedup if comparison else None),
            words.mib(memory.median if memory else None),
            words.percent(accuracy.mean if accuracy else None),
            "" if is_base else words.points(comparison.accuracy_points if comparison else None),
            words.count(skipped.median if skipped else None),
        )
    console.print(table)
    console.print(Text(words.printable(analysis.verdict.headline)))
    for caution in analysis.verdict.cautions:
        console.print(Text(words.printable(f"- {caution}"), style="dim"))
