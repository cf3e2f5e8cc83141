"""A record that is switched off for a part of a run."""

from __future__ import annotations

from pathlib import Path

from ampcompare.config.load import load_config
from ampcompare.experiment import start_tracker
from ampcompare.records import load_runs


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
