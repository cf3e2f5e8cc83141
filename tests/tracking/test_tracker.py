"""The contract of a tracker, and the one that records nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from ampcompare.config.load import load_config
from ampcompare.records import load_runs
from ampcompare.tracking.start import start_tracker
from ampcompare.tracking.tracker import NoRecord, Tracker


def test_a_tracker_that_leaves_something_out_is_none():
    class Half(Tracker):
        def flush(self) -> None:
            pass

    with pytest.raises(TypeError, match=r"abstract method.* finish.* log"):
        Half()


def test_no_record_asks_nothing_of_who_uses_it():
    none = NoRecord("id")
    none.log({"global_step": 1})
    none.flush()
    assert (none.record, none.url, none.finish({}, 0)) == (None, None, None)
    assert none.finish_stopped({}, 143, preempted=True)


def test_a_part_without_a_record_hands_on_what_the_one_before_had(tmp_path: Path):
    """Recorded, not recorded, recorded again: the rows of the first part are there once."""
    config = load_config("reference", [f"output_dir={tmp_path}", "wandb.mode=offline"])
    tracker = start_tracker(config, {}, print)
    for step in (1, 2):
        tracker.log({"global_step": step, "epoch": step / 4})
    tracker.flush()
    state = {"run_id": tracker.run_id, "config": config.to_dict(), "record": tracker.state_dict()}
    tracker.finish({}, 1)

    off = load_config("reference", [f"output_dir={tmp_path}", "wandb.mode=disabled"])
    between = start_tracker(off, {}, print, resumed=state)
    assert (between.run_id, between.record) == (tracker.run_id, None)
    between.log({"global_step": 3, "epoch": 0.75})
    assert between.state_dict() == state["record"]

    last = start_tracker(config, {}, print, resumed=state | {"record": between.state_dict()})
    last.log({"global_step": 4, "epoch": 1.0})
    last.finish({}, 0)
    (run,) = load_runs([tmp_path])
    assert run.history["global_step"].tolist() == [1, 2, 4]
