"""What a run says of its loss."""

from __future__ import annotations

import pytest

from ampcompare.train.display import shown


@pytest.mark.parametrize(
    ("loss", "text"),
    [(0.12345, "0.1235"), (12345.678, "12345.6780"), (1879703463.8913, "1.88e+09"), (float("nan"), "nan")],
)
def test_a_large_loss_is_said_in_four_digits(loss: float, text: str):
    assert shown(loss) == text
