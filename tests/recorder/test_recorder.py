"""A user's loop under the recorder: our rows and names, its times, scale, skips, gradients and end."""

import copy
import math
import os
import re
import signal
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from support.outside import ManualClock, Outside
from support.recorded_loop import InMemoryRun, Loop
from support.refusals import line_of

from ampcompare import Recorder, metrics
from ampcompare.errors import UserError
from ampcompare.precision import build_precision

PARTS = {"seed": 1, "batch_size": 8}


@pytest.fixture
def manual_clock(outside: Outside) -> ManualClock:
    """Return a clock that the test moves."""
    return outside.stop_clock()


def test_rows_are_in_the_order_of_steps_where_an_evaluation_comes_between_diagnostic_steps(
    tracker: InMemoryRun,
):
    loop = Loop(steps=25)
    with Recorder(backend="none", optimizer=loop.optimizer, every=32, diagnostics=10, **PARTS) as record:
        loop(record)
        record.evaluate(loss=0.25)
        loop(record)
    steps = [row[metrics.STEP] for row in tracker.rows]
    assert steps == sorted(steps)
    assert {10, 20, 25, 30, 32, 40, 50} <= {*steps}


def test_throughput_covers_training_steps_only(tracker: InMemoryRun, manual_clock: ManualClock):
    """Not of warm-up, evaluations, pauses, nor of a step whose beginning is not known."""
    with Recorder(backend="none", every=5, warmup_steps=3, **PARTS) as record:
        for step in range(1, 21):
            manual_clock.now += 1000.0 if step <= 3 else 0.125
            record.mark_batch_ready()
            manual_clock.now += 0.375
            if step == 9:
                manual_clock.now += 77.0  # behind an evaluation: a checkpoint, then the step
            record.step(loss=torch.tensor(1.0), samples=10)
            if step == 8:
                manual_clock.now += 300.0
                record.evaluate(accuracy=0.5)
            if step == 12:
                with record.paused():
                    manual_clock.now += 500.0
    assert tracker.values_of(metrics.THROUGHPUT) == pytest.approx([20.0] * 4)
    assert tracker.values_of(metrics.STEP_TIME) == pytest.approx([500.0] * 4)
    assert tracker.values_of(metrics.DATA_TIME) == pytest.approx([125.0] * 4)
    # All but the step behind the evaluation, whose 77.5 s may be anything.
    assert tracker.values_of(metrics.TRAIN_SECONDS)[-1] == pytest.approx(3 * 1000.375 + 16 * 0.5)
    assert tracker.summary[metrics.THROUGHPUT_MEDIAN] == pytest.approx(20.0)


def test_an_exception_within_a_pause_ends_the_pause_and_passes(
    tracker: InMemoryRun, manual_clock: ManualClock
):
    with Recorder(backend="none", every=1, warmup_steps=0, **PARTS) as record:
        with suppress(ValueError), record.paused():
            manual_clock.now += 100.0
            raise ValueError("mine")
        assert not record.is_paused
        manual_clock.now += 0.5
        record.step(loss=1.0, samples=10)
    assert tracker.values_of(metrics.THROUGHPUT) == pytest.approx([20.0])


@pytest.mark.parametrize(("every", "fused", "factor"), [(1, False, 0.5), (7, True, 0.3), (50, False, 0.3)])
def test_skipped_steps_and_scale_of_a_grad_scaler_are_exact(
    tracker: InMemoryRun, every: int, fused: bool, factor: float
):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=6, backoff_factor=factor)
    loop = Loop(scaler, fused, steps=100, factor=lambda step: math.inf if step % 9 == 0 else 1.0)
    with Recorder(backend="native", scaler=scaler, optimizer=loop.optimizer, every=every, **PARTS) as record:
        loop(record)
    assert loop.skipped_steps == 11
    assert tracker.rows[-1][metrics.SKIPPED] == loop.skipped_steps
    assert tracker.rows[-1][metrics.SCALE] == scaler.get_scale()


