"""What is measured: times, memory, gradients, the collapse of a scale."""

from __future__ import annotations

import math
import subprocess
import sys
from types import SimpleNamespace

import pynvml
import pytest
import torch

from ampcompare.machine.device import Memory, is_out_of_memory
from ampcompare.machine.environment import describe_environment
from ampcompare.machine.world import World
from ampcompare.measure.energy import EnergyMeter
from ampcompare.measure.gradients import FIRST_EXPONENT, gradient_norm, look_at_gradients
from ampcompare.measure.timing import StepTimer
from ampcompare.train.interval import Interval
from ampcompare.train.scale_watch import SKIPS_IN_A_ROW, ScaleWatch

CPU = torch.device("cpu")


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now

    def go(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("ampcompare.machine.device.time", clock)
    return clock


def test_timer_counts_steps_and_leaves_out_warm_up_pauses_and_cold_steps(clock: Clock):
    timer = StepTimer(CPU, warmup_steps=2)
    timer.resume()
    for number in range(6):
        clock.go(0.2 if number == 3 else 0.01)
        timer.lap(8, cold=number == 3)  # compiled something
    window = timer.pause()
    assert len(window.times_ms()) == 3
    assert window.images == 24
    assert window.times_ms() == pytest.approx([10] * 3)
    clock.go(0.2)  # logging, evaluation
    timer.resume()
    clock.go(0.01)
    timer.lap(8)
    second = timer.pause()
    assert second.times_ms() == pytest.approx([10])
    assert len(window.times_ms()) == 3  # a window keeps its own
    empty = timer.pause()
    assert (empty.times_ms(), empty.images) == ([], 0)


def test_making_the_batch_is_timed_apart_and_part_of_the_step(clock: Clock):
    timer = StepTimer(CPU, warmup_steps=1)
    timer.resume()
    for _ in range(3):
        clock.go(0.02)
        timer.fetched()
        clock.go(0.04)
        timer.lap(8)
    window = timer.pause()
    assert window.times_ms() == pytest.approx([60, 60])
    assert window.data_times_ms() == pytest.approx([20, 20])


def outputs(right: int, images: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Logits and labels of a step in which so many are right."""
    labels = torch.arange(images) % 4
    wrong = (labels + 1) % 4
    return [
        (
            torch.nn.functional.one_hot(torch.where(torch.arange(images) < right, labels, wrong), 4).float(),
            labels,
        )
    ]


@pytest.fixture(params=["looked at", "copied"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How values come to the host: each by itself on a CPU, all in one copy from elsewhere."""
    if request.param == "copied":
        monkeypatch.setattr("ampcompare.train.interval.is_host", lambda device: False)
    return request.param


@pytest.mark.parametrize("most_kept", [0, 40, 2**20])
def test_interval_weighs_steps_by_their_images_and_names_the_bad_ones(
    monkeypatch: pytest.MonkeyPatch, way: str, most_kept: int
):
    monkeypatch.setattr("ampcompare.train.interval.MAX_KEPT", most_kept)
    interval = Interval()
    for loss, correct, images in [(1.0, 4, 8), (2.0, 1, 4), (float("nan"), 0, 4)]:
        interval.add(torch.tensor(loss), outputs(correct, images), images)
    assert len(interval) == 3
    reading = interval.close({"scale": torch.tensor(512.0), "skipped": torch.tensor(3)})
    interval.add(torch.tensor(1.0), outputs(1, 3) + outputs(3, 5), 8)  # two micro-batches
    interval.add(torch.tensor(2.5), outputs(1, 4), 4)
    values = reading.read()  # while the next interval goes on
    assert math.isnan(values.loss)
    assert values.nonfinite_steps == [2]
    assert values.accuracy == 5 / 16
    assert values.scalars == {"scale": 512.0, "skipped": 3}
    again = interval.close({}).read()
    assert again.loss == 1.5
    assert again.accuracy == 5 / 12
    assert again.nonfinite_steps == []


def test_a_reading_keeps_what_held_at_the_intervals_end(way: str):
    interval, scale = Interval(), torch.tensor(4.0)
    interval.add(torch.tensor(1.0), outputs(1, 2), 2)
    counts = torch.tensor([3, 2**30 + 1])  # more than fp32 can count
    reading = interval.close({"scale": scale}, [{"counts": counts, "norm": torch.tensor(0.5)}, {}])
    for changed in (scale, counts):
        changed.mul_(2)
    values = reading.read()
    assert values.scalars["scale"] == 4.0
    assert values.looks == [{"counts": [3, 2**30 + 1], "norm": 0.5}, {}]
    assert isinstance(values.looks[0]["counts"][0], float)  # a record says 3.0, whichever way


def test_half_precision_losses_reach_the_row_as_they_are(way: str):
    interval = Interval()
    for loss in (torch.tensor(0.3), torch.tensor(7.7)):
        interval.add(loss.bfloat16().requires_grad_(), outputs(1, 2), 2)
    scalars = {"scale": torch.tensor(3.0, dtype=torch.float16), "skipped": torch.tensor(2)}
    values = interval.close(scalars).read()
    assert values.loss == (0.30078125 + 7.6875) / 2
    assert [type(x) for x in values.scalars.values()] == [float, float]


def test_underflow_is_what_the_cast_to_fp16_does():
    exponents = torch.arange(-40.0, 5.0, 0.25)
    gradient = torch.cat([2.0**exponents, -(2.0**exponents), torch.zeros(7)])
    for scale in (1.0, 1024.0):
        found = look_at_gradients(
            {"a": [gradient[:50], gradient[50:100]], "b": [gradient[100:]]}, torch.tensor(scale)
        )
        for part, suffix in ((gradient, ""), (gradient[:100], "/a"), (gradient[100:], "/b")):
            nonzero = (part != 0).sum()
            for key, factor in (("underflow_fraction", scale), ("underflow_fraction_unscaled", 1.0)):
                flushed = ((part * factor).half() == 0) & (part != 0)
                assert found[f"grad/{key}{suffix}"].item() == pytest.approx((flushed.sum() / nonzero).item())
            lost = ((part * scale).half().isinf()).sum() / nonzero
            assert found[f"grad/overflow_fraction{suffix}"].item() == pytest.approx(lost.item())
            assert found[f"grad/zero_fraction{suffix}"].item() == pytest.approx(
                (part == 0).float().mean().item()
            )


def test_overflow_begins_where_fp16_rounds_to_infinity():
    edge = torch.tensor([65519.996, 65520.0, float("inf"), float("nan")])
    assert edge.half().isfinite().tolist() == [True, False, False, False]
    found = look_at_gradients({"all": [edge]}, torch.tensor(1.0))
    assert found["grad/overflow_fraction"].item() == 0.75


def test_exponents_are_counted_in_their_bins():
    gradient = torch.tensor([0.0, 1.0, -1.5, 2.0, 2.0**-60, 2.0**40, float("inf")])
    histogram = look_at_gradients({"all": [gradient]}, torch.tensor(1.0))["grad/exponents"]
    assert histogram[-FIRST_EXPONENT] == 2  # 1 and -1.5
    assert histogram[1 - FIRST_EXPONENT] == 1
    assert histogram[0] == 1
    assert histogram[-1] == 1
    assert histogram.sum() == 5


def test_gradient_norm_is_that_of_all_elements_in_fp32():
    gradients = [torch.full((3,), 300.0, dtype=torch.float16), torch.full((4,), 400.0)]
    expected = math.sqrt(3 * 300**2 + 4 * 400**2)  # the half part alone would overflow in fp16
    assert gradient_norm(gradients).item() == pytest.approx(expected)


def test_watch_reports_a_low_scale_once():
    watch = ScaleWatch()
    assert watch.check(10, 10, 1.0, 5) is None
    assert "fell to 0.5" in watch.check(20, 10, 0.5, 6)
    assert watch.collapsed_at == 20
    assert watch.check(30, 10, 0.25, 7) is None


def test_watch_reports_steps_skipped_in_a_row_but_not_scattered_ones():
    watch = ScaleWatch()
    assert watch.check(SKIPS_IN_A_ROW, SKIPS_IN_A_ROW, 8.0, SKIPS_IN_A_ROW - 1) is None
    half = SKIPS_IN_A_ROW // 2
    skipped = SKIPS_IN_A_ROW - 1 + half
    assert watch.check(SKIPS_IN_A_ROW + half, half, 8.0, skipped) is None
    assert "in a row" in watch.check(SKIPS_IN_A_ROW + 2 * half, half, 8.0, skipped + half)


@pytest.mark.slow
def test_memory_of_a_cpu_is_the_resident_set():
    code = (
        "import torch; from ampcompare.machine.device import peak_of_process; before = peak_of_process(); "
        "kept = torch.ones(768 * 2**20, dtype=torch.uint8); print(before, peak_of_process())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, after = map(float, done.stdout.split())
    assert 50 < before < 1000  # its own, not that of this process, which launched it
    assert 500 < after - before < 800  # the peak of the imports lies above what they keep


class Allocator:
    """PyTorch's counters of one device, in bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.peak = 0
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: self.now)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: self.peak)
        monkeypatch.setattr(
            torch.cuda, "reset_peak_memory_stats", lambda device: setattr(self, "peak", self.now)
        )

    def take(self, mib: int) -> None:
        self.now += mib * 2**20
        self.peak = max(self.peak, self.now)


def test_a_graph_s_memory_counts_beside_all_that_comes_after_its_capture(monkeypatch: pytest.MonkeyPatch):
    device = Allocator(monkeypatch)
    memory = Memory(torch.device("cuda"))
    device.take(100)  # weights
    device.take(900)  # a search for algorithms
    device.take(-900)
    for other in (0, 40):  # a training's graph, then another one's
        with memory.keeping():
            device.take(400 + other)  # activations
            device.take(-390 - other)  # all but the results
    assert memory.peak_mib() == 100 + 400 + 440  # a launch allocates nothing
    device.take(250)  # the activations of a short batch
    device.take(-250)
    assert memory.peak_mib() == 100 + 400 + 440 + 250
    memory.reset()  # warm-up is over
    assert memory.peak_mib() == 100 + 400 + 440


class Counter:
    """NVML with one GPU, whose energy counter gives these values (mJ), or fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *values: int | None) -> None:
        self.values = list(values)
        monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", self.read)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="1"))

    def read(self, handle: str) -> int:
        value = self.values.pop(0)
        if value is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return value


def test_energy_is_the_difference_of_two_counts(monkeypatch: pytest.MonkeyPatch):
    Counter(monkeypatch, 0, 1000, 4500)
    meter = EnergyMeter(torch.device("cuda"))
    meter.start()
    assert meter.joules() == 3.5


@pytest.mark.parametrize("values", [(0, None), (0, 1000, None)])
def test_a_counter_that_fails_is_given_up_and_said_once(
    monkeypatch: pytest.MonkeyPatch, values: tuple[int | None]
):
    Counter(monkeypatch, *values)
    notes: list[str] = []
    meter = EnergyMeter(torch.device("cuda"), notes.append)
    for _ in range(2):
        meter.start()
        assert meter.joules() is None
    assert len(notes) == 1
    assert "energy counter fails (GPU is lost)" in notes[0]


OUT = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")


def behind(first: BaseException, second: BaseException, *, cause: bool) -> BaseException:
    second.__cause__, second.__context__ = (first, None) if cause else (None, first)
    return second


@pytest.mark.parametrize(
    ("problem", "is_one"),
    [
        (OUT, True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (
            behind(OUT, RuntimeError("operation failed due to a previous error during capture"), cause=False),
            True,
        ),
        (behind(OUT, RuntimeError("backend='inductor' raised"), cause=True), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (behind(KeyError("x"), RuntimeError("unrelated"), cause=False), False),
        (UserWarning("out of memory"), False),
    ],
)
def test_no_memory_left_is_known_by_its_errors_and_by_what_is_behind_others(
    problem: BaseException, is_one: bool
):
    assert is_out_of_memory(problem) is is_one


def test_environment_names_the_machine_and_versions():
    found = describe_environment(CPU, tf32=False)
    assert found["device_type"] == "cpu"
    assert found["device_name"]
    assert found["torch"] == torch.__version__
    assert found["packages"]["wandb"]
    assert found["tf32"] is False
    assert found["cuda"] is None


class Alike(World):
    """As if all processes had the same numbers."""

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.mul_(self.size)


def test_the_losses_of_a_checkpoint_are_those_that_were_computed_by_any_number_of_processes():
    for size in range(2, 9):
        losses = [torch.tensor(0.1 * n) for n in range(1, 50)]
        interval, resumed = Interval(Alike(0, size)), Interval(Alike(0, size))
        for loss in losses:
            interval.add(loss, [(torch.eye(2), torch.tensor([0, 0]))], 2 * size)
        state = interval.state_dict()
        resumed.load_state_dict(state, torch.device("cpu"))
        assert torch.equal(resumed.state_dict()["losses"], state["losses"])
        assert resumed.close({}).read().loss == interval.close({}).read().loss
