"""Every backend trains on fake CUDA tensors, and touches the host where a run has to and nowhere else."""

from collections import Counter
from itertools import cycle
from pathlib import Path

import pytest
from support.own_data import OWN
from support.properties import MECHANISMS
from support.rehearsal.stage import Rehearsed, rehearse
from support.rehearsal.watch import LATE_WAIT, QUEUED_TO_DEVICE, QUEUED_TO_HOST, READ, WAIT

GRAPH = "execution=cuda_graph"
LOOKS = "diagnostics.every=3"
BACKENDS = (*MECHANISMS, "bf16_sr", "tf32")
SMALLEST_STEP = 40  # ops; the tiny network's step has some fifty

# Each option once, dealt to the backends in turn; a captured run has eager steps too: the first three, the
# short ones, the looks.
EAGER = (
    (LOOKS, "training.clip_norm=1", "training.clip_value=1"),
    ("training.accumulate=2", LOOKS, "training.clip_norm=1"),
    ("memory_format=channels_last", LOOKS),
    ("training.gradient_penalty=0.1", "epochs=1"),
)
CAPTURED = (
    ("optimizer.momentum=0.9", LOOKS),
    ("memory_format=channels_last", "training.clip_norm=1", "training.clip_value=1"),
    ("memory_format=contiguous", "eval.autocast=true"),
    ("optimizer.name=adamw", "training.label_smoothing=0.1"),
    ("optimizer.momentum=0.9",),
)
# What only some backends take.
SPECIAL = (
    ("backend=native", "precision.loss_scale=128"),
    ("backend=apex_o1", "precision.loss_scale=1"),
    ("backend=apex_o1", "precision.keep_fp32=1,3"),
    ("backend=apex_o2", "precision.keep_batchnorm_fp32=false"),
    ("backend=fp16", "precision.keep_batchnorm_fp32=true"),
)
CASES = [
    *((f"backend={name}", *words) for name, words in zip(BACKENDS, cycle(EAGER), strict=False)),
    *((f"backend={name}", GRAPH, *words) for name, words in zip(BACKENDS, cycle(CAPTURED), strict=False)),
    *((*words, GRAPH, "optimizer.momentum=0.9") for words in SPECIAL),
]


def assert_untouched(found: Rehearsed, *, captured: bool) -> None:
    """Check that host and device met only as often as a run needs.

    Plans of batches go to the device, and rows and the result of an evaluation come to the host.
    """
    contacts = Counter(contact.kind for contact in found.contacts)
    trail = "\n".join(map(str, found.contacts))
    epochs = round(found.rows[-1]["epoch"])
    rows = sum("train/loss" in row for row in found.rows)
    assert rows > 0
    assert sum("eval/loss" in row for row in found.rows) == epochs
    assert found.captures == int(captured)
    assert found.launches > 1 or not captured
    assert contacts.pop(LATE_WAIT, 0) <= rows, trail  # for a row, which may have come with something else
    assert contacts == {
        QUEUED_TO_DEVICE: epochs * 2,
        QUEUED_TO_HOST: rows,
        READ: epochs,  # an evaluation's result
        WAIT: epochs + captured,  # an epoch's end; the capture
    }, trail
    # A row is read when at least a step has been queued behind it.
    assert all(c.behind > SMALLEST_STEP for c in found.contacts if c.kind == LATE_WAIT), trail


@pytest.mark.slow
@pytest.mark.parametrize("words", CASES, ids=" ".join)
def test_a_training_waits_for_rows_evaluations_and_captures_alone(words: tuple[str, ...]):
    found = rehearse(("model.name=tiny", *words))
    assert_untouched(found, captured=GRAPH in words)


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
    assert_untouched(found, captured=bool(more))
    assert all("train/loss" in row for row in found.rows[:2])
