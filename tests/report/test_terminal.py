"""The comparison in the terminal: the answer first, in the words of every other output, in 80 columns."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from support.fakes import make
from support.foreign import several
from support.known_runs import BASE, FAST, FASTER, SAME, less, runs

from ampcompare import metrics
from ampcompare.precision.backends import REGISTRY
from ampcompare.report import analyse_runs
from ampcompare.report.exports import to_markdown
from ampcompare.report.on_wandb.workspace import as_json
from ampcompare.report.terminal import LONGEST_WORD, print_table

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
    start = next(i for i, line in enumerate(lines) if line.startswith("──"))
    rows = {line.split()[0]: line for line in lines[start + 1 : lines.index("", start)]}
    assert "2 of 5" in rows["fp16"]
    assert rows["native"].split()[-1] == "equivalent"
    assert rows["fp16"].split()[-1] == "failed"


@pytest.mark.slow
def test_the_decision_comes_first_and_is_the_same_everywhere():
    analysis = analyse_runs(RECORDS)
    decision = flat(analysis.verdict.headline)
    assert flat(" ".join(printed(RECORDS))).startswith(decision)
    assert flat(to_markdown(analysis)).startswith(f"# {decision}")
    assert decision in flat(as_json(analysis, "someone", "p").encode().decode("unicode_escape"))
    for label, line in analysis.verdict.lines:
        assert flat(f"{label}: {line}") in flat(" ".join(printed(RECORDS)))
        assert flat(f"**{label}**: {line}") in flat(to_markdown(analysis))


def test_no_name_of_a_built_in_backend_is_broken():
    slow = [make("native", seed, edit=in_bf16) for seed in (1, 2)]
    for run in slow:
        run.summary[metrics.THROUGHPUT_MEDIAN] = 1.0
    lines = printed([*RECORDS, *slow])
    assert max(len(line) for line in lines) <= 80
    assert any(line.startswith("native_bf16 ") for line in lines)
    assert max(len(name) for name in REGISTRY) <= LONGEST_WORD


def in_bf16(plan):
    plan["config"]["precision"]["dtype"] = "bfloat16"


def test_no_head_is_broken_within_a_word():
    records = several(3)
    for run in records:
        run.logged["metrics/val_balanced_accuracy"] = run.logged.pop("val_acc")
        run.summary["metrics/val_balanced_accuracy"] = run.summary.pop("val_acc")
    lines = printed(records)
    rule = next(i for i, line in enumerate(lines) if line.startswith("──"))
    heads = " ".join(lines[:rule]).split()
    assert max(len(line) for line in lines) <= 80
    assert {"precision", "speed-up", "differs", "quality", "balanced_", "accuracy"} <= {*heads}, lines[:rule]
