"""Logs of other programs as templates: a file of a run is a text with `$epoch`, `$score` and the like."""

import itertools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Template
from typing import Any

GAIN = {"fp32": 0.0, "amp": 0.05}
SECONDS = {"fp32": 4.0, "amp": 3.0}  # of an epoch
FIRST = {"fp32": 5.0, "amp": 12.0}  # of the first epoch
SEEDS = (1, 2, 3)
EPOCHS = (1, 2, 3)
RUNS = [(arm, seed) for arm in GAIN for seed in SEEDS]


def result(arm: str, seed: int) -> float:
    """Return the last value of a run."""
    return round(0.6 + GAIN[arm] + seed / 50, 4)


def results(factor: float = 1.0) -> dict[str, tuple[int, float]]:
    """Return the number of runs of each arm and the mean of their last values."""
    return {arm: (len(SEEDS), factor * sum(result(arm, s) for s in SEEDS) / len(SEEDS)) for arm in GAIN}


def values(arm: str, seed: int, epoch: int) -> dict[str, Any]:
    """Return what a template may name."""
    score = round(result(arm, seed) - (EPOCHS[-1] - epoch) / 10, 4)
    return {
        "arm": arm,
        "is_amp": str(arm == "amp").lower(),
        "seed": seed,
        "run": RUNS.index((arm, seed)),
        "epoch": epoch,
        "step": 10 * epoch,
        "score": score,
        "percent": round(100 * score, 4),
        "result": result(arm, seed),
        "loss": 1 / epoch,
        "seconds": SECONDS[arm],
        "whole": round(SECONDS[arm]),
        "in_all": len(EPOCHS) * SECONDS[arm],
        "rate": 12 / SECONDS[arm],
        "clock": FIRST[arm] + SECONDS[arm] * (epoch - 1),
    }


def filled(template: str, arm: str, seed: int) -> Iterator[str]:
    """Yield the lines of a run: neighbouring lines that change from epoch to epoch are repeated for each."""

    def fill(line: str, epoch: int) -> str:
        return Template(line).substitute(values(arm, seed, epoch))

    for changes, lines in itertools.groupby(
        template.splitlines(), key=lambda line: fill(line, EPOCHS[0]) != fill(line, EPOCHS[-1])
    ):
        block = [*lines]
        yield from (fill(line, epoch) for epoch in (EPOCHS if changes else EPOCHS[:1]) for line in block)


def write_logs(files: Mapping[str, str], folder: str = "$arm/$seed") -> list[str]:
    """Write these files of each run below the working directory, and return the sources of the arms.

    A file whose name is the same for several runs has the rows of them all below one header.

    Args:
        files: The templates by the name of the file; `$folder` stands for the name of the folder.
        folder: The folder of each run.
    """
    for (arm, seed), (name, template) in itertools.product(RUNS, files.items()):
        parent = Path(Template(folder).substitute(arm=arm, seed=seed))
        named = Template(name).substitute(arm=arm, seed=seed, folder=parent.name)
        path = Path(os.path.normpath(parent / named))
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            template = "\n".join(line for line in template.splitlines() if "$" in line)
        with path.open("a") as file:
            file.writelines(f"{line}\n" for line in filled(template, arm, seed))
    return [f"{arm}={folder.partition('$')[0]}{arm}" for arm in GAIN]


def write(path: Path | str, content: str | bytes) -> Path:
    """Write a file and its folder."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


MMENGINE = """\
{"lr": 0.1, "data_time": 0.01, "loss": $loss, "time": $seconds, "step": $step}
{"accuracy/top1": $percent, "data_time": 0.01, "time": 9.0, "step": $epoch}
"""
DOWNLOAD = "Wall time,Step,Value\n170000000$epoch.5,$epoch,$score"
WANDB_RUNS = """\
Name,State,Created,Runtime,precision,seed,epoch,val_acc
run-$arm-$seed,finished,2026-01-01T00:00:00.000Z,360$seed,$arm,$seed,10,$result
"""
OPTUNA = """\
,number,value,datetime_start,duration,params_precision,state
$run,$run,$result,2026-01-01 10:00:00.123,0 days 00:05:00.1,$arm,COMPLETE
"""
# The files that each program writes for a run.
PROGRAMS: dict[str, dict[str, str]] = {
    "Ultralytics": {
        "results.csv": "epoch,time,train/box_loss,metrics/mAP50(B),lr/pg0\n$epoch,$clock,$loss,$score,0.1"
    },
    "Keras": {
        "training.csv": "epoch,accuracy,loss,val_accuracy,val_loss\n$epoch,0.9,$loss,$score,$epoch",
    },
    "fastai": {"history.csv": "epoch,train_loss,valid_loss,accuracy,time\n$epoch,1.5,1.25,$score,00:0$whole"},
    "mmengine": {
        f"20260101_101010/vis_data/{name}.json": MMENGINE for name in ("scalars", "20260101_101010")
    },
    "fairseq": {
        "train.log": """\
2026-01-01 | INFO | train | {"epoch": $epoch, "update": $epoch, "loss": "2.5", "wps": "$rate"}
2026-01-01 | INFO | train | {"epoch": $epoch, "valid_loss": "$score", "valid_num_updates": "9"}
"""
    },
    "Lightning": {
        "metrics.csv": "epoch,step,train_loss,val_acc\n$epoch,$step,$loss,\n$epoch,$step,,$score",
        "hparams.yaml": "lr: 0.1",
    },
    "Hugging Face": {
        "checkpoint-30/trainer_state.json": """\
{"global_step": 30, "log_history": [
{"epoch": $epoch, "step": $step, "loss": $loss, "learning_rate": 1e-5, "grad_norm": 1.0},
{"epoch": $epoch, "step": $step, "eval_accuracy": $score, "eval_runtime": 2.0},
{"epoch": 3, "step": 30, "train_runtime": $in_all}
]}
""",
        "all_results.json": '{"epoch": 3.0, "step": 30, "eval_accuracy": 0.5}',
    },
    "timm": {
        "summary.csv": "epoch,train_loss,eval_loss,eval_top1\n$epoch,$loss,$loss,$percent",
        "args.yaml": "seed: $seed",
    },
    "mmcv": {
        "20260101_101010.log.json": """\
{"env_info": "Linux", "seed": $seed}
{"mode": "train", "epoch": $epoch, "lr": 0.1, "iter": 50, "loss": $loss, "time": 0.4}
{"mode": "train", "epoch": $epoch, "lr": 0.1, "iter": 100, "loss": $loss, "time": 0.4}
{"mode": "val", "epoch": $epoch, "iter": 25, "bbox_mAP": $score}
"""
    },
    "TensorBoard's downloads": {
        "../run-${folder}-tag-val_acc.csv": DOWNLOAD,
        "../run-${folder}-tag-train_acc.csv": DOWNLOAD.replace("$score", "0.9"),
    },
    "CSV": {"log.csv": "step,lr,train_loss,val_acc\n$epoch,$loss,$loss,$score"},
    "JSON lines": {
        "log.jsonl": '{"step": $epoch, "lr": 0.1, "val": {"acc": $score}}',
        "summary.json": '{"step": 3, "lr": 0.1, "val": {"acc": $result}}',
    },
    "text": {
        "train.log": """\
Loading the data, please wait
model: {resnet}
2026-01-01 10:00:0$epoch INFO {"step": $epoch, "lr": 0.1, "val_acc": $score}
"""
    },
    "table": {"log.txt": "# my log\nstep\tval_acc\n$epoch\t$score"},
}