@pytest.mark.parametrize(
    ("updates", "growth_interval", "skipped"),
    [
        ("once", 1, 4),
        ("twice", 1, math.nan),  # the scale is halved and doubled within a step
        ("twice", 1000, math.nan),
        ("to a scale", 1000, math.nan),
    ],
)
@pytest.mark.parametrize("every", [1, 50])
def test_skips_are_unknown_where_the_scale_does_not_tell_of_them(
    tracker: InMemoryRun, updates: str, growth_interval: int, skipped: float, every: int
):
    """Two networks with an optimizer each; the first one's gradients overflow in four of 20 steps."""
    models = [torch.nn.Linear(4, 1) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-6) for model in models]
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=growth_interval)
    own_update = scaler.update
    with Recorder(backend="native", scaler=scaler, optimizer=optimizers[0], every=every, **PARTS) as record:
        for step in range(20):
            for model, factor in zip(models, (math.inf if step % 5 == 4 else 1.0, 1.0), strict=True):
                model.zero_grad()
                scaler.scale(model(torch.ones(2, 4)).mean() * factor).backward()
            for optimizer in optimizers:
                scaler.step(optimizer)
                if updates == "twice":
                    scaler.update()
            if updates != "twice":
                scaler.update(*([256.0] if updates == "to a scale" else []))
            record.step(loss=1.0, samples=2)
    assert scaler.update == own_update
    assert tracker.rows[-1][metrics.SKIPPED] == pytest.approx(skipped, nan_ok=True)


@pytest.mark.parametrize("first_ends", [True, False])
def test_two_recorders_share_a_scaler(tracker: InMemoryRun, first_ends: bool):
    """The one that is still open sees that the loop sets the scale itself."""
    scaler = torch.amp.GradScaler("cpu")
    own_update = scaler.update
    options = {"backend": "native", "scaler": scaler, "every": 1, **PARTS}
    records = [Recorder(**options).begin() for _ in range(2)]
    for record in records:
        record.step(loss=1.0, samples=1)
    records.pop(0 if first_ends else 1).close()
    scaler.scale(torch.ones(()))
    scaler.update(4.0)
    records[0].step(loss=1.0, samples=1)
    records[0].close()
    assert scaler.get_scale() == 4.0
    assert tracker.values_of(metrics.SKIPPED) == pytest.approx([0, 0, math.nan], nan_ok=True)
    assert first_ends or scaler.update == own_update


@pytest.mark.parametrize(("ours", "every", "expected"), [(False, 1, [0, 1, 1, 2]), (True, 3, [1, 2])])
def test_a_scale_restored_in_a_pause_is_not_counted_as_a_skip(
    tracker: InMemoryRun, ours: bool, every: int, expected: list[int]
):
    """Neither before the first step nor within an interval, whose steps before it stay counted."""
    precision = build_precision("native", init_scale=2.0**10)
    model = torch.nn.Linear(4, 1)
    model, optimizer = precision.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    state = copy.deepcopy(precision.state_dict())

    def restore(scale: float) -> None:
        state["scaler"]["scale"] = scale
        precision.load_state_dict(state)

    options = {"scaler": precision} if ours else {"scaler": precision.scaler, "backend": "native"}
    with Recorder(every=every, **options, **PARTS) as record:
        restore(2.0**9)
        record.resume()
        for factor in (1.0, math.inf, 1.0, math.inf):
            if record.steps == 2:  # the scale is 2**8
                with record.paused():
                    restore(2.0**7)
            optimizer.zero_grad()
            precision.backward(model(torch.ones(2, 4)).mean() * factor)
            precision.step(optimizer)
            record.step(loss=1.0, samples=2)
    assert tracker.values_of(metrics.SKIPPED) == expected
    assert tracker.values_of(metrics.SCALE)[-1] == 2.0**6
    assert tracker.config["backend"] == "native"
    assert tracker.config["environment"][metrics.PRECISION_DTYPE] == "float16"


@pytest.mark.parametrize("scaler", [None, torch.amp.GradScaler("cpu", enabled=False)])
def test_without_a_loss_scale_it_is_1_and_nothing_is_skipped(tracker: InMemoryRun, scaler: Any):
    loop = Loop(steps=4)
    with Recorder(backend="mine", scaler=scaler, optimizer=loop.optimizer, every=4, **PARTS) as record:
        loop(record)
    assert tracker.rows[-1][metrics.SCALE] == 1
    assert tracker.rows[-1][metrics.SKIPPED] == 0


@pytest.mark.parametrize(
    ("scaled", "fused", "zero_first"), [(False, False, True), (True, False, False), (True, True, True)]
)
def test_gradients_are_measured_unscaled_wherever_they_are_zeroed(
    tracker: InMemoryRun, scaled: bool, fused: bool, zero_first: bool
):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10) if scaled else None
    loop = Loop(scaler, fused, steps=9, zero_first=zero_first)
    options = {"optimizer": loop.optimizer, "model": loop.model, "diagnostics": 3, "every": 4}
    with Recorder(backend="mine", scaler=scaler, **options, **PARTS) as record:
        loop(record)
    gradients = {n: loop.gradients[n - 1] for n in (3, 6, 9)}
    norms = {n: gradient.norm().item() for n, gradient in gradients.items()}
    assert tracker.by_step(metrics.GRADIENT_NORM_AT_UPDATE) == pytest.approx(norms)
    zeros = {n: (gradient == 0).float().mean().item() for n, gradient in gradients.items()}
    assert tracker.by_step(metrics.ZEROS) == pytest.approx(zeros)
    assert {*tracker.by_step(f"{metrics.ZEROS}/2")} == {3, 6, 9}


