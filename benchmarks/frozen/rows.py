"""The corpus of rows: what short trainings log, and every bit of their final weights.

Backends, ways of executing, accumulation, one and two processes, clipping, padded targets, overflows, and
kill and resume are combined pairwise. Losses, loss scales and weights are exact. Other values are kept with
six digits, because they are computed from those. Times, speed and memory are left out.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from values import command, forked, write

NETWORKS = Path(__file__).with_name("networks.py")
BASE = """recipe=reference data.source=synthetic data.train_limit=48 data.test_limit=16 batch_size=8 epochs=2
    log.every=1 log.warmup_steps=2 diagnostics.every=2 device=cpu wandb.mode=offline optimizer.momentum=0.9
    precision.init_scale=1024 precision.growth_interval=4 resume=auto""".split()
WORDS = {
    "compile": "execution=compile",
    "accumulate": "training.accumulate=3",
    "norm": "training.clip_norm=0.5",
    "value": "training.clip_value=0.01",
    "padded": f"model.name={NETWORKS}:letters data.source={NETWORKS}:texts task.metric=null",
    "overflow": "precision.init_scale=16777216",
    "processes": "",
    "kill": "",
}
ROWS = """none
none accumulate norm padded
none processes value
native overflow
native accumulate processes
native compile norm
native kill padded
native_bf16 accumulate norm kill
native_bf16 processes padded
native_bf16 compile accumulate
apex_o1 accumulate value padded
apex_o1 overflow processes
apex_o1 kill norm
apex_o1_bf16 norm processes
apex_o1_bf16 accumulate kill
apex_o2 accumulate overflow
apex_o2 processes norm padded
apex_o2 kill value
fp16 overflow norm
fp16 accumulate processes
fp16 kill padded
bf16 processes accumulate padded
bf16 kill
bf16_sr norm kill accumulate
bf16_sr processes value""".splitlines()
EXACT = ("train/loss", "eval/loss", "amp/")
LEFT_OUT = ("time/", "throughput/", "memory/", "energy/", "compile/", "environment", "_", "machine", "resume")
OF_FOLDERS = ("wandb:", "record:", "sync:", "see:", "  ")
CHANGING = re.compile(r"\b[0-9a-f]{8}\b|  [\d,.]+ samples/s|  [\d:]+ left")
KILLED_AT = 9  # the micro-batch of the second epoch in which a run is killed


def main() -> None:
    """Write the corpus."""
    import torch

    import ampcompare.cli  # noqa: F401 - so that the forks have it

    torch.set_num_threads(1)
    values, sentences = {}, {}
    for row in ROWS:
        folder = Path.cwd() / row.replace(" ", "-")
        values[row], sentences[row] = train(row.split(), folder)
    write(values, sentences)


def train(parts: list[str], folder: Path) -> tuple[Any, Any]:
    """Train a row; return what its record holds, and what was printed."""
    folder.mkdir()
    words = [*BASE, f"model.name={NETWORKS}:images", f"backend={parts[0]}", f"output_dir={folder}"]
    words += [word for part in parts[1:] for word in WORDS[part].split()]
    os.environ["FROZEN_WEIGHTS"] = str(folder / "weights")
    ends = []
    if "kill" in parts:
        os.environ["FROZEN_KILL"] = str(KILLED_AT)
        ends.append(forked(lambda: run(words)))
        del os.environ["FROZEN_KILL"]
    ends.append(run_two(words) if "processes" in parts else forked(lambda: run(words)))
    codes = [end[0] if isinstance(end, list) else end for end in ends]
    lines = [line for end in ends if isinstance(end, list) for line in end[1]]
    texts = [CHANGING.sub("", line) for line in lines if not line.startswith(OF_FOLDERS)]
    return {"exit codes": codes, "record": forked(lambda: recorded(folder))}, texts


def run(words: list[str]) -> list[Any]:
    """Train in this process, a fork; return its exit code and the lines that it printed."""
    code, output = command(["run", *words])
    for module in [*sys.modules.values()]:
        if getattr(module, "__file__", None) == str(NETWORKS):
            module.write_weights()
    return [code, output.splitlines()]


def run_two(words: list[str]) -> list[Any]:
    """Train in two processes."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run([*start, "-m", "ampcompare", "run", *words], capture_output=True, text=True)
    return [done.returncode, done.stdout.splitlines()]


def recorded(folder: Path) -> dict[str, Any]:
    """Return every value that the record of a run holds, and the hash of its weights."""
    from ampcompare import load_runs

    weights = folder / "weights"
    found: dict[str, Any] = {"weights": weights.read_text() if weights.exists() else None}
    (run,) = load_runs([folder])
    logged = {key: [*map(kept(key), column)] for key, (_, column) in run.logged.items() if is_kept(key)}
    summary = {key: kept(key)(value) for key, value in run.summary.items() if is_kept(key)}
    return found | {"state": str(run.state), "rows": run.rows, "logged": logged, "summary": summary}


def is_kept(key: str) -> bool:
    """Return whether a key has values that are the same each time."""
    return not key.startswith(LEFT_OUT) and "seconds" not in key


def kept(key: str) -> Any:
    """Return what makes of a value of a key what is compared."""
    if key.startswith(EXACT):
        return lambda value: value
    return lambda value: float(f"{value:.6g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
