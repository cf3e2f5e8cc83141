"""Predictions read back: those that were kept, and files that hold anything else, each with its sentence."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.fakes import make
from support.wandb_server import Server
from support.wandb_server.clients import asking

from ampcompare import metrics
from ampcompare.records import RunRecord, load_runs
from ampcompare.records.predictions import MOST_BYTES

KEPT = np.array([3, 0, 2, 3, 1], dtype=np.uint8)
FACTS = {metrics.TEST_IMAGES: 5, metrics.CLASSES: 4, metrics.TEST_SET: "abc"}


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def header(text: str) -> bytes:
    """A file of which there is a header alone."""
    return b"\x93NUMPY\x01\x00" + (len(text) + 1).to_bytes(2, "little") + text.encode() + b"\n"


def claiming(shape: str, dtype: str = "|u1") -> bytes:
    return header(f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}")


@pytest.fixture
def run(tmp_path: Path) -> RunRecord:
    """A run of three parts on the disk, none of which kept a file yet."""
    made = make("none", 1, edit=lambda plan: plan["summary"].update(FACTS))
    made.paths = tuple(tmp_path / f"offline-run-{part}" / "run-x.wandb" for part in range(3))
    for path in made.paths:
        (path.parent / "files").mkdir(parents=True)
    return made


def keep(run: RunRecord, content: bytes, part: int = -1) -> Path:
    path = run.paths[part].parent / "files" / "predictions.npy"
    path.write_bytes(content)
    return path


def test_the_latest_part_that_has_them_counts(run: RunRecord):
    keep(run, npy(KEPT[::-1]), 0)
    keep(run, npy(KEPT), 1)
    assert run.predictions.classes is not None
    assert run.predictions.classes.tolist() == KEPT.tolist()
    assert (run.predictions.test_set, run.predictions.problem) == ("abc", "")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is no whole NumPy array"),
        (b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65_535, "is no whole NumPy array"),
        (b"\x93NUMPY\x07\x00", "is no whole NumPy array"),
        (header("__import__('os').abort()"), "is no whole NumPy array"),
        (header("{'descr': '|u1', 'shape': (5,)}"), "is no whole NumPy array"),
        (npy(np.array([{}], dtype=object)), "is no whole NumPy array"),
        (npy(KEPT / 2), "does not hold one whole number for each image"),
        (npy(KEPT > 1), "does not hold one whole number for each image"),
        (npy(KEPT[None]), "does not hold one whole number for each image"),
        (npy(KEPT[0]), "does not hold one whole number for each image"),
        (npy(KEPT)[:-1], "is no whole NumPy array"),
        (claiming("(10**12,)"), "is no whole NumPy array"),
        (claiming("(999999999999999999999999,)"), "is no whole NumPy array"),
        (claiming("(-3,)"), "is no whole NumPy array"),
        (npy(KEPT[:0]), "holds 0 answers for 5 test images"),
        (npy(KEPT[:4]), "holds 4 answers for 5 test images"),
        (npy(KEPT + 1), "holds no answer, or one that is none of the classes"),
        (npy(KEPT.astype(np.int8) - 1), "holds no answer, or one that is none of the classes"),
        (npy(np.zeros(MOST_BYTES, np.uint8)), "is larger than 2 MiB and was not read"),
    ],
)
def test_what_is_wrong_with_a_file_is_a_sentence(run: RunRecord, content: bytes, why: str):
    keep(run, content)
    assert run.predictions.classes is None
    assert run.predictions.problem.startswith("Its predictions.npy ")
    assert run.predictions.problem.endswith(f"{why}.")


@pytest.fixture
def server(wandb_server: Server, tmp_path: Path):
    with asking(wandb_server, tmp_path / "client"):
        yield wandb_server


def on_server(server: Server, run_id: str, **files: bytes) -> None:
    run = server.project("tester", "p").run(run_id)
    run.state, run.summary = "finished", dict(FACTS)
    run.rows = {0: {"_step": 0, "global_step": 1}}
    run.files = {f"{name}.npy": content for name, content in files.items()}


def test_predictions_are_fetched_from_the_server_when_they_are_asked_for(server: Server):
    on_server(server, "whole", predictions=npy(KEPT))
    on_server(server, "none", others=b"x")
    on_server(server, "bad", predictions=b"x" * 40)
    on_server(server, "large", predictions=bytes(MOST_BYTES + 1))
    runs = {run.id: run for run in load_runs("wandb:tester/p")}
    assert not [path for path in server.requests if "/storage/" in path]
    found = {name: run.predictions for name, run in runs.items()}
    assert found["whole"].classes is not None
    assert found["whole"].classes.tolist() == KEPT.tolist()
    assert (found["none"].classes, found["none"].problem) == (None, "")
    assert found["bad"].problem == "Its predictions.npy is no whole NumPy array."
    assert found["large"].problem == "Its predictions.npy is larger than 2 MiB and was not read."
    fetched = [path for path in server.requests if "/storage/" in path]
    assert sorted(path.rpartition("/")[2] for path in fetched) == ["predictions.npy"] * 2