def test_the_diagnostics_of_a_skipped_step_come_with_the_next_step_taken(
    tracker: InMemoryRun, caplog: pytest.LogCaptureFixture
):
    """A loss scale that is too large at first is no reason for a warning."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**100)
    loop = Loop(scaler, steps=12, factor=lambda step: 1e20 if step in (1, 5) else 1.0)
    options = {"optimizer": loop.optimizer, "diagnostics": 5, "every": 12}
    with Recorder(backend="native", scaler=scaler, **options, **PARTS) as record:
        loop(record)
    assert [*tracker.by_step(metrics.ZEROS)] == [6, 10]
    assert not [message for message in caplog.messages if "no gradients" in message]


def test_loss_and_learning_rate_are_means_and_values_of_the_steps(tracker: InMemoryRun):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.25)
    place = torch.zeros(())  # a captured step writes each loss into the same place
    with Recorder(backend="none", optimizer=optimizer, every=4, **PARTS) as record:
        for step in range(8):
            place.fill_(float(step))
            record.step(loss=place, samples=3 if step % 4 == 3 else 1)
    assert tracker.values_of(metrics.LOSS) == pytest.approx(
        [(0 + 1 + 2 + 3 * 3) / 6, (4 + 5 + 6 + 3 * 7) / 6]
    )
    assert tracker.values_of(metrics.LEARNING_RATE) == [0.25, 0.25]


def test_a_non_finite_loss_is_reported_and_stops_nothing(
    tracker: InMemoryRun, caplog: pytest.LogCaptureFixture
):
    with Recorder(backend="none", every=5, **PARTS) as record:
        for step in range(1, 11):
            record.step(loss=torch.tensor(math.nan if step == 7 else 1.0), samples=1)
    assert caplog.messages == ["step 7: the training loss is NaN (loss scale 1); the training continues"]
    assert tracker.exit_codes == [0]
    assert [math.isnan(x) for x in tracker.values_of(metrics.LOSS)] == [False, True]


@pytest.mark.parametrize(
    ("problem", "end"),
    [
        (ValueError("mine"), 1),
        (KeyboardInterrupt(), 255),  # as W&B's client reports a program that was stopped
        (SystemExit(3), 3),
        (SystemExit("why"), 1),
        (SystemExit(), 0),
        (SystemExit(143), 255),
    ],
    ids=repr,
)
def test_the_record_ends_as_the_loop_does(tracker: InMemoryRun, problem: BaseException, end: Any):
    def loop() -> None:
        with Recorder(backend="none", every=2, **PARTS) as record:
            for _ in range(3):
                record.step(loss=1.0, samples=1)
            raise problem

    with pytest.raises(type(problem)):
        loop()
    assert tracker.exit_codes == [end]
    assert len(tracker.values_of(metrics.LOSS)) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_ends_the_record_and_then_the_loop(tracker: InMemoryRun, number: signal.Signals):
    def loop() -> None:
        with Recorder(backend="none", every=1, **PARTS) as record:
            record.step(loss=1.0, samples=1)
            os.kill(os.getpid(), number)
            record.step(loss=1.0, samples=1)

    before = signal.getsignal(number)
    signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as caught:
            loop()
        assert caught.value.code == 128 + number
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert tracker.exit_codes == [255]  # as W&B's client reports a program that was stopped
    assert len(tracker.rows) == 1


def test_a_signal_handler_that_a_trainer_sets_before_the_first_step_stays(tracker: InMemoryRun):
    """Lightning sets one as training begins, where there is none."""
    heard: list[int] = []
    before = signal.getsignal(signal.SIGUSR1)
    try:
        record = Recorder(backend="none", **PARTS).begin()
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
        signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
        record.step(loss=1.0, samples=1)
        os.kill(os.getpid(), signal.SIGUSR1)
        record.step(loss=1.0, samples=1)
        record.close()
        assert signal.getsignal(signal.SIGUSR1) is not signal.SIG_DFL
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert heard == [signal.SIGUSR1]
    assert tracker.exit_codes == [0]


def test_process_0_records_the_samples_of_all_processes(
    tracker: InMemoryRun, monkeypatch: pytest.MonkeyPatch, manual_clock: ManualClock
):
    monkeypatch.setenv("WORLD_SIZE", "4")
    for rank in ("0", "3"):
        monkeypatch.setenv("RANK", rank)
        with Recorder(backend="none", every=2, warmup_steps=0, **PARTS) as record:
            for _ in range(2):
                manual_clock.now += 0.5
                record.step(loss=1.0, samples=8)
            record.evaluate(accuracy=1.0)
            with record.paused():
                record.mark_batch_ready()
    assert tracker.values_of(metrics.THROUGHPUT) == pytest.approx([4 * 8 / 0.5])
    assert tracker.exit_codes == [0]
    assert tracker.config["environment"]["processes"] == 4


REFUSED: dict[str, dict[str, Any]] = {
    "every=0: expected a whole number at least 1": {"every": 0},
    "diagnostics=5: needs the optimizer": {"diagnostics": 5},
    "scaler=int: expected a torch.amp.GradScaler": {"scaler": 3},
    "device='tpu9': ": {"device": "tpu9"},
    "device='cuda:99': ": {"device": "cuda:99"},
    "precision_dtype='int8': expected one of": {"precision_dtype": "int8"},
    r"config\['seed'\]=2: the recorder sets this key to 1": {"seed": 1, "config": {"seed": 2}},
    "the recorder sets this key to None; leave it out": {"config": {"environment": 2}},
    "seed='x': expected a whole number": {"seed": "x"},
    "optimizer=.*: expected a torch.optim": {"optimizer": [3]},
    "model='resnet': expected a torch.nn.Module": {"model": "resnet"},
    r"config\['log'\]=array": {"config": {"log": np.ones(2)}},
    r"config={3: 4}: expected a dict with strings as keys": {"config": {3: 4}},
    "output_dir='/dev/null/x': cannot be": {"output_dir": "/dev/null/x"},
    "better=None: expected 'higher' or 'lower', for metric='eval/f1'": {"metric": "eval/f1"},
    "better='max': expected 'higher' or 'lower'": {"metric": "eval/f1", "better": "max"},
    "better='lower': better= needs metric= as well": {"better": "lower"},
    "metric='': expected the key of a row": {"metric": ""},
    "backend=None: expected the name of the backend that you compare": {"backend": None},
}


def test_a_wrong_use_is_refused_in_one_line(subtests: pytest.Subtests):
    for line, options in REFUSED.items():
        with subtests.test(line):
            made = {"backend": "none"} | options
            assert re.search(line, line_of(lambda made=made: Recorder(**made).begin()))
    assert "called outside `with" in line_of(lambda: Recorder(backend="none").step(samples=1))


@pytest.mark.parametrize("loss", [torch.tensor([3]), np.float32(3), np.ones(()) * 3], ids=repr)
def test_a_loss_may_be_any_one_number(tracker: InMemoryRun, loss: Any):
    with Recorder(backend="none", every=1, **PARTS) as record:
        record.step(loss=loss, samples=np.int64(8))
    assert tracker.values_of(metrics.LOSS) == [3]


def test_a_recorder_cannot_be_used_twice(tracker: InMemoryRun):
    with Recorder(backend="none", start_step=7, **PARTS) as record:
        pass
    with pytest.raises(UserError, match="this recorder was used before"), record:
        pass
    assert tracker.exit_codes == [0]


@pytest.mark.parametrize(
    ("said", "known", "dtype"),
    [
        ("32-true", "none", "float32"),
        ("tf32", "tf32", "float32"),
        ("bf16-mixed", "native_bf16", "bfloat16"),
        ("autocast", "native", None),  # of which type nothing is said
        ("my own", None, None),
    ],
)
def test_the_backends_name_is_recorded_as_given_with_the_backend_that_it_stands_for(
    tracker: InMemoryRun, said: str, known: str | None, dtype: Any
):
    with Recorder(backend=said, config={"model": {"name": "mine"}, "seed": 1}, **PARTS):
        pass
    assert tracker.config["backend"] == said
    assert tracker.config["recorder"]["backend"] == known
    assert tracker.config["model"] == {"name": "mine"}
    assert tracker.config["environment"].get(metrics.PRECISION_DTYPE) == dtype


def test_evaluations_have_their_names_and_an_accuracy_that_is_no_fraction_is_warned_of_once(
    tracker: InMemoryRun, caplog: pytest.LogCaptureFixture
):
    with Recorder(backend="none", every=2, test_samples=100, **PARTS) as record:
        record.step(loss=1.0, samples=1)
        for accuracy in (0.5, torch.tensor(0.6), 60.0, 61.0):
            record.evaluate(accuracy=accuracy, f1=0.25)
    assert tracker.values_of("eval/accuracy") == pytest.approx([0.5, 0.6, 60.0, 61.0])
    assert tracker.values_of("eval/f1") == [0.25] * 4
    assert tracker.summary[metrics.TEST_IMAGES] == 100
    assert sum("expected a fraction from 0 to 1" in message for message in caplog.messages) == 1
