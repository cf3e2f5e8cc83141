"""Every backend trains on fake CUDA tensors, and touches the host where a run has to and nowhere else."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from rehearsal.stage import Rehearsed, rehearse
from rehearsal.watch import (
    LATE_WAIT,
    QUEUED_TO_DEVICE,
    QUEUED_TO_HOST,
    READ,
    STRIDES,
    WAIT,
    Contact,
)
from support.own_data import OWN
from support.rehearsal_cases import ALL, name_of
from torch import Tensor

from ampcompare.data import host

# All contacts that a run may have, and what each is for, by kind and by who asked for it: the place or one of
# its callers. Each is counted below.
PLAN = (QUEUED_TO_DEVICE, "data/loader.py Planned._plan")  # the plan of an epoch
ROW = (QUEUED_TO_HOST, "train/interval.py Reading.__init__")  # the copy of a row
ROW_READ = (LATE_WAIT, "train/interval.py Reading.read")  # one interval later
EVALUATION = (READ, "train/evaluation.py Evaluation.run")  # its result
ANSWERS = (QUEUED_TO_HOST, "train/evaluation.py Evaluation.run")  # what it answered, which has come with that
COUNTING = (
    WAIT,
    "train/fit.py Fit._begin_to_count",
)  # after warm-up, and after a step in which something was compiled
EPOCH_END = (WAIT, "machine/device.py wait_for")
CAPTURE = (WAIT, "train/graph.py capture")  # once a graph
ALLOWED = (PLAN, ROW, ROW_READ, EVALUATION, ANSWERS, COUNTING, EPOCH_END, CAPTURE)

SMALLEST_STEP = 40  # ops; the tiny network's step has some fifty


def purpose(contact: Contact) -> tuple[str, str] | None:
    """Which of ALLOWED it is."""
    return next((a for a in ALLOWED if a[0] == contact.kind and a[1] in contact.trail), None)


def of_steps(found: Rehearsed) -> int:
    """How many rows with the figures of steps came."""
    return sum("train/loss" in row for row in found.rows)


@pytest.mark.parametrize("words", ALL, ids=lambda words: name_of(words))
def test_a_training_touches_the_host_for_plans_rows_and_evaluations_alone(words: tuple[str, ...]):
    found = rehearse(words)
    captured = "execution=cuda_graph" in words
    contacts = found.contacts
    if any("penalty" in word for word in words):  # a convolution's second derivative comes back transposed
        contacts = [contact for contact in contacts if contact.kind != STRIDES]
    counts = Counter(map(purpose, contacts))
    assert not counts[None], "\n".join(str(c) for c in contacts if purpose(c) is None)

    epochs = round(found.rows[-1]["epoch"])
    assert sum("eval/loss" in row for row in found.rows) == counts[EVALUATION] == counts[EPOCH_END] == epochs
    assert counts[ANSWERS] == epochs
    assert counts[PLAN] == epochs * (2 if captured else 1)  # an evaluation's plan as well
    assert counts[ROW] == of_steps(found) > 0
    assert counts[CAPTURE] == len(found.captures) == (2 if captured else 0)  # of a step, of an evaluation
    assert counts[COUNTING] == (2 if captured else 1)  # the capture compiles nothing, but takes as long
    assert found.launches > len(found.captures) or not captured
    # A row is read when at least a step has been queued behind it.
    assert all(c.behind > SMALLEST_STEP for c in found.contacts if c.kind == LATE_WAIT)


def test_rows_of_a_rehearsal_have_what_a_gpus_have():
    found = rehearse(["model.name=tiny", "backend=native", "diagnostics.every=2", "log.warmup_steps=0"])
    keys = {key for row in found.rows for key in row}
    assert {"memory/peak_mib", "energy/joules_per_image", "throughput/step_time_ms", "grad/exponents"} <= keys
    assert all(row["throughput/step_time_ms"] > 0 for row in found.rows if "throughput/step_time_ms" in row)


# Data of one's own: what lies on the device is part of a graph, nothing waits.

IMAGES = """
def images(train):
    x, y = table(train)
    return x.repeat(1, 32).view(-1, 3, 8, 8), y

class Pictures(Noisy):
    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return x.repeat(32).view(3, 8, 8), y

def pictures(train):
    return Pictures(train)
"""


@pytest.fixture
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data.py").write_text(OWN + IMAGES)
    monkeypatch.chdir(tmp_path)


def on_own(name: str, *more: str) -> list[str]:
    limits = ("data.train_limit=null", "data.test_limit=null")
    return ["model.name=tiny", "backend=native", f"data.source=./data.py:{name}", *limits, *more]


@pytest.mark.usefixtures("own_data")
@pytest.mark.parametrize("more", [(), ("execution=cuda_graph", "optimizer.momentum=0.9")])
def test_tensors_on_the_device_are_gathered_in_the_graph_without_a_wait(more: tuple[str, ...]):
    found = rehearse(on_own("images", "batch_size=8", "eval.batch_size=4", *more))
    assert [contact for contact in found.contacts if not purpose(contact)] == []
    assert len(found.captures) == (2 if more else 0)  # a step, a batch of an evaluation
    assert all("train/loss" in row for row in found.rows[:2])


@pytest.mark.usefixtures("own_data")
def test_batches_of_a_data_set_are_copied_to_the_device_without_a_wait(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(host, "digest", lambda batch: "")  # fakes have no bytes
    used = []
    monkeypatch.setattr(Tensor, "record_stream", lambda tensor, stream: used.append(stream))  # nor streams
    found = rehearse(on_own("pictures", "batch_size=8", "eval.batch_size=4", "data.workers=0"))
    others = [contact for contact in found.contacts if not purpose(contact)]
    assert others
    assert {contact.kind for contact in others} == {QUEUED_TO_DEVICE}
    assert all("data/onto.py Onto._move" in contact.trail for contact in others)
    assert len(used) == len(others)  # the memory of each is kept for the step that reads it
