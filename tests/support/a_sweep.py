"""A sweep as readers have it: five backends, five seeds, twenty epochs, one backend that diverges."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from ampcompare.records import RunRecord
from support.fakes import full, make
from support.offline_runs import Plan

BACKENDS = ("none", "native", "apex_o1", "apex_o2", "fp16")
BEGIN = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
STEPS, EPOCHS, BATCH = 2000, 20, 128
LOWER = {"none": 0.0, "native": 0.0, "apex_o1": 0.0002, "apex_o2": 0.0011, "fp16": 0.006}
DIVERGED = {1, 3, 4}  # seeds of fp16
GAP = timedelta(seconds=40)  # between two runs


def a_sweep(
    seeds: Sequence[int] = (1, 2, 3, 4, 5),
    *,
    backends: Sequence[str] = BACKENDS,
    drift: float = 0.0,
    control: bool = False,
    diverging: bool = True,
    epochs: int = EPOCHS,
) -> list[RunRecord]:
    """The runs in blocks of one seed each, one after the other on one GPU.

    `drift` is by how much of itself throughput falls from the first run to the last; with `control` the
    baseline runs first and last once more, as many times as there are seeds.
    """
    order: list[tuple[str, int, str]] = []
    for block, seed in enumerate(seeds):
        here = [(backend, seed, "null") for backend in backends]
        random.Random(block).shuffle(here)
        order += here
    if control:
        order = [(backends[0], s, "first") for s in seeds] + order + [(backends[0], s, "last") for s in seeds]
    runs, clock = [], BEGIN
    for place, (backend, seed, arm) in enumerate(order):
        speed = 1 - drift * place / max(1, len(order) - 1)
        run = _run(backend, seed, arm, speed, diverging and backend == "fp16" and seed in DIVERGED, epochs)
        runs.append(replace(run, started_at=clock))
        clock += timedelta(seconds=float(run.history["time/elapsed_seconds"].max())) + GAP
    return runs


def _run(backend: str, seed: int, arm: str, speed: float, diverges: bool, epochs: int) -> RunRecord:
    chance = random.Random(f"{backend} {seed} {arm}")
    speed *= 1 + chance.gauss(0, 0.004)
    level = 0.9362 - LOWER[backend] + random.Random(seed).gauss(0, 0.0015) + chance.gauss(0, 0.0012)

    def edit(plan: Plan) -> None:
        full(plan)
        _reshape(plan, chance, speed, level, epochs)
        if diverges:
            _diverge(plan, 0.4 + 0.1 * seed)

    config: dict[str, Any] = {} if arm == "null" else {"plan": {"arm": arm}}
    end: dict[str, Any] = {"state": "failed"} if diverges else {}
    name = f"{backend}_resnet50" if arm == "null" else f"{backend}_resnet50 ({arm})"
    run_id = f"{backend}{seed}{arm}".replace("_", "")
    options: dict[str, Any] = {"config": config, "id": run_id, "name": name, "steps": STEPS, "epochs": epochs}
    run = make(backend, seed, edit=edit, **options, **end)
    return replace(run, exit_code=1) if diverges else run


def _reshape(plan: Plan, chance: random.Random, speed: float, level: float, epochs: int) -> None:
    """Curves and figures of a run that trains well, the clock as fast as it trains."""
    nominal = plan["summary"]["throughput/images_per_second_median"]
    for row in plan["rows"]:
        for key in ("time/elapsed_seconds", "time/train_seconds"):
            if key in row:
                row[key] /= speed
        if "throughput/images_per_second" in row:
            row["throughput/images_per_second"] *= speed
        if "eval/accuracy" in row:
            epoch = row["epoch"] / epochs
            rising = (level - 0.35) * (1 - epoch) ** 2.2
            row["eval/accuracy"] = level - rising + chance.gauss(0, 0.012) * (1 - epoch)
            row["eval/loss"] = 1 - row["eval/accuracy"]
    windows = sorted(r["throughput/images_per_second"] for r in plan["rows"] if "train/loss" in r)
    plan["summary"]["throughput/images_per_second_median"] = windows[len(windows) // 2]
    plan["summary"]["throughput/step_time_ms_p50"] *= nominal / windows[len(windows) // 2]
    plan["summary"]["best/eval_accuracy"] = max(r["eval/accuracy"] for r in plan["rows"] if "eval/loss" in r)


def _diverge(plan: Plan, at: float) -> None:
    """From a share of the run on its loss is NaN and its accuracy chance; it ends with an error."""
    rows = plan["rows"]
    for row in rows[int(at * len(rows)) :]:
        if "train/loss" in row:
            row["train/loss"] = "NaN"
        if "eval/accuracy" in row:
            row |= {"eval/accuracy": 0.1, "eval/loss": "NaN"}


def diverged(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Those of the runs that failed."""
    return [run for run in runs if run.state == "failed"]
