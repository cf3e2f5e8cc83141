"""Records as W&B's client writes them, thousands in a second; `records/test_wandb_file.py` compares them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record

STARTED = 1_795_361_109  # some moment, in seconds since 1970
ROW_SECONDS = 0.41


def client_records(plan: Mapping[str, Any], run_id: str, rows: Sequence[bytes] = ()) -> list[bytes]:
    """The records of a run that was planned by `offline_runs.plan`; `rows` are those of `row_records`."""
    run, *ends = Record(), Record()
    run.run.run_id, run.run.project = run_id, plan["wandb"]["project"]
    run.run.display_name = plan["wandb"]["name"]
    run.run.start_time.seconds = STARTED
    for key, value in plan["config"].items():
        run.run.config.update.add(key=key, value_json=as_json(value))
    for key, value in plan["summary"].items():
        ends[0].summary.update.add(key=key, value_json=as_json(value))
    if not plan["kill"]:
        ends.append(Record())
        ends[1].exit.exit_code, ends[1].exit.runtime = plan["exit_code"], int(len(plan["rows"]) * ROW_SECONDS)
    begin, *end = (record.SerializeToString() for record in (run, *ends))
    return [begin, *(rows or row_records(plan["rows"])), *end]


def row_records(rows: Sequence[Mapping[str, Any]]) -> list[bytes]:
    """For each row the summary with its values, the row, and the summary with the run's time."""
    payloads = []
    for number, row in enumerate(rows):
        seconds = number * ROW_SECONDS + 0.001
        own = {"_step": number, "_runtime": seconds, "_timestamp": STARTED + seconds}
        summary, history, clock = (Record(num=3 * number + place) for place in (12, 13, 14))
        for key, value in (dict(row) | own).items():
            for items in (summary.summary.update, history.history.item):
                items.add(value_json=as_json(value), nested_key=[key])
        history.history.step.num = number
        clock.summary.update.add(nested_key=["_wandb", "runtime"], value_json=str(int(seconds)))
        clock.summary.update.add(key="_runtime", value_json=str(int(seconds)))
        payloads += [record.SerializeToString() for record in (summary, history, clock)]
    return payloads


def as_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
