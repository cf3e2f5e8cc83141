"""The comparison in the terminal: the answer first, in the words of every other output, in 80 columns."""

from __future__ import annotations

import io

from rich.console import Console

from ampcompare.report import analyse_runs
from ampcompare.report.exports import to_markdown
from ampcompare.report.on_wandb.workspace import as_json
from ampcompare.report.terminal import print_table
from report.analysis.test_decision import BASE, FAST, FASTER, SAME, less, runs

RECORDS = [
    *runs("none", BASE),
    *runs("native", SAME, FAST),
    *runs("apex_o1", less(1.2), (1.8, 1.82, 1.85, 1.8, 1.81)),
    *runs("fp16", SAME, FASTER, failed=(1, 2, 4)),
]


def printed(records) -> list[str]:
    screen = io.StringIO()
    print_table(analyse_runs(records), Console(file=screen, width=80))
    return screen.getvalue().splitlines()


def flat(text: str) -> str:
    return " ".join(text.replace("\\", "").replace("\N{NO-BREAK SPACE}", " ").split())


def test_the_table_fits_80_columns_and_cuts_no_figure():
    lines = printed(RECORDS)
    assert max(len(line) for line in lines) <= 80
    assert "…" not in "".join(lines)
    rows = {line.split()[0]: line for line in lines if line.startswith(" ") and line.split()}
    assert "2 of 5" in rows["fp16"]
    assert rows["native"].split()[-1] == "equivalent"
    assert rows["fp16"].split()[-1] == "failed"


def test_the_decision_comes_first_and_is_the_same_everywhere():
    analysis = analyse_runs(RECORDS)
    decision = flat(analysis.verdict.headline)
    assert flat(" ".join(printed(RECORDS))).startswith(decision)
    assert flat(to_markdown(analysis)).startswith(f"# {decision}")
    assert decision in flat(as_json(analysis, "someone", "p").encode().decode("unicode_escape"))
    for label, line in analysis.verdict.lines:
        assert flat(f"{label}: {line}") in flat(" ".join(printed(RECORDS)))
        assert flat(f"**{label}**: {line}") in flat(to_markdown(analysis))
