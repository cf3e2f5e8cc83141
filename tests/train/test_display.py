"""What a run says of its loss."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from ampcompare.train import display
from ampcompare.train.display import TrainingDisplay, shown


@pytest.mark.parametrize(
    ("loss", "text"),
    [(0.12345, "0.1235"), (12345.678, "12345.6780"), (1879703463.8913, "1.88e+09"), (float("nan"), "nan")],
)
def test_a_large_loss_is_said_in_four_digits(loss: float, text: str):
    assert shown(loss) == text


@pytest.mark.parametrize("is_terminal", [False, True])
def test_how_long_it_takes_is_said_once_behind_the_first_steps(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool
):
    clock = iter(float(second) for second in range(0, 1000, 3))
    monkeypatch.setattr(display, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    text = io.StringIO()
    with TrainingDisplay(Console(file=text, force_terminal=is_terminal, width=100), 102, "run") as shows:
        for step in range(1, 10):
            shows.step(step)
    assert text.getvalue().count("left, by the first steps") == (not is_terminal)
    assert is_terminal or text.getvalue() == "step 2/102  about 10:00 left, by the first steps\n"
