"""The loops of `bench overhead` train alike; the batches of `bench data` are the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from batches import run_batches
from overhead import Loops

from ampcompare.tracking.tracker import Tracker
from ampcompare.train.build import build_trainer
from ampcompare.train.step import Trainer


class Noted:
    """In the place of a W&B run."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def log(self, row: dict[str, float]) -> None:
        self.rows.append(row)


def test_ours_does_the_same_step_as_the_bare_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made: list[Trainer] = []

    def build(*args):
        made.append(build_trainer(*args))
        return made[-1]

    monkeypatch.setattr("overhead.build_trainer", build)
    loops = Loops(8, 5, str(tmp_path), every=4)
    record = Noted()
    for run in (
        loops.bare(),
        loops.bare_recorded(record),  # type: ignore[arg-type]
        loops.seed_style(),
        loops.ours(Tracker()),
    ):
        run(0)
        run(1)
    assert [row["global_step"] for row in record.rows] == [4, 8]
    bare, *others = ([p.detach() for p in t.model.parameters()] for t in made)
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(bare, other, strict=True))


def test_batches_are_the_same_image_for_image():
    found = run_batches(rounds=1, images=256)
    assert found["largest_difference"] < 1e-6
    assert all(len(rates) == 1 for rates in found["images_per_second"].values())
