"""Runs of other people's programs, made in memory as the reader would return them."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

from ampcompare.runs import RunRecord
from ampcompare.runs.run_record import build_columns
from ampcompare.runs.system_metrics import MachineFacts

FULL, MIXED = "32-true", "bf16-mixed"
RATE = {FULL: 100.0, MIXED: 180.0}
MEMORY = {FULL: 4000.0, MIXED: 2500.0}
DEVICE = {"device_name": "Test Device 9000", "device_type": "cuda"}
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def external(
    precision: str = FULL,
    seed: int = 1,
    *,
    config: dict[str, Any] | None = None,
    logs: dict[str, Any] | None = None,
    steps: int = 40,
) -> RunRecord:
    """Return one run of a user's loop: a row every ten steps, an evaluation after every second row.

    Args:
        logs: Further values of the training rows, by key.
    """
    chance = random.Random(f"{precision} {seed}")
    rate = RATE.get(precision, 150.0)
    rows: list[dict[str, Any]] = []
    clock = 0.0
    for step in range(10, 10 * steps + 10, 10):
        clock += 50 / rate
        row = {"train_loss": 2 / step, "samples_per_sec": rate * chance.uniform(0.99, 1.01)}
        rows.append(
            row | {"gpu_mem": MEMORY.get(precision, 3000.0), "step": step, "_runtime": clock} | (logs or {})
        )
        if step % 20 == 0:
            clock += 3.0  # of evaluation, in which nothing was trained
            accuracy = 0.9 + step / 100 / steps * 0.1 + chance.uniform(-0.002, 0.002)
            rows.append({"val_acc": accuracy, "step": step, "_runtime": clock})
    begin = BEGIN + timedelta(hours=seed)
    for number, row in enumerate(rows):
        row |= {"_step": number, "_timestamp": begin.timestamp() + row["_runtime"]}
    count, logged = build_columns(rows)
    run = f"{precision}-{seed}"
    trainer = {"precision": precision, "max_epochs": 3}
    return RunRecord(
        id=run,
        name=run,
        state="finished",
        exit_code=0,
        started_at=begin,
        config={"trainer": trainer, "seed": seed, "run_name": f"{run}-a", "lr": 0.1} | (config or {}),
        summary=dict(rows[-1]),
        rows=count,
        logged=logged,
        machine=MachineFacts(dict(DEVICE)),
    )


def several(seeds: int = 3, **options: Any) -> list[RunRecord]:
    """Both precisions, with so many seeds each."""
    return [
        external(precision, seed, **options) for seed in range(1, seeds + 1) for precision in (FULL, MIXED)
    ]
