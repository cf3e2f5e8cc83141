"""The decision table: records of which the right answer is known, and the sentence that gives it.

Accuracies and speeds are chosen so that each interval can be had by hand from the pairs' differences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from support.fakes import make

from ampcompare.records import RunRecord
from ampcompare.report import analyse_runs

SPEED = "throughput/images_per_second_median"
BASE = (0.930, 0.931, 0.932, 0.933, 0.934)
SLOW, FAST, FASTER = (40, 41, 42, 40, 41), (76, 78, 80, 76, 78), (83, 85, 87, 83, 85)
SAME = (0.9301, 0.9309, 0.9321, 0.9329, 0.9341)


def runs(
    backend: str,
    accuracies: Sequence[float | None],
    speeds: Sequence[float] = SLOW,
    *,
    failed: Sequence[int] = (),
    lr: Sequence[float] | None = None,
    **options: Any,
) -> list[RunRecord]:
    """A run for each accuracy, of seed 0, 1, ...; None: none is recorded; `failed`: the seeds that crashed."""

    def edit(seed: int) -> Any:
        def change(plan: Any) -> None:
            plan["summary"][SPEED] = speeds[seed]
            for row in plan["rows"]:
                row.pop("eval/accuracy", None)
            if accuracies[seed] is not None:
                plan["summary"] |= {"eval/accuracy": accuracies[seed]}
                for row, share in zip(plan["rows"][-3:], (0.5, 0.9, 1.0), strict=True):
                    row["eval/accuracy"] = accuracies[seed] * share
            if lr is not None:
                plan["config"]["optimizer"] = {"lr": lr[seed]}

        return change

    states = ["failed" if seed in failed else "finished" for seed in range(len(accuracies))]
    return [
        make(backend, seed, edit=edit(seed), state=state, name=f"{backend}-{seed}", **options)
        for seed, state in enumerate(states)
    ]


def plain(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ")


def less(points: float) -> tuple[float, ...]:
    return tuple(value - points / 100 for value in SAME)


NOISY = (0.90, 0.96, 0.92, 0.94, 0.93)
TABLE: dict[str, tuple[list[RunRecord], str]] = {
    "kept": (
        [*runs("none", BASE), *runs("native", SAME, FAST)],
        "",
    ),
    "kept, a faster one failed": (
        [*runs("none", BASE), *runs("native", SAME, FAST), *runs("fp16", SAME, FASTER, failed=(1, 2, 4))],
        "",
    ),
    "kept, a faster one lost": (
        [*runs("none", BASE), *runs("native", SAME, FAST), *runs("fp16", less(1.2), FASTER)],
        "",
    ),
    "a loss within the margin": (
        [*runs("none", BASE), *runs("native", less(0.37), FAST)],
        "",
    ),
    "a loss": ([*runs("none", BASE), *runs("native", less(1.2), FAST)], ""),
    "a gain": ([*runs("none", BASE), *runs("native", less(-1.2), FAST)], ""),
    "undecided": ([*runs("none", BASE), *runs("native", NOISY, FAST)], ""),
    "none keeps": (
        [*runs("none", BASE), *runs("native", less(1.2), FAST), *runs("fp16", NOISY, FASTER)],
        "",
    ),
    "no speed-up shown": ([*runs("none", BASE), *runs("native", SAME, (36, 44, 43, 41, 40))], ""),
    "slower": ([*runs("none", BASE), *runs("native", SAME, (1.8, 1.82, 1.85, 1.8, 1.81))], ""),
    "one seed": ([*runs("none", BASE[:1]), *runs("native", SAME[:1], FAST)], ""),
    "one seed, slower": ([*runs("none", BASE[:1]), *runs("native", SAME[:1], (20,))], ""),
    "at chance": ([*runs("none", [0.1] * 3), *runs("native", [0.1] * 3, FAST)], ""),
    "a failed baseline": ([*runs("none", BASE, failed=(3,)), *runs("native", SAME, FAST)], ""),
    "all of it failed": ([*runs("none", BASE), *runs("fp16", SAME, FASTER, failed=range(5))], ""),
    "all of the baseline failed": ([*runs("none", BASE, failed=range(5)), *runs("native", SAME, FAST)], ""),
    "no accuracy": ([*runs("none", [None] * 3), *runs("native", [None] * 3, FAST)], ""),
    "two that keep": (
        [*runs("none", BASE), *runs("native", SAME, FAST), *runs("apex_o1", SAME, (75, 78.5, 79, 76, 78))],
        "",
    ),
    "other devices": ([*runs("none", BASE, device="A"), *runs("native", SAME, FAST, device="B")], ""),
    "no baseline": (runs("native", SAME, FAST), ""),
    "only the baseline": (runs("none", BASE), ""),
    "another setting": ([*runs("none", BASE), *runs("native", SAME, FAST, config={"batch_size": 64})], ""),
    "learning rates": (
        [
            *runs("none", (0.90, 0.93, 0.92), lr=(0.1, 0.2, 0.3)),
            *runs("native", (0.92, 0.91, 0.935), FAST, lr=(0.11, 0.21, 0.31)),
        ],
        "",
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_the_headline_is_the_decision(case: str):
    records, expected = TABLE[case]
    assert plain(analyse_runs(records).verdict.headline) == expected
