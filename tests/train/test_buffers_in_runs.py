"""A whole training in which one forward overflows: what is logged and said, evaluations, resumes, graphs."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rich.console import Console
from support.training import fit, timeless, trainer

from ampcompare import metrics
from ampcompare.checkpoint.state import capture, restore
from ampcompare.config.load import load_config
from ampcompare.config.schema import TrainingConfig
from ampcompare.experiment import run
from ampcompare.models import tiny
from ampcompare.records import load_runs
from ampcompare.train.loop import Fit
from ampcompare.train.meter import Result
from ampcompare.train.step import Trainer

AT = 5  # the step that overflows, of six in an epoch
SMALL = ("data.train_limit=24", "batch_size=4", "data.test_limit=8")  # fp16 is slow where it is emulated
WORDS = ("backend=native", "precision.init_scale=256", "epochs=2", "log.every=3", *SMALL)
BIG = ("data.train_limit=45", "batch_size=8", "diagnostics.every=null")  # as `played` plays it
RESTORE = "training.on_nonfinite_buffers=restore"
COUNT = metrics.NONFINITE_BUFFERS


@pytest.fixture(autouse=True)
def overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The images of step AT of a training are those that fp32 holds and fp16 does not."""
    compute = Trainer.compute

    def spoil(self: Trainer, batches: Any, **kwargs: Any) -> Result:
        step = vars(self)["steps"] = vars(self).get("steps", 0) + 1
        factor = 1e30 if step == AT else 1.0
        return compute(self, [(images * factor, labels) for images, labels in batches], **kwargs)

    monkeypatch.setattr(Trainer, "compute", spoil)


def trained(quick: tuple[str, ...], *words: str) -> tuple[Fit, list[dict[str, Any]], list[str]]:
    notes: list[str] = []
    made, rows = fit(quick, *WORDS, *words, on_note=notes.append)
    made.run()
    return made, rows, notes


def column(rows: list[dict[str, Any]], key: str) -> dict[int, Any]:
    return {row[metrics.STEP]: row[key] for row in rows if key in row}


@pytest.mark.parametrize("backend", ["native", "fp16"])
def test_by_default_it_is_said_once_with_its_step_and_evaluations_come_to_nothing(
    quick_overrides: tuple[str, ...], backend: str
):
    made, rows, notes = trained(quick_overrides, f"backend={backend}")
    assert made.precision.skipped_steps() == 1
    assert [note for note in notes if "buffers" in note] == notes[:1]
    assert notes[0].startswith(f"step {AT}: ")
    assert column(rows, COUNT) == {3: 0, 6: 4, 9: 4, 12: 4}
    assert made.summary()[metrics.NONFINITE_AT] == AT
    assert not any(map(math.isfinite, column(rows, metrics.EVAL_LOSS).values()))


@pytest.mark.parametrize("backend", ["native", "apex_o1"])
def test_restored_buffers_leave_every_evaluation_finite(quick_overrides: tuple[str, ...], backend: str):
    made, rows, notes = trained(quick_overrides, f"backend={backend}", RESTORE)
    assert made.precision.skipped_steps() == 1
    assert notes[0].startswith(f"step {AT}: 4 of the model's buffers")
    assert "put back" in notes[0]
    assert column(rows, COUNT) == {3: 0, 6: 4, 9: 4, 12: 4}
    assert all(map(math.isfinite, column(rows, metrics.EVAL_LOSS).values()))


def test_a_sound_run_is_the_same_with_and_without(quick_overrides: tuple[str, ...], monkeypatch):
    monkeypatch.setitem(globals(), "AT", 0)
    said, restored = (trained(quick_overrides, *words) for words in ((), (RESTORE,)))
    assert timeless(said[1]) == timeless(restored[1])
    assert (said[2], restored[2]) == ([], [])
    assert set(column(said[1], COUNT).values()) == {0}
    assert said[0].summary()[metrics.NONFINITE_AT] is None


def unnamed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the rows that name a module: nobody looks into a launch of a graph."""
    return [row for row in rows if metrics.NONFINITE_MODULE not in row]


def test_a_graphed_run_does_the_same(quick_overrides: tuple[str, ...], played: list[str]):
    eager = trained(quick_overrides, *BIG, RESTORE)
    graphed = trained(quick_overrides, *BIG, RESTORE, "execution=cuda_graph")
    assert played.count("launch") > 3  # step AT among them, the second
    assert str(timeless(graphed[1])) == str(timeless(unnamed(eager[1])))  # as text: nan is not nan
    assert graphed[2] == [note for note in eager[2] if "was skipped" not in note] != []


@pytest.mark.parametrize("words", [(), (RESTORE,)])
def test_a_resumed_run_counts_and_says_as_one_that_was_not_interrupted(
    quick_overrides: tuple[str, ...], words: tuple[str, ...]
):
    at = 6  # behind the overflow
    whole = trained(quick_overrides, *words)
    notes: list[str] = []
    first, rows = fit(quick_overrides, *WORDS, *words, on_note=notes.append)
    saved: dict[str, Any] = {}

    def save(step: int) -> None:
        if step == at:
            first.meter.flush()
            buffer = io.BytesIO()
            torch.save(capture(first), buffer)
            buffer.seek(0)
            saved.update(torch.load(buffer, weights_only=True), rows=len(rows), notes=len(notes))

    first.on_step = save
    first.run()
    notes = notes[: saved["notes"]]
    second, later = fit(quick_overrides, *WORDS, *words, on_note=notes.append)
    vars(second.trainer)["steps"] = at
    restore(second, saved)
    summary = second.run()
    assert str(timeless(rows[: saved["rows"]] + later)) == str(timeless(whole[1]))
    assert notes == whole[2]
    assert summary[metrics.NONFINITE_AT] == AT


def test_buffers_of_a_model_in_ddp_are_found_and_put_back(tmp_path: Path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        config = TrainingConfig(on_nonfinite_buffers="restore")
        made = trainer("native", tiny(10), config, ddp=True, init_scale=256.0)
        images, labels = torch.randn(8, 3, 8, 8), torch.arange(8)
        for _ in range(AT):
            made.step([(images, labels)])
        assert made.buffers.count() == 4
        assert all(buffer.isfinite().all() for buffer in made.model.buffers())
    finally:
        dist.destroy_process_group()


def test_the_record_and_the_console_name_the_step(tmp_path: Path, quick_overrides: tuple[str, ...]):
    text = io.StringIO()
    words = [*quick_overrides, *WORDS, f"output_dir={tmp_path}"]
    result = run(load_config(None, words), Console(file=text, width=400))
    (record,) = load_runs([tmp_path])
    assert text.getvalue().count("of the model's buffers") == 1
    assert f"step {AT}: 4 of the model's buffers" in text.getvalue()
    assert record.summary[metrics.NONFINITE_AT] == result.summary[metrics.NONFINITE_AT] == AT
    assert record.summary[COUNT] == 4
