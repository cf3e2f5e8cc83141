"""A user's own loop on fake CUDA tensors: the recorder's steps wait for nothing."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.outside import Outside
from support.recorded_loop import InMemoryRun, record_in_memory
from support.rehearsal.stage import stage
from support.rehearsal.watch import LATE_WAIT, QUEUED_TO_HOST, READ, Contact

from ampcompare import Recorder, metrics

EVERY = 4


@pytest.fixture
def tracker(outside: Outside, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> InMemoryRun:
    """Return the W&B run of the recorder."""
    return record_in_memory(outside, monkeypatch, tmp_path)


def train(wrong: Any = None) -> list[Contact]:
    """Train 24 steps of a user's loop with its scaler and our recorder; return the contacts."""
    with stage() as (watch, _):
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
        scaler = torch.amp.GradScaler("cuda")
        how = {"scaler": scaler, "optimizer": optimizer, "model": model, "diagnostics": 3, "every": EVERY}
        with Recorder(backend="native", warmup_steps=3, **how) as record:
            x = torch.ones(16, 64, device="cuda")
            for step in range(24):
                if step == 1:  # the scaler makes its scale in the first
                    watch.contacts.clear()
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = model(x).square().mean()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                record.mark_batch_ready()
                record.step(loss=wrong(loss) if wrong else loss, samples=len(x), epoch=step / 24)
            seen = list(watch.contacts)
            record.evaluate(accuracy=0.5)
    return seen


def test_steps_and_rows_of_a_recorder_queue_one_copy_and_read_it_an_interval_later(
    tracker: InMemoryRun,
):
    seen = train()
    kinds = [contact.kind for contact in seen]
    assert set(kinds) == {QUEUED_TO_HOST, LATE_WAIT}, "\n".join(map(str, seen))
    assert kinds.count(QUEUED_TO_HOST) == 24 // EVERY
    assert kinds.count(LATE_WAIT) == 24 // EVERY - 1
    assert all(contact.behind > 40 for contact in seen if contact.kind == LATE_WAIT)
    wanted = {metrics.LOSS, metrics.SCALE, metrics.SKIPPED, metrics.ZEROS, metrics.THROUGHPUT, metrics.ENERGY}
    assert wanted <= {key for row in tracker.rows for key in row}


def test_a_loop_that_reads_its_loss_is_detected(tracker: InMemoryRun):
    seen = train(lambda loss: loss.item())
    assert READ in {contact.kind for contact in seen}
