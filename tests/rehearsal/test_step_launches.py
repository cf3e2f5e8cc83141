"""The table of launches and bytes says what the code does now."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rehearsal.launches import FUSED, RESTORED, as_markdown, count_steps, step_ops, summarize
from support.quick import ROOT
from support.rehearsal_cases import BIG

from ampcompare.measure.traffic import Op
from ampcompare.precision import REGISTRY

RESULTS = ROOT / "benchmarks" / "results"
COMMAND = (
    "a step launches or moves something else: run `python benchmarks/step_launches.py`, look at the diff"
)


@pytest.fixture(scope="module")
def committed() -> dict[str, Any]:
    return json.loads((RESULTS / "step_launches.json").read_text())


@pytest.mark.parametrize("model", ["tiny", pytest.param("resnet50", marks=BIG)])
def test_the_table_is_what_the_code_gives(committed: dict[str, Any], model: str):
    assert count_steps(model) == committed[model], COMMAND


def test_the_page_shows_the_figures(committed: dict[str, Any]):
    assert (RESULTS / "step_launches.md").read_text() == as_markdown(committed)


def test_every_backend_is_in_the_table(committed: dict[str, Any]):
    names = [*REGISTRY, *(f"{name}{FUSED}" for name in REGISTRY), RESTORED]
    assert all(list(backends) == names for backends in committed.values())


def test_one_more_op_in_a_step_is_one_launch_more_and_its_bytes():
    ops = step_ops("model.name=tiny", "optimizer.name=sgd")
    clipped = step_ops("model.name=tiny", "training.clip_value=1")
    before, after = summarize(ops), summarize(clipped)
    assert after["launches"] == before["launches"] + 2  # all gradients from above, from below
    assert after["megabytes"] > before["megabytes"]


def test_an_op_that_no_group_names_is_counted_with_the_rest():
    found = summarize([Op((2e6, 0, 0), name="unheard_of")])
    assert found["launches_by_group"]["rest"] == found["launches"] == 1
    assert found["megabytes"] == 2
