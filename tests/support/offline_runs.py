"""Real offline runs for tests, written by the real W&B client in a process of its own.

`write_runs(folder, plans)` runs this file as a script; each plan is one run:
{"config": {...}, "rows": [...], "summary": {...}, "exit_code": 0, "kill": false, "wandb": {arguments of
init}}.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ampcompare.errors import UserError
from ampcompare.records import load_runs

Plan = dict[str, Any]
SPEED = {"none": 40.0, "native": 76.0, "apex_o1": 71.0, "apex_o2": 80.0, "fp16": 83.0}
MEMORY = {"none": 9200.0, "native": 5400.0, "apex_o1": 5500.0, "apex_o2": 4700.0, "fp16": 4500.0}


def write_runs(folder: Path, plans: list[Plan]) -> list[Path]:
    """Write one offline run per plan under `folder/wandb`; returns their `.wandb` files in order."""

    folder.mkdir(parents=True, exist_ok=True)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_")}
    environment |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "HOME": str(folder)}
    command = [sys.executable, __file__, str(folder)]
    done = subprocess.run(
        command,
        input=json.dumps(plans),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, -9), done.stderr
    files = sorted((folder / "wandb").glob("offline-run-*/run-*.wandb"), key=lambda p: p.stat().st_mtime_ns)
    by_id = {p.parent.name.rpartition("-")[2]: p for p in files}
    return [by_id[plan["wandb"]["id"]] for plan in plans if plan["wandb"]["id"] in by_id]


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
    summary: bool = True,
    **wandb_arguments: Any,
) -> Plan:
    """A run as training would log it: plausible curves, deterministic from backend and seed."""
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
        "precision": {"enabled": True, "dtype": "float16"},
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
        "summary": ending if summary else {"environment": environment},
        "exit_code": 0,
        "kill": False,
        "wandb": arguments | wandb_arguments,
    }


def _is_on_disk(folder: Path, one: Plan) -> bool:
    (file,) = (folder / "wandb").glob(f"*run-*/run-{one['wandb']['id']}.wandb")
    try:
        (record,) = load_runs([file])
    except UserError:  # it has nothing yet
        return False
    return record.rows == len(one["rows"]) and record.summary.keys() >= one["summary"].keys()


def _main(folder: str) -> None:
    import wandb

    settings = wandb.Settings(
        console="off",
        x_disable_meta=True,
        x_disable_stats=True,
        disable_git=True,
        save_code=False,
        x_transaction_log_flush_interval=1,
    )
    for one in json.load(sys.stdin):
        run = wandb.init(dir=folder, config=one["config"], settings=settings, **one["wandb"])
        run.define_metric("global_step")
        run.define_metric("*", step_metric="global_step")
        for row in one["rows"]:
            run.log(row)
        run.config.update(one.get("late_config", {}), allow_val_change=True)
        for key, value in one["summary"].items():
            run.summary[key] = value
        if one["kill"]:
            while not _is_on_disk(Path(folder), one):  # the client writes once a second
                time.sleep(0.1)
            os.kill(os.getpid(), 9)
        run.finish(exit_code=one["exit_code"])


if __name__ == "__main__":
    _main(sys.argv[1])
