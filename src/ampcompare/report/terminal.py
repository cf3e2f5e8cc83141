"""The comparison as a table in the terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ampcompare.report import words
from ampcompare.report.analysis.metric import DEFAULT_METRIC
from ampcompare.report.analysis.verdict import Analysis


def print_table(analysis: Analysis, console: Console) -> None:
    """Print the table by backend, the headline and the reasons for doubt. Fits 80 columns."""
    setting = analysis.setting
    title = Text(words.printable(" · ".join([setting.words, *setting.devices])), style="bold")
    table = Table(title=title, title_justify="left", header_style="dim", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("backend", overflow="fold")
    for name in ("runs", "images/s", "speed-up", "peak MiB", name_of(analysis), "differs", "skipped"):
        table.add_column(name, justify="right")
    for group in analysis.groups:
        comparison = analysis.comparison(group.label)
        speed, memory = group.figure("images_per_second"), group.figure("peak_mib")
        quality, skipped = group.figure("quality"), group.figure("skipped_steps")
        is_base = analysis.baseline_is(group.value)
        table.add_row(
            Text(words.printable(group.label), style=analysis.looks[group.label].colour),
            f"{len(group.counted)}{' !' if group.is_unfinished else ''}",
            words.number(speed.mean if speed else None),
            "1" if is_base else words.ratio(comparison.speedup if comparison else None),
            words.mib(memory.mean if memory else None),
            words.quality(quality.mean if quality else None, analysis.metric.is_fraction),
            "" if is_base else words.points(comparison.accuracy_points if comparison else None),
            words.count(skipped.median if skipped else None),
        )
    console.print(table)
    console.print(Text(words.printable(analysis.verdict.headline), style="bold"))
    for label, line in analysis.verdict.lines:
        console.print(Text(words.printable(f"{label}: {line}")))
    for caution in analysis.verdict.cautions:
        console.print(Text(words.printable(f"- {caution}"), style="dim"))


def name_of(analysis: Analysis) -> str:
    """The compared metric at the head of a column."""
    return "accuracy" if analysis.metric.key == DEFAULT_METRIC else words.printable(analysis.metric.key)
