"""The result of `ampcompare bench`: its file, from which every figure can be computed again.

The command fills these models, prints its table from them and writes them as JSON. Reports and sweeps read
the same models. Does not import torch.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ValidationError

from ampcompare.analysis.statistics.median_interval import (
    MIN_STARTS,
    Ratio,
    interval,
    is_even,
    ratio_of_starts,
    resolved_difference,
)
from ampcompare.errors import UserError, reason

PRECISE = 0.05  # A ratio is precise enough when half its interval is at most this fraction of it.
FIGURES = ("ratio", "low", "high", "step_ms", "images_per_second", "peak_mib")
WRITE_IT = "write the file with `ampcompare bench --json FILE`"


class BenchStart(BaseModel):
    """A start of a training: what it measured, and what the baseline did in the same rounds.

    A training whose step is too long for rounds has one value, that of a step.

    Attributes:
        images_per_second: Samples per second in each round.
        step_ms: Milliseconds of a step in each round.
        baseline_images_per_second: The baseline's samples per second in each round. Ctrl-C during a round may
            leave one of the two lists longer by that round, which then does not count.
        peak_mib: Peak memory in MiB; None where the device does not report it.
    """

    images_per_second: list[float]
    step_ms: list[float]
    baseline_images_per_second: list[float]
    peak_mib: float | None

    @property
    def ratios(self) -> list[float]:
        """The speed-up over the baseline within each round."""
        rounds = zip(self.images_per_second, self.baseline_images_per_second, strict=False)
        return [own / base for own, base in rounds]


class BenchArm(BaseModel):
    """Speed and memory of a training, and its speed relative to the baseline.

    Attributes:
        label: Unique name of the training.
        options: The options that decide the work of a step, also those that were not given.
        requested: The options in which trainings may differ, as given on the command line.
        ratio: Median speed-up over the baseline within rounds; above 1 is faster. From three starts on the
            geometric mean of the starts.
        low: Lower end of its interval; None for fewer than 12 rounds and fewer than three starts.
        high: Upper end of its interval.
        step_ms: Median milliseconds of a step.
        images_per_second: Median samples per second.
        peak_mib: Peak memory in MiB; None where the device does not report it.
        rounds: Rounds in which it was measured, of all starts together.
        start_ratios: The speed-up in each start.
        measured: The rounds of each start; empty in files of versions before 0.5.
        failed: Why it was not measured; None where it was.
        backend_source: Hash of the file of a plug-in backend; None for a built-in backend.
        dtype: The dtype that the backend computes in.
        is_computed_in_fp32: Whether the device computes this dtype in fp32.
    """

    label: str
    options: dict[str, str]
    requested: dict[str, str] = {}
    ratio: float | None
    low: float | None
    high: float | None
    step_ms: float | None = None
    images_per_second: float | None
    peak_mib: float | None
    rounds: int
    start_ratios: list[float] = []
    measured: list[BenchStart] = []
    failed: str | None = None
    backend_source: str | None = None
    dtype: str | None = None
    is_computed_in_fp32: bool = False

    @property
    def facts(self) -> dict[str, str]:
        """The options, and for a plug-in backend the hash of its file."""
        if not self.backend_source:
            return self.options
        return self.options | {"backend_source": self.backend_source}

    @property
    def is_precise(self) -> bool:
        """Return whether the interval is within 5% of the ratio."""
        return is_precise(self.ratio, self.low, self.high)

    @classmethod
    def from_starts(cls, starts: Sequence[BenchStart], level: float, **about: Any) -> Self:
        """Return the arm with the figures of its rounds; without figures if it failed.

        Args:
            starts: The rounds of each start.
            level: Confidence level of the interval, 0..1.
            **about: Label, options and facts of the training.
        """
        figures: dict[str, Any] = dict.fromkeys(FIGURES) | {"rounds": 0}
        if starts and not about.get("failed"):
            values = *speed_up(starts, level), *_rates(starts)
            figures = dict(zip(FIGURES, values, strict=True))
            figures["rounds"] = sum(len(start.images_per_second) for start in starts)
            figures["start_ratios"] = [statistics.median(start.ratios) for start in starts]
        return cls(measured=[*starts], **about, **figures)


class BenchControl(BenchArm):
    """The A/A control: the baseline once more.

    Attributes:
        is_even: Whether it shows that the machine was even; None without an interval.
        smallest_difference: The smallest difference that the benchmark resolves, as a fraction; None without
            an interval.
    """

    is_even: bool | None = None
    smallest_difference: float | None = None

    def with_verdict(self, starts: int) -> Self:
        """Return the control with what its interval shows, after so many starts of each training."""
        if self.low is None or self.high is None:
            return self
        shown = {
            "is_even": is_even(self.low, self.high),
            "smallest_difference": resolved_difference(self.low, self.high, starts),
        }
        return self.model_copy(update=shown)


class BenchFile(BaseModel):
    """The result of a benchmark, as `ampcompare bench --json` writes it.

    Attributes:
        baseline: Label of the baseline.
        level: Confidence level of each interval, 0..1; together they hold at 95%.
        machine: Processor or GPU, its threads and PyTorch's version.
        minutes: Limit for the rounds of a start.
        looks: Numbers of rounds after which a start may end because every ratio is precise enough.
        varied: The options in which the trainings differ.
        fingerprint: Hashes and names of network, data and code; None in files of older versions.
        train_samples: Number of samples in an epoch; None if it is not known.
        starts: Number of starts that were measured. From three on, the intervals are over starts.
        control: The baseline, measured once more.
        device: Name of the processor or GPU, as runs record it.
        device_type: Its type, such as `cuda`.
        unit: What a sample is called: `images` or `samples`.
        arms: One result per training, the baseline first.
    """

    baseline: str
    level: float
    machine: str
    minutes: float | None = None
    looks: list[int] = []
    varied: list[str] = []
    fingerprint: dict[str, Any] | None = None
    train_samples: int | None = None
    starts: int = 1
    control: BenchControl
    device: str
    device_type: str = ""
    unit: str = "images"
    arms: list[BenchArm]

    @classmethod
    def read(cls, file: str | Path) -> Self:
        """Read the file of a benchmark.

        Raises:
            UserError: It cannot be read, or is not the file of a benchmark.
        """
        try:
            return cls.model_validate(json.loads(Path(file).read_text(encoding="utf-8")))
        except ValidationError as problem:
            first = problem.errors()[0]
            key = ".".join(map(str, first["loc"]))
            raise UserError(
                f"--bench {str(file)!r}: not a file of `ampcompare bench --json` ({key}: {first['msg']}); "
                f"{WRITE_IT}"
            ) from None
        except (OSError, ValueError) as problem:
            raise UserError(
                f"--bench {str(file)!r}: cannot be read ({reason(problem)}); {WRITE_IT}"
            ) from None

    @property
    def is_of_starts(self) -> bool:
        """Return whether the intervals are over starts, so that they include what processes differ by."""
        return self.starts >= MIN_STARTS

    @property
    def is_even(self) -> bool:
        """Return whether the A/A control found the machine even; without an interval it counts as even."""
        low, high = self.control.low, self.control.high
        return low is None or high is None or is_even(low, high)

    @property
    def resolution(self) -> float:
        """Return how far from 1, as a fraction, the ratio of two identical trainings may be.

        It is the largest distance of the A/A control's interval from 1. What is measured from one start is
        never known to within 2%. Intervals over starts need no such allowance.
        """
        return resolved_difference(self.control.low, self.control.high, self.starts)


def speed_up(starts: Sequence[BenchStart], level: float) -> Ratio:
    """Return the speed-up of a training over all starts, and its interval.

    Below three starts the unit is the round, of all starts together. Then it is the start.

    Args:
        starts: What was measured, at least one start.
        level: Confidence level of the interval, 0..1.

    Returns:
        Speed-up, lower end, upper end; both ends are None without an interval.
    """
    if len(starts) >= MIN_STARTS:
        return ratio_of_starts([statistics.median(start.ratios) for start in starts], level)
    ratios = [ratio for start in starts for ratio in start.ratios]
    return statistics.median(ratios), *(interval(ratios, level) or (None, None))


def _rates(starts: Sequence[BenchStart]) -> tuple[float, float, float | None]:
    """Return the milliseconds of a step and the rate, medians over starts, and the highest peak memory."""
    peaks = [start.peak_mib for start in starts if start.peak_mib is not None]
    return (
        statistics.median(statistics.median(start.step_ms) for start in starts),
        statistics.median(statistics.median(start.images_per_second) for start in starts),
        max(peaks, default=None),
    )


def is_precise(ratio: float | None, low: float | None, high: float | None) -> bool:
    """Return whether the interval is within 5% of the ratio.

    >>> is_precise(2.0, 1.95, 2.05), is_precise(2.0, 1.8, 2.2), is_precise(2.0, None, None)
    (True, False, False)
    """
    if ratio is None or low is None or high is None:
        return False
    return (high - low) / 2 <= PRECISE * ratio
