"""Runs made in memory, as the reader would return them, and the plans of what they logged."""

import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ampcompare.runs import RunRecord
from ampcompare.runs.run_record import columns_of

Plan = dict[str, Any]
SPEED = {"none": 40.0, "native": 76.0, "apex_o1": 71.0, "apex_o2": 80.0, "fp16": 83.0}
MEMORY = {"none": 9200.0, "native": 5400.0, "apex_o1": 5500.0, "apex_o2": 4700.0, "fp16": 4500.0}


def plan(
    backend: str,
    seed: int = 223,
    *,
    steps: int = 200,
    epochs: int = 5,
    skip_steps: tuple[int, ...] = (0, 10, 20),
    device: str = "Test Device 9000",
    device_type: str = "cuda",
    source: str = "cifar10",
    config: dict[str, Any] | None = None,
    **wandb_arguments: Any,
) -> Plan:
    """Return a run as a training would log it: plausible curves, deterministic from backend and seed."""
    chance = random.Random(f"{backend} {seed}")
    scaled = backend != "none"
    scale = 65536.0 if scaled else 1.0
    rows, skipped, best = [], 0, 0.0
    per_epoch = steps // epochs
    for step in range(0, steps, 5):
        if scaled and step in skip_steps:
            skipped, scale = skipped + 1, scale / 2
        elif scaled and step and step % 100 == 0:
            scale *= 2
        clock = {
            "global_step": step,
            "epoch": step / per_epoch,
            "time/elapsed_seconds": step * 128 / SPEED[backend],
        }
        loss = 2.3 * 0.985**step + 0.15 + chance.uniform(-0.05, 0.05)
        speed = SPEED[backend] * chance.uniform(0.96, 1.03)
        rows.append(
            clock
            | {
                "time/train_seconds": clock["time/elapsed_seconds"],
                "train/loss": loss,
                "train/accuracy": max(0.1, 1 - loss / 2.6),
                "train/learning_rate": 0.1 * (1 - step / steps),
                "amp/scale_factor": scale,
                "amp/skipped_steps": skipped,
                "throughput/images_per_second": speed,
                "throughput/step_time_ms": 128_000 / speed,
                "memory/peak_mib": MEMORY[backend],
            }
        )
        if (step + 5) % per_epoch == 0:
            accuracy = min(0.97, 0.35 + 0.12 * (step + 5) / per_epoch + chance.uniform(-0.02, 0.02))
            best = max(best, accuracy)
            at_end = clock | {"global_step": step + 5, "epoch": (step + 5) / per_epoch}
            rows.append(at_end | {"eval/accuracy": accuracy, "eval/loss": 1 - accuracy})
    tree = {
        "backend": backend,
        "seed": seed,
        "batch_size": 128,
        "epochs": epochs,
        "device": "auto",
        "model": {"name": "resnet50", "stem": "cifar"},
        "data": {"source": source, "root": None, "train_limit": None},
        "output_dir": f"runs/{backend}",
    }
    environment = {
        "device_name": device,
        "device_type": device_type,
        "torch": "2.14.1",
        "tf32": False,
        "packages": {"torch": "2.14.1", "wandb": "0.31.0"},
    }
    ending = {
        "best/eval_accuracy": best,
        "best/epoch": epochs,
        "throughput/images_per_second_median": SPEED[backend] * (1 + (seed % 3 - 1) / 100),
        "throughput/step_time_ms_p50": 128_000 / SPEED[backend],
        "throughput/step_time_ms_p95": 134_000 / SPEED[backend],
        "environment": environment,
    }
    arguments = {
        "id": f"{backend.replace('_', '')}{seed}",
        "name": f"{backend}_resnet50",
        "project": "comparison-amp",
    }
    return {
        "config": tree | (config or {}),
        "rows": rows,
        "summary": ending,
        "exit_code": 0,
        "kill": False,
        "wandb": arguments | wandb_arguments,
    }


def full(plan: Plan) -> None:
    """Add what only some runs log: energy, and looks at gradients, activations and updates of two layers."""
    unscaled = {"none": 0.04, "native": 0.05, "apex_o1": 0.06}.get(plan["config"]["backend"], 0.07)
    for row in plan["rows"]:
        if "eval/accuracy" in row:
            row["energy/joules_per_image"] = 8.0 * unscaled
        elif row["global_step"] % 20 == 0:
            for where, factor in (("", 1.0), ("/conv1", 1.5), ("/layer10", 0.5)):
                row[f"grad/underflow_fraction{where}"] = unscaled * factor / 10
                row[f"grad/underflow_fraction_unscaled{where}"] = unscaled * factor
                row[f"update/lost_fraction{where}"] = 0.5 + unscaled * factor
                row[f"activation/max_abs{where}"] = 1e4 * unscaled * factor
                row[f"activation/subnormal_fraction{where}"] = unscaled * factor


def make(
    backend: str,
    seed: int = 1,
    *,
    edit: Callable[[Plan], Any] | None = None,
    state: str = "finished",
    problems: tuple[str, ...] = (),
    **options: Any,
) -> RunRecord:
    """Return the record of a planned run, which `edit` may change, without writing a file."""
    made = plan(backend, seed, **options)
    if edit:
        edit(made)
    rows, logged = columns_of(made["rows"])
    given = made["wandb"]
    return RunRecord(
        id=given["id"],
        name=given["name"],
        group=given.get("group", ""),
        state=state,
        config=made["config"],
        summary=made["summary"],
        rows=rows,
        logged=logged,
        problems=list(problems),
        tags=tuple(given.get("tags", ())),
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


def put(run: RunRecord, key: str, values: Any) -> None:
    """Log these values under a key, one for each row or one for all; NaN is nothing."""
    numbers = np.broadcast_to(np.asarray(values, float), run.rows)
    run.logged[key] = run.adding({key: numbers}).logged[key]
