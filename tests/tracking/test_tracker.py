"""The contract of a tracker, and the one that records nothing."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ampcompare import experiment, metrics
from ampcompare.config.load import load_config
from ampcompare.records import load_runs
from ampcompare.tracking.start import start_tracker
from ampcompare.tracking.tracker import Tracker
from ampcompare.train.display import TrainingDisplay


class Lines(Tracker):
    """A second tracker, written from the contract alone: rows as lines of JSON, cut back at a resume."""

    def __init__(self, folder: Path, run_id: str, state: Mapping[str, Any] | None = None) -> None:
        self.run_id, self.ends = run_id, 0
        self.file = (folder / f"{run_id}.jsonl").open("r+" if state else "w")
        self.file.seek(self.file.truncate(state["bytes"]) if state else 0)

    def log(self, row: Mapping[str, Any]) -> None:
        plain = {k: vars(v) if isinstance(v, metrics.Histogram) else v for k, v in row.items()}
        self.file.write(json.dumps(plain) + "\n")

    def flush(self) -> None:
        self.file.flush()

    def state_dict(self) -> dict[str, Any]:
        return {"bytes": self.file.tell()}

    def finish(self, summary: Mapping[str, Any], exit_code: int) -> str | None:
        self.ends += 1
        self.file.write(json.dumps({"exit_code": exit_code, **summary}) + "\n")
        self.file.close()
        return None


def test_another_tracker_has_every_row_once_in_a_run_that_was_killed_and_goes_on(
    tmp_path: Path, quick_overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    def play(run_id: str, die_at: int | None = None) -> tuple[list[dict[str, Any]], str]:
        made: list[Lines] = []

        def start(config: Any, environment: Any, say: Any, on_stop: Any, resumed: Any, on_lost: Any) -> Lines:
            made.append(Lines(tmp_path, run_id, resumed["record"] if resumed else None))
            return made[0]

        def step(self: TrainingDisplay, step: int) -> None:
            if step == die_at:
                raise SystemExit

        monkeypatch.setattr(experiment, "start_tracker", start)
        monkeypatch.setattr(TrainingDisplay, "step", step)
        words = [*quick_overrides, f"output_dir={tmp_path / run_id}", "resume=auto"]
        text = io.StringIO()
        try:
            experiment.run(load_config(None, words), Console(file=text, width=200))
        except SystemExit:
            assert die_at
        assert made[0].ends == 1
        lines = (tmp_path / f"{run_id}.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        return [
            {k: v for k, v in row.items() if k in (metrics.STEP, metrics.LOSS)} for row in rows
        ], text.getvalue()

    whole, _ = play("whole")
    died, _ = play("again", die_at=7)
    resumed, said = play("again")
    assert len(died) > whole.index({metrics.STEP: 4}) + 1  # rows behind the checkpoint, to be cut off
    assert "going on with run again at step 4" in said
    assert "wandb" not in said.lower()
    assert resumed == whole


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
