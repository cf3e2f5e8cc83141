"""What a data sheet lets one expect of a published speed-up."""

from __future__ import annotations

import pytest

from ampcompare.published.devices import devices
from ampcompare.published.publication import load
from ampcompare.report.analysis.roofline import expected


@pytest.mark.parametrize(
    ("name", "arm", "said"),
    [
        ("dle-v100", "Mixed precision", "fp16 beside fp32"),
        ("dle", "Mixed precision", "fp16 beside TF32"),
        ("apex-478", "O3", "NVIDIA V100 SXM2"),
        ("leimao", "AMP Training", "NVIDIA RTX 3090"),
    ],
)
def test_both_roofs_of_the_published_card_are_told_in_the_arms_types(name: str, arm: str, said: str):
    told = expected(load(name), arm)
    assert said in told
    assert told.endswith("2.00× where memory does")


def test_the_roof_of_arithmetic_is_the_ratio_of_the_data_sheets_rates():
    (card,) = [card for card in devices() if card.name == "NVIDIA A100 SXM 80GB"]
    ratio = card.flop_per_second["float16"] / card.flop_per_second["tf32"]
    assert f"allows {ratio:.2f}× where arithmetic bounds a step" in expected(load("dle"), "Mixed precision")
