"""Records with any figures at all: every output is made, and prints no number that is none."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console
from support.fakes import make

from ampcompare.report import analyse_runs
from ampcompare.report.exports import to_csv, to_json
from ampcompare.report.text import print_table, to_markdown, to_summary

NO_FIGURES = (float("nan"), float("inf"), 10**400, "x", None, True)
ODD = (*NO_FIGURES, 0.0, -1.0, 1e-300, 1e300, 1e308, 5e-324, 40.0, 41.0)
FIGURE = st.sampled_from(ODD) | st.floats()
KEYS = {
    "throughput/images_per_second_median": FIGURE,
    "eval/accuracy": FIGURE | st.sampled_from((0.93, 0.931, 93.0)),
    "memory/peak_mib": FIGURE,
    "time/train_seconds": FIGURE,
    "amp/skipped_steps": FIGURE,
}
ONE = st.fixed_dictionaries({}, optional=KEYS)
RUN = st.tuples(st.sampled_from(("none", "native", "fp16")), st.integers(0, 3), ONE)


def record(number: int, backend: str, seed: int, figures: dict[str, Any]):
    def edit(plan: Any) -> None:
        plan["wandb"]["id"] = f"r{number}"
        for row in plan["rows"]:
            row.pop("eval/accuracy", None)
            row.pop("memory/peak_mib", None)
        plan["summary"] |= figures

    return make(backend, seed, edit=edit, steps=20, epochs=2)


@pytest.mark.slow
@example([("none", 0, {"memory/peak_mib": 5e-324}), ("native", 0, {"memory/peak_mib": 1.0})], None)
@settings(max_examples=300, deadline=None)
@given(st.lists(RUN, min_size=2, max_size=9), st.sampled_from((None, 0.5, 1e-300, 1e300)))
def test_any_figures_make_every_output(made, margin):
    analysis = analyse_runs([record(n, *one) for n, one in enumerate(made)], margin=margin)
    texts = [to_markdown(analysis), to_csv(analysis), to_summary(analysis)]
    json.loads(to_json(analysis), parse_constant=pytest.fail)  # NaN is no JSON
    print_table(analysis, Console(file=io.StringIO(), width=80))
    assert not any(odd in text for text in texts for odd in (" nan", "(nan", "inf×", " inf "))
