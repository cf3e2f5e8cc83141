"""Records of which the right answer is known."""

from collections.abc import Sequence
from typing import Any

from ampcompare.runs import RunRecord
from support.fakes import make

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
    state: str = "finished",
    arms: Sequence[str] = (),
    **options: Any,
) -> list[RunRecord]:
    """Return a run for each accuracy, with seeds 0, 1, ...

    An accuracy of None is not recorded. The seeds in `failed` crashed.
    """

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
            if arms:
                plan["config"]["plan"] = {"arm": arms[seed]}
                plan["wandb"]["id"] += "again"

        return change

    states = ["failed" if seed in failed else state for seed in range(len(accuracies))]
    return [
        make(backend, seed, edit=edit(seed), state=state, name=f"{backend}-{seed}", **options)
        for seed, state in enumerate(states)
    ]


def less(points: float) -> tuple[float, ...]:
    return tuple(value - points / 100 for value in SAME)
