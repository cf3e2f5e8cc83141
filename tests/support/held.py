"""A run of a sweep that is held at a step; see held_run.py."""

from __future__ import annotations

from support.quick import QUICK
from support.wandb_server import Run

HELD, STEPS = 59, 140  # the step behind the one where a run is held ends an epoch
WORDS = [
    *(word for word in QUICK if not word.startswith("wandb.")),
    "wandb.mode=online",
    f"max_steps={STEPS}",
    "epochs=1000",
    "log.every=20",
    "eval.every=100",
    "checkpoint.every_epochs=1000",  # none but those that a stop makes
    "diagnostics.every=null",
]


def steps(run: Run) -> list[int]:
    return [row["global_step"] for row in run.history if "train/loss" in row]
