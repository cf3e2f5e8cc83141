"""The dtypes of a user's weights: warned of where they are not those of the named backend, and recorded."""

from typing import Any

import pytest
import torch
from support.recorded_loop import InMemoryRun
from torch import nn

from ampcompare import Recorder
from ampcompare.precision import build_precision


def record(**parts: Any) -> None:
    with Recorder(seed=1, batch_size=8, **parts) as made:
        made.step(loss=1.0, samples=2)


@pytest.mark.parametrize("given", ["model", "optimizer"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("backend", ["none", "32-true", "native_bf16"])
def test_16_bit_weights_under_another_backend_are_warned_of_and_recorded(
    tracker: InMemoryRun, caplog: pytest.LogCaptureFixture, backend: str, dtype: str, given: str
):
    model = nn.Linear(2, 1).to(getattr(torch, dtype))
    parts = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    record(backend=backend, **{given: parts[given]})
    (warning,) = [message for message in caplog.messages if "float32 weights" in message]
    assert dtype in warning
    environment = tracker.config["environment"]
    assert environment["weight_dtypes"] == [dtype]
    assert tracker.config["recorder"]["backend"] is None
    if backend != "native_bf16":
        assert environment["precision_dtype"] == dtype


def test_a_frozen_16_bit_part_is_named_and_does_not_count(
    tracker: InMemoryRun, caplog: pytest.LogCaptureFixture
):
    model = nn.ModuleDict({"encoder": nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))})
    model.bfloat16().requires_grad_(False)
    model["head"] = nn.Linear(2, 1)
    record(backend="none", model=model)
    assert not [message for message in caplog.messages if "weights" in message]
    environment = tracker.config["environment"]
    assert environment["weight_dtypes"] == ["float32"]
    assert environment["frozen_weights"] == {"encoder": "bfloat16"}


def test_a_precision_that_keeps_16_bit_weights_is_not_recorded_as_fp32(tracker: InMemoryRun):
    model = nn.Linear(2, 1).bfloat16()
    precision = build_precision("none", weights="keep")
    model, optimizer = precision.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    record(scaler=precision, model=model, optimizer=optimizer)
    assert tracker.config["environment"]["precision_dtype"] == "bfloat16"
    assert tracker.config["recorder"]["backend"] is None


@pytest.mark.parametrize(
    ("backend", "dtype", "warned"),
    [
        ("native", "float32", ""),
        ("bf16", "bfloat16", ""),
        ("mine", "bfloat16", ""),
        ("bf16", "float32", "native_bf16"),
        ("fp16", "float32", "native_bf16"),
        ("fp16", "bfloat16", "bfloat16"),
    ],
)
def test_weights_of_another_dtype_than_the_backends_make_it_a_name_of_the_users_own(
    tracker: InMemoryRun, caplog: pytest.LogCaptureFixture, backend: str, dtype: str, warned: str
):
    record(backend=backend, model=nn.Linear(2, 1).to(getattr(torch, dtype)))
    warnings = [message for message in caplog.messages if "weights" in message]
    assert [warned in message for message in warnings] == [True] * bool(warned)
    assert tracker.config["backend"] == backend
    assert tracker.config["environment"]["weight_dtypes"] == [dtype]
    known = None if warned or backend == "mine" else backend
    assert tracker.config["recorder"]["backend"] == known
