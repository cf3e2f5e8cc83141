"""Two runs, or states, that have to be the same to the last bit."""

from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch.utils._pytree import keystr, tree_flatten_with_path

from ampcompare import load_runs
from ampcompare.runs import RunRecord
from ampcompare.training.checkpoint.store import CheckpointStore, read_checkpoint

CLOCK = ("_", "time/", "throughput/", "memory/")


def end_of(folder: Path) -> dict[str, Any]:
    """Return the last checkpoint of the only run in a folder."""
    (run,) = (folder / "checkpoints").iterdir()
    return read_checkpoint(CheckpointStore(run).files()[0])


def record_of(folder: Path) -> RunRecord:
    (record,) = load_runs([folder])
    return record


def steps_of(folder: Path) -> list[float]:
    """Return the steps with a loss in the record."""
    rows = record_of(folder).history
    return rows.loc[rows["train/loss"].notna(), "global_step"].tolist()


def history(record: RunRecord) -> pd.DataFrame:
    """Return the history without what depends on the clock."""
    return record.history[[c for c in sorted(record.history) if not c.startswith(CLOCK)]].reset_index(
        drop=True
    )


def assert_same_state(one: Any, other: Any, where: str = "") -> None:
    ours, theirs = tree_flatten_with_path(one), tree_flatten_with_path(other)
    assert ours[1] == theirs[1], where
    for (path, a), (_, b) in zip(ours[0], theirs[0], strict=True):
        place = f"{where}{keystr(path)}"
        assert type(a) is type(b), place
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True, msg=place)
        else:
            assert a == b, place


def assert_same_run(one: Path, other: Path) -> None:
    first, second = end_of(one), end_of(other)
    for part in ("model", "optimizer", "scheduler", "precision"):
        assert_same_state(first[part], second[part], part)
    for one_process, other_process in zip(first["random"], second["random"], strict=True):
        assert_same_state(one_process["torch"], other_process["torch"])  # the others have no seed
    for part in ("step", "epoch", "in_epoch", "evaluated", "evals"):
        assert_same_state(first["fit"][part], second["fit"][part], part)
    for part in ("skipped", "findings"):
        assert_same_state(first["fit"]["meter"][part], second["fit"]["meter"][part], part)
    assert first["record"]["rows"] == second["record"]["rows"]
    pd.testing.assert_frame_equal(history(record_of(one)), history(record_of(other)))
