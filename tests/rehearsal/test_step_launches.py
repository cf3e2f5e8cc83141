"""The table of launches and bytes says what the code does now."""

from __future__ import annotations

import json

import pytest
from step_launches import OUT, as_markdown, count_steps, step_ops, summarize

COMMITTED = json.loads((OUT / "step_launches.json").read_text())
COMMAND = (
    "a step launches or moves something else: run `python benchmarks/step_launches.py`, look at the diff"
)


@pytest.mark.slow
def test_the_table_is_what_the_code_gives():
    assert count_steps("tiny") == COMMITTED["tiny"], COMMAND
    resnet50 = step_ops("model.name=resnet50", "backend=native")
    assert summarize(resnet50) == COMMITTED["resnet50"]["native"], COMMAND


def test_the_page_shows_the_figures():
    assert (OUT / "step_launches.md").read_text() == as_markdown(COMMITTED)


def test_one_more_op_in_a_step_is_one_launch_more_and_its_bytes():
    ops = step_ops("model.name=tiny", "optimizer.name=sgd")
    clipped = step_ops("model.name=tiny", "training.clip_value=1")
    before, after = summarize(ops), summarize(clipped)
    assert after["launches"] == before["launches"] + 2  # all gradients from above, from below
    assert after["megabytes"] > before["megabytes"]
