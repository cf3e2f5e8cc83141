"""Records of simulated runs, built directly: small histories with known values."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from ampcompare.runs import RunRecord
from ampcompare.runs.run_record import build_columns

START = datetime(2026, 1, 1, tzinfo=UTC)
LASTS = 100.0  # seconds of a run
TEST_IMAGES, CLASSES = 10_000, 10
BACKENDS = ("none", "native", "apex_o1", "fp16", "native_bf16")


def record(
    backend: str,
    seed: int,
    *,
    accuracies: Sequence[float] = (0.5, 0.8, 0.93),
    losses: Sequence[float] = (2.0, 1.0, 0.3),
    speed: float | None = 100.0,
    peak_mib: float | None = 4000.0,
    exit_code: int | None = 0,
    state: str = "finished",
    place: int = 0,
    plan: dict[str, Any] | None = None,
) -> RunRecord:
    """Return a run with these evaluations and losses.

    None was not recorded; NaN was logged. `place` is the run's position in time.
    """
    measured = {"throughput/images_per_second": speed, "memory/peak_mib": peak_mib}
    rows = [
        {"global_step": 10.0 * step, "epoch": float(step), "train/loss": loss, **measured}
        | {"time/elapsed_seconds": LASTS * (step + 1) / len(losses)}
        for step, loss in enumerate(losses)
    ]
    rows += [
        {"global_step": 10.0 * (step + 1), "epoch": step + 1.0, "eval/accuracy": value}
        for step, value in enumerate(accuracies)
    ]
    count, logged = build_columns(rows)
    environment = {"device_name": "GPU", "device_type": "cuda"}
    return RunRecord(
        id=f"{backend}-{seed}",
        name=f"{backend} {seed}",
        state=state,
        exit_code=exit_code,
        started_at=START + timedelta(seconds=1.1 * LASTS * place),
        config={"backend": backend, "seed": seed, "data": {"source": "cifar10"}, "plan": plan or {}},
        summary={"environment": environment, "data/test_images": TEST_IMAGES, "data/classes": CLASSES},
        rows=count,
        logged=logged,
    )


def experiment(
    speeds: np.ndarray,
    peaks: np.ndarray | None = None,
    quality: np.ndarray | None = None,
    *,
    places: np.ndarray | None = None,
    plan: dict[str, Any] | None = None,
) -> list[RunRecord]:
    """Return the runs of the baseline and k backends.

    Args:
        speeds: Images per second, shape (k + 1, seeds), like the other arrays.
        peaks: Peak memory in MiB.
        quality: Accuracy in percent.
        places: Positions in time.
        plan: The plan in every config.
    """
    return [
        record(
            BACKENDS[group],
            seed,
            speed=speed,
            peak_mib=None if peaks is None else peaks[group, seed],
            accuracies=(0.5, 0.8, 0.93 if quality is None else quality[group, seed] / 100),
            place=0 if places is None else int(places[group, seed]),
            plan=plan,
        )
        for (group, seed), speed in np.ndenumerate(speeds)
    ]
