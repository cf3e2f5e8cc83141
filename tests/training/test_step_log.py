"""Steps in, rows out: figures of an interval, its times, what is warned of once, what waits for nothing."""

import math
from typing import Any

import pytest
import torch
from support.outside import Outside
from torch import Tensor

from ampcompare import metrics
from ampcompare.training.anomalies import MAX_SKIPS_IN_A_ROW
from ampcompare.training.interval import StepResult
from ampcompare.training.overflow_detection import OverflowSource
from ampcompare.training.resources import PeakMemory
from ampcompare.training.step_log import StepLog
from ampcompare.training.timing import Timing

CPU = torch.device("cpu")


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Scale:
    """A loss scale that is told what it is and whether the last step was skipped."""

    device = CPU

    def __init__(self) -> None:
        self.scale, self.skipped = 8.0, False

    def scale_factor(self) -> Tensor:
        return torch.tensor(self.scale)

    def scales_dynamically(self) -> bool:
        return True


class Made:
    """A metrics logger, the rows that it handed out, and a clock."""

    def __init__(
        self, *, warmup_steps: int = 0, energy: Any = None, memory: PeakMemory | None = None, **options: Any
    ) -> None:
        self.clock, self.scale = Clock(), Scale()
        self.rows: list[dict[str, Any]] = []
        energy = energy and energy(self.clock)
        timing = Timing(CPU, warmup_steps=warmup_steps, energy=energy, memory=memory, clock=self.clock)
        self.logger = StepLog(self.scale, timing, self.on_row, **({"every": 1000, "lag": False} | options))
        self.logger.resume()
        self.number, self.row_seconds = 0, 0.0

    def on_row(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self.clock.now += self.row_seconds

    def step(self, loss: float = 1.0, samples: int = 8, seconds: float = 0.01, **result: Any) -> None:
        self.number += 1
        self.clock.now += seconds
        skipped = torch.tensor(int(self.scale.skipped))
        step = StepResult(torch.tensor(loss), samples, skipped=skipped, **result)
        self.logger.add(self.number, self.number / 10, step, 0.1)


@pytest.fixture
def made() -> Made:
    return Made()


def right(correct: int, of: int, ignored: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Return logits of two classes, of which so many are correct, and the classes."""
    classes = torch.cat([torch.zeros(of).long(), torch.full((ignored,), -100)])
    predicted = (torch.arange(of + ignored) >= correct).long()
    return [(torch.nn.functional.one_hot(predicted, 2).float(), classes)]


def test_a_row_weighs_steps_by_their_samples_and_names_the_bad_one(
    made: Made, caplog: pytest.LogCaptureFixture
):
    made.scale.scale = 1.0
    for loss, correct, samples in [(1.0, 4, 8), (2.0, 1, 4), (float("nan"), 0, 4)]:
        made.step(loss, samples, classified=right(correct, samples))
    made.logger.end_interval()
    made.step(1.0, 8, classified=right(1, 3) + right(3, 5, ignored=2))  # two micro-batches
    made.step(2.5, 4, classified=right(1, 4))
    made.logger.flush()
    first, second = made.rows
    assert math.isnan(first[metrics.LOSS])
    assert (first[metrics.ACCURACY], first[metrics.STEP]) == (5 / 16, 3)
    assert caplog.messages == ["step 3: the training loss is NaN (loss scale 1); the training continues"]
    assert (second[metrics.LOSS], second[metrics.ACCURACY]) == (1.5, 5 / 12)


def test_step_times_exclude_warm_up_pauses_rows_and_compilation():
    made = Made(warmup_steps=2, every=3)
    made.row_seconds = 1.0
    for number in range(6):
        made.step(seconds=0.2 if number == 4 else 0.01, compiled=number == 4)
    made.logger.pause()
    made.clock.now += 5  # an evaluation
    made.logger.resume()
    made.step(seconds=0.02)
    made.logger.flush()
    assert [row[metrics.STEP_TIME] for row in made.rows] == pytest.approx([10, 10, 20])
    assert [row[metrics.THROUGHPUT] for row in made.rows] == pytest.approx([800, 800, 400])
    assert made.rows[-1][metrics.TRAIN_SECONDS] == pytest.approx(0.27)
    assert made.rows[-1][metrics.ELAPSED] == pytest.approx(7.27)
    assert made.logger.summary()[metrics.STEP_TIME_P50] == pytest.approx(10)


def test_the_time_of_start_up_is_that_of_the_first_step_and_of_steps_that_compiled():
    made = Made(every=2)
    made.row_seconds = 100.0
    for seconds, compiled in [(3.0, False), (0.5, False), (7.0, True), (0.5, False)]:
        made.step(seconds=seconds, compiled=compiled)
    made.logger.pause()
    made.clock.now += 50  # an evaluation
    made.logger.resume()
    made.step(seconds=0.25)
    made.logger.flush()
    assert [row[metrics.STARTUP_SECONDS] for row in made.rows] == pytest.approx([3, 10, 10])
    assert [row[metrics.TRAIN_SECONDS] for row in made.rows] == pytest.approx([3.5, 11, 11.25])


def test_making_the_batch_is_timed_apart_and_part_of_the_step(made: Made):
    for _ in range(2):
        made.clock.now += 0.02
        made.logger.timing.mark_batch_ready()
        made.step(seconds=0.04)
    made.logger.flush()
    assert made.rows[0][metrics.STEP_TIME] == pytest.approx(60)
    assert made.rows[0][metrics.DATA_TIME] == pytest.approx(20)


def test_a_low_loss_scale_is_reported_once(made: Made, caplog: pytest.LogCaptureFixture):
    for scale in (1.0, 0.5, 0.25):
        made.scale.scale = scale
        made.step()
        made.logger.end_interval()
    (message,) = caplog.messages
    assert "fell to 0.5" in message
    assert made.logger.summary()[metrics.SCALE_COLLAPSED] == 2


@pytest.mark.parametrize("every", [7, 1000])
def test_steps_skipped_in_a_row_are_counted_across_rows_and_within_one(
    caplog: pytest.LogCaptureFixture, every: int
):
    """A fault of before: only intervals that were skipped as a whole counted."""
    made = Made(every=every)
    first = 30
    for number in range(1, 100):
        made.scale.skipped = number % 2 == 0 if number < first else number < first + MAX_SKIPS_IN_A_ROW
        made.step()
    made.logger.flush()
    assert made.logger.summary()[metrics.SCALE_COLLAPSED] == first + MAX_SKIPS_IN_A_ROW - 1
    assert made.rows[-1][metrics.SKIPPED] == first // 2 - 1 + MAX_SKIPS_IN_A_ROW
    assert sum("steps in a row" in note for note in caplog.messages) == 1


def test_rows_of_one_interval_are_in_the_order_of_their_steps():
    """A diagnostic step follows a step that overflowed. A reader reports steps that go back as a fault."""
    made = Made(every=4)
    for number in range(1, 5):
        made.scale.skipped = number == 2
        found = OverflowSource(torch.tensor(0), ["layer"], torch.tensor(-1), []) if number == 2 else None
        made.step(overflow=found, diagnostics={metrics.UNDERFLOW: torch.tensor(0.5)} if number == 4 else {})
    made.logger.flush()
    assert [row[metrics.STEP] for row in made.rows] == [2, 4, 4]


def test_skips_and_the_first_anomaly_are_kept_over_a_resume():
    """A skip within the first steps is the search of the loss scaler; a later one is an anomaly."""
    first, second = Made(), Made()
    for made, steps in ((first, range(1, 15)), (second, range(15, 40))):
        for number in steps:
            made.scale.skipped = number in (1, 14, 39)
            made.step()
        made.logger.flush()
        made.logger.pause()
        assert made.logger.summary()[metrics.FIRST_ANOMALY] == 14
        if made is first:
            second.logger.load_state_dict(first.logger.state_dict())
    assert second.rows[-1][metrics.SKIPPED] == 3


def test_a_first_anomaly_is_handed_out_when_it_is_found_and_earlier_skips_are_called_the_search_for_a_scale(
    caplog: pytest.LogCaptureFixture,
):
    found: list[dict[str, Any]] = []
    made = Made(every=4, on_anomaly=found.append)
    for number in range(1, 33):
        made.scale.skipped = number in (2, 3, 28, 29)
        name = "late" if number > 20 else "early"
        source = OverflowSource(torch.tensor(0), [name], torch.tensor(-1), []) if made.scale.skipped else None
        made.step(overflow=source)
        assert found == ([{metrics.FIRST_ANOMALY: 28}] if number >= 28 else [])
    early, late = caplog.messages
    assert early.startswith("step 2 was skipped: early is the last module")
    assert early.endswith("; this is no fault while the loss scaler finds its first scale")
    assert late == "step 28 was skipped: late is the last module whose gradient is inf or nan"


def test_peak_memory_excludes_the_first_steps(outside: Outside):
    """A fault of before: an evaluation's batch in fp32 was the peak under every backend."""
    peak = 0.0

    def forget(device: torch.device) -> None:
        nonlocal peak
        peak = 100.0  # what is held

    outside.replace(torch.cuda, "reset_peak_memory_stats", forget)
    outside.replace(torch.cuda, "max_memory_allocated", lambda device: peak * 2**20)
    outside.replace(torch.cuda, "max_memory_reserved", lambda device: peak * 2**20)
    made = Made(warmup_steps=1, every=1, memory=PeakMemory(torch.device("cuda")))
    for taken in (700.0, 300.0, 400.0, 200.0):
        peak = max(peak, taken)
        made.step()
        made.logger.pause()
        peak = 5000.0  # an evaluation
        made.logger.resume()
    made.logger.flush()
    assert [row[metrics.PEAK_MEMORY] for row in made.rows] == [100, 300, 400, 400]


class Energy:
    """10 J each step, as the clock goes."""

    is_available = True

    def __init__(self, clock: Clock) -> None:
        self.clock, self.began = clock, 0.0

    def start(self) -> None:
        self.began = self.clock.now

    def joules(self) -> float:
        return (self.clock.now - self.began) * 1000


@pytest.mark.parametrize(
    ("warm_up", "cold_at", "expected"),
    [(0, 0, [3 * 10 / 24, 10 / 8]), (2, 0, [10 / 8, 10 / 8]), (4, 0, []), (0, 2, [10 / 8, 10 / 8])],
)
def test_energy_excludes_warm_up_and_compilation(warm_up: int, cold_at: int, expected: list[float]):
    """One definition, for our loop and for the Recorder's: from `resume` to `pause`, behind a wait."""
    made = Made(warmup_steps=warm_up, energy=Energy)
    for steps in (3, 1):
        made.logger.resume()
        for _ in range(steps):
            made.step(compiled=made.number + 1 == cold_at)
        made.logger.flush()
        made.logger.pause()
        made.clock.now += 9  # an evaluation
    found = [row[metrics.ENERGY] for row in made.rows if metrics.ENERGY in row]
    assert found == pytest.approx(expected)


def test_a_row_at_an_epochs_end_weighs_by_its_steps_in_the_median():
    made = Made(every=10)
    for seconds, steps in ((0.01, 10), (0.1, 1), (0.01, 9)):
        for _ in range(steps):
            made.step(seconds=seconds)
        made.logger.end_interval()
    made.logger.pause()
    state, later = made.logger.state_dict(), Made()
    later.logger.load_state_dict(state)
    assert len(state["throughputs"]) == 3  # as many as rows, not as steps
    for logger in (made.logger, later.logger):
        assert logger.summary()[metrics.THROUGHPUT_MEDIAN] == pytest.approx(800)
