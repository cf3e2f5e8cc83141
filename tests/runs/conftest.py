"""Fixtures: `.wandb` files that W&B's own client wrote."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.fakes import plan

ODD_ROWS = [
    {"global_step": 0, "train/loss": "NaN", "text": "a", "flag": True, "nested": {"a": 1, "b": {"c": "x"}}},
    {"global_step": 1, "train/loss": 1e-300, "text": "ü 🚀", "flag": False, "list": [1, 2.5, None]},
    {"global_step": 1, "train/loss": 1e300, "none": None, "back\\slash/and.dot": 3},
    {"global_step": 2, "big": 2**52 + 1, "minus": -7, "third": 1 / 3, "train/loss": "-Infinity"},
]
# One and two bytes of length, and what could be taken for a key's end.
SIZES = (1, 2, 3, 126, 127, 128, 129, 130, 131, 255, 256, 257, 300)
KEYS_ROWS = [
    {
        "global_step": n,
        **{"k" * size: n / 7 for size in SIZES},
        # What follows the length of a key of 130 bytes may look like a whole value: 195 is "ü" and a length.
        **{"ü" * size: "x" * (61 if n == 3 else n * 100) for size in (64, 65)},
        "n": {"m" * size: {"o": -n, "p": {"\u0082\u0001": True}} for size in SIZES},
        "": n,
        **({"rare": "NaN"} if n % 9 == 4 else {}),
    }
    for n in range(40)
]
# Each plan of those on stdin as a run of the real client; one may be killed once all of it is on the disk.
CLIENT = """
import json, os, sys, time
from pathlib import Path
import wandb
from ampcompare.runs.wandb_file import read_wandb_file
settings = wandb.Settings(
    console="off", x_disable_meta=True, x_disable_stats=True, disable_git=True, save_code=False,
    x_transaction_log_flush_interval=1,
)
for plan in json.load(sys.stdin):
    run = wandb.init(dir=".", config=plan["config"], settings=settings, **plan["wandb"])
    run.define_metric("global_step")
    run.define_metric("*", step_metric="global_step")
    for row in plan["rows"]:
        run.log(row)
    run.config.update(plan.get("late_config", {}), allow_val_change=True)
    for key, value in plan["summary"].items():
        run.summary[key] = value
    if plan["kill"]:
        (file,) = Path("wandb").glob(f"*run-*/run-{run.id}.wandb")
        while not {*plan["summary"]} <= {*read_wandb_file(file).summary}:  # the last that was written
            time.sleep(0.1)
        os.kill(os.getpid(), 9)
    run.finish(exit_code=plan["exit_code"])
"""


@pytest.fixture(scope="session")
def real_runs(tmp_path_factory) -> dict[str, Path]:
    """Return `.wandb` files of the real client: a usual run, odd ones, a failed and a killed one."""
    folder = tmp_path_factory.mktemp("real")
    usual = plan(
        "native", name="usual", group="together", job_type="train", tags=["one", "two"], notes="a note"
    )
    usual["late_config"] = {"late": {"added": 1}, "batch_size": 256}
    odd = plan(
        "none", 1, name="</script><script>alert(1)</script>", config={"empty": {}, "null": None, "list": [1]}
    )
    odd["rows"] = ODD_ROWS
    odd["summary"]["deep"] = {"a": {"b": [1, {"c": None}]}}
    keys = plan("none", 4, name="keys") | {"rows": KEYS_ROWS}
    failed = plan("apex_o1", 2) | {"exit_code": 3}
    killed = plan("none", 3) | {"kill": True}
    plans = {"usual": usual, "odd": odd, "keys": keys, "failed": failed, "killed": killed}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    done = subprocess.run(
        [sys.executable, "-c", CLIENT],
        input=json.dumps([*plans.values()]),
        cwd=folder,
        env=environment | {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "HOME": str(folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == -9, done.stderr
    return {
        name: next(folder.glob(f"wandb/*/run-{plan['wandb']['id']}.wandb")) for name, plan in plans.items()
    }
