"""The comparison as a table in the terminal."""

from __future__ import annotations

import re
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ampcompare.report import words
from ampcompare.report.analysis.analysis import Analysis
from ampcompare.report.analysis.published import Reproduction
from ampcompare.report.markdown import runs_of
from ampcompare.report.runs.metric import DEFAULT_METRIC

LONGEST_WORD = len("apex_o1_bf16")  # of a label that is never broken
MOST_HEAD = 9  # letters of a head in one line
# Without edges: a name and seven figures take all of 80 columns.
SHAPE: dict[str, Any] = {
    "box": box.SIMPLE_HEAD,
    "pad_edge": False,
    "show_edge": False,
    "collapse_padding": True,
}


def in_lines(head: str, width: int = MOST_HEAD) -> str:
    """A head whose long words are broken where they have parts: `eval/` over `balanced_` over `accuracy`."""
    lines = [""]
    for part in re.findall(r"[^\s/_.]*[/_.]?\s*", head):
        if len(lines[-1]) + len(part.rstrip()) > width and lines[-1]:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)


def print_table(analysis: Analysis, console: Console) -> None:
    """Print the decision, the table, a line for each group, the reasons for doubt. Fits 80 columns."""
    metric, verdict = analysis.metric, analysis.verdict
    console.print(Text(words.printable(verdict.headline), style="bold"))
    title = Text(words.printable(analysis.setting.whole), style="dim")
    table = Table(title=title, title_justify="left", header_style="dim", **SHAPE)
    longest = max((len(word) for group in analysis.groups for word in group.label.split()), default=0)
    heads = [words.printable(part) for key in analysis.keys for part in [key.rpartition(".")[2] or key]]
    table.add_column(", ".join(heads), overflow="fold", min_width=min(longest, LONGEST_WORD))
    name = "accuracy" if metric.key == DEFAULT_METRIC else words.printable(metric.key)
    speed, peak = analysis.quantities.speed, analysis.quantities.peak
    for column in ("runs", speed, "speed-up", peak, name, "differs", "quality"):
        table.add_column(in_lines(words.printable(column)), justify="right", overflow="fold")
    for group in analysis.groups:
        compared = analysis.comparison(group.label)
        is_base = analysis.baseline_is(group.value)
        means = {name: estimate and estimate.value for name, estimate in group.means.items()}
        table.add_row(
            Text(words.printable(group.label), style=analysis.styles[group.label].colour),
            f"{runs_of(group)}{' !' if group.is_unfinished else ''}",
            words.number(means["images_per_second"]),
            "1" if is_base else words.speed(compared and compared.speedup),
            analysis.quantities.show_memory(means["peak_mib"]),
            metric.show(means["quality"]),
            "" if is_base else words.signed(compared and compared.quality and compared.quality.value),
            "" if compared is None else compared.chip,
        )
    console.print(table)
    console.print()
    for label, line in verdict.lines:
        console.print(Text(words.printable(f"{label}: {line}")))
    if analysis.published is not None:
        _print_published(analysis.published, console)
    for note in verdict.notes:
        console.print(Text(words.printable(note)))
    for caution in verdict.cautions:
        console.print(Text(words.printable(f"- {caution}"), style="dim"))


def _print_published(beside: Reproduction, console: Console) -> None:
    """What became of each published figure, and which runs were no evidence."""
    console.print(Text(words.printable(beside.headline), style="bold"))
    lines = [f"- {row.sentence}" for row in beside.rows]
    if beside.differences:
        lines.append(f"- what differs: {words.listed(beside.differences)}")
    lines += [f"- left out: {line}" for line in beside.matched.left_out]
    for line in lines:
        console.print(Text(words.printable(line)))
