"""Our training and a Recorder around the same loop in plain PyTorch record the same, key by key."""

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.recorded_loop import InMemoryRun
from support.training import fit
from torch.nn import functional as F

from ampcompare import Recorder, load_runs, metrics
from ampcompare.precision import build_precision

CLIP = 0.5
# Timed, or of the machine: that both have them is all that can be compared.
MEASURED = ("time/", "throughput/", "memory/")
# Hooks of the Recorder see no activations, and a loop does not hand over its outputs.
OURS_ALONE = ("activation/", metrics.ACCURACY, metrics.NONFINITE_MODULE, metrics.GRADIENT_NORM)


def by_step_and_key(rows: list[dict[str, Any]]) -> dict[tuple[int, str], Any]:
    return {
        (row[metrics.STEP], key): value
        for row in rows
        for key, value in row.items()
        if not key.startswith((*MEASURED, "_", *OURS_ALONE)) and key != metrics.GRADIENT_NORM_AT_UPDATE
    }


CASES = [  # backend, micro-batches in a step, clipping, overflow
    ("none", 2, CLIP, False),
    ("native", 1, None, False),
    ("native", 2, CLIP, True),
    ("native_bf16", 1, CLIP, False),
]


@pytest.mark.parametrize(("backend", "accumulate", "clip", "overflow"), CASES)
def test_both_record_the_same_key_by_key(
    tracker: InMemoryRun, backend: str, accumulate: int, clip: float | None, overflow: bool
):
    scale = 2.0**40 if overflow else 2.0**10
    loop, rows = fit(
        f"backend={backend}",
        f"precision.init_scale={scale}",
        f"training.accumulate={accumulate}",
        f"training.clip_norm={clip or 'null'}",
        "optimizer.name=sgd",
        "optimizer.fused=false",
        "schedule.name=constant",
        "schedule.warmup_epochs=0",
        "diagnostics.every=1",
        "task.metrics=[accuracy]",
        "log.every=1",
    )
    model = copy.deepcopy(loop.trainer.model)
    optimizer = type(loop.trainer.optimizer)(model.parameters(), **loop.trainer.optimizer.defaults)
    batches = [[*loop.train.epoch(number)] for number in range(loop.config.epochs)]
    loop.run()

    precision = build_precision(backend)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=backend == "native")
    with Recorder(
        backend=backend,
        seed=0,
        batch_size=loop.config.batch_size,
        scaler=scaler,
        optimizer=optimizer,
        model=model,
        every=1,
        warmup_steps=loop.config.log.warmup_steps,
        diagnostics=1,
    ) as record:
        for epoch, of_epoch in enumerate(batches):
            model.train()
            for start in range(0, len(of_epoch), accumulate):
                group = of_epoch[start : start + accumulate]
                samples = sum(len(targets) for _, targets in group)
                total = 0.0
                record.mark_batch_ready()
                for inputs, targets in group:
                    with precision.forward_context():
                        loss = F.cross_entropy(model(inputs), targets)
                    loss = loss * (len(targets) / samples)
                    scaler.scale(loss).backward()
                    total += float(loss.detach())
                scaler.unscale_(optimizer)
                if clip:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                record.step(loss=total, samples=samples, epoch=epoch + (start + len(group)) / len(of_epoch))
            model.eval()
            with torch.no_grad():
                pairs = [(model(inputs), targets) for inputs, targets in loop.evaluation.loader.epoch(0)]
            outputs, targets = (torch.cat(parts) for parts in zip(*pairs, strict=True))
            accuracy = (outputs.argmax(1) == targets).double().mean()
            record.evaluate(loss=F.cross_entropy(outputs, targets), accuracy=accuracy)

    ours, theirs = by_step_and_key(rows), by_step_and_key(tracker.rows)
    if clip or overflow:  # the Recorder's hook runs after clipping, and not at all in a skipped step
        ours, theirs = (
            {at: value for at, value in values.items() if not at[1].startswith("grad/")}
            for values in (ours, theirs)
        )
    assert {*ours} == {*theirs}
    # Only our training computes the backward of slow 16-bit operations in fp32.
    tolerance = 1e-5 if backend == "none" else 2e-2
    for at, value in ours.items():
        if not isinstance(value, metrics.Histogram):
            assert theirs[at] == pytest.approx(value, rel=tolerance, abs=tolerance), at
    skipped = theirs[max(at for at in theirs if at[1] == metrics.SKIPPED)]
    assert (skipped > 0) == overflow

    summary = loop.summary()
    of_best = [{key for key in each if key.startswith("best/")} for each in (summary, tracker.summary)]
    assert of_best[0] == of_best[1]
    assert tracker.summary[metrics.BEST_ACCURACY] == pytest.approx(summary[metrics.BEST_ACCURACY])
    timed = ("time/", "throughput/")  # the peak of memory is that of the first record of a process
    measured = [
        {key for row in each for key in row if key.startswith(timed)} for each in (rows, tracker.rows)
    ]
    assert measured[0] == measured[1]

    norms = {row[metrics.STEP]: row[metrics.GRADIENT_NORM] for row in rows if metrics.GRADIENT_NORM in row}
    at_update = tracker.by_step(metrics.GRADIENT_NORM_AT_UPDATE)
    assert not tracker.by_step(metrics.GRADIENT_NORM)
    for step, norm in at_update.items():
        assert norm == pytest.approx(min(norms[step], clip or norms[step]), rel=5e-3)
    assert len(at_update) >= len(norms) - skipped


@pytest.mark.parametrize(("better", "best", "epoch"), [("higher", 0.9, 2), ("lower", 0.2, 3)])
def test_the_best_value_is_that_of_the_metric_that_runs_are_compared_by(
    tracker: InMemoryRun, better: str, best: float, epoch: int
):
    with Recorder(backend="none", seed=1, batch_size=8, metric="eval/wer", better=better) as record:
        for number, (wer, accuracy) in enumerate(
            [(0.5, 0.9), (0.9, 0.1), (0.2, 0.3), (float("nan"), 1.0)], 1
        ):
            record.step(loss=1.0, samples=8, epoch=number)
            record.evaluate(wer=wer, accuracy=accuracy)
    assert {key: value for key, value in tracker.summary.items() if key.startswith("best/")} == {
        "best/eval_wer": best,
        metrics.BEST_EPOCH: epoch,
    }


FOLDS = """
import sys
from ampcompare import Recorder
for fold in range(2):
    with Recorder(backend="none", seed=fold, batch_size=8, every=1, output_dir=sys.argv[1]) as record:
        for _ in range(12):
            record.step(loss=1.0, samples=8)
"""


@pytest.mark.slow
def test_the_peak_memory_of_a_cpu_is_that_of_the_first_record_of_a_process(tmp_path: Path):
    environment = {**os.environ, "WANDB_MODE": "offline"}
    subprocess.run([sys.executable, "-c", FOLDS, tmp_path], check=True, env=environment)
    peaks = {run.config["seed"]: metrics.PEAK_MEMORY in run.logged for run in load_runs([tmp_path])}
    assert peaks == {0: True, 1: False}
