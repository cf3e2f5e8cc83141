"""Records in the very form in which W&B's client writes them, thousands in a second.

`records/test_wandb_file.py` compares them with the client's own.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

STARTED = 1_795_361_109.0  # some moment, in seconds since 1970
ROW_SECONDS = 0.41


def client_records(plan: Mapping[str, Any], run_id: str, rows: Sequence[bytes] = ()) -> list[bytes]:
    """The records of a run that was planned by `offline_runs.plan`; `rows` are those of `row_records`."""
    from wandb.proto import wandb_internal_pb2 as protocol

    header, run, telemetry = (protocol.Record() for _ in range(3))
    header.header.version_info.producer = "0.31.0+15f8cbc581d1c5cfc6e31f68b48bdd13cec2dd2c"
    header.header.version_info.min_consumer = "0.70.0"
    run.run.run_id, run.run.project = run_id, plan["wandb"]["project"]
    run.run.display_name = plan["wandb"]["name"]
    run.run.start_time.seconds = int(STARTED)
    run.control.mailbox_slot = "1c1j3x5i6xtx"
    for key, value in {"_wandb": {}, **plan["config"]}.items():
        run.run.config.update.add(key=key, value_json=as_json(value))
    telemetry.telemetry.python_version, telemetry.telemetry.cli_version = "3.11.7", "0.31.0"
    begin = [header, run, telemetry, *_metrics()]
    end = []
    for known in range(1, len(plan["summary"]) + 1):  # each value that is set is written with those before
        record = protocol.Record()
        for key, value in list(plan["summary"].items())[:known]:
            record.summary.update.add(key=key, value_json=as_json(value))
        end.append(record)
    if not plan["kill"]:
        record = protocol.Record()
        record.exit.exit_code, record.exit.runtime = plan["exit_code"], int(len(plan["rows"]) * ROW_SECONDS)
        record.control.mailbox_slot = "ww72s2z9k2tf"
        end.append(record)
    for record in (header, run, telemetry, *end):
        record._info.stream_id = run_id
    made = [[record.SerializeToString() for record in part] for part in (begin, end)]
    return [*made[0], *(rows or row_records(plan["rows"])), *made[1]]


def _metrics() -> Iterator[Any]:
    """What `define_metric` writes: the step of all others."""
    from wandb.proto import wandb_internal_pb2 as protocol

    step, others = protocol.Record(), protocol.Record()
    step.metric.name, step.metric.options.defined = "global_step", True
    others.metric.glob_name, others.metric.step_metric = "*", "global_step"
    others.metric.options.step_sync = others.metric.options.defined = True
    yield from (step, others)


def row_records(rows: Sequence[Mapping[str, Any]]) -> list[bytes]:
    """For each row the summary with its values, the row, and the summary with the run's time.

    The client keeps a row in a map of Go's, whose order begins at another place each time.
    """
    from wandb.proto import wandb_internal_pb2 as protocol

    chance = random.Random(0)
    payloads = []
    for number, row in enumerate(rows):
        seconds = number * ROW_SECONDS + 0.001
        own = {"_step": number, "_runtime": seconds, "_timestamp": STARTED + seconds}
        texts = [(key, as_json(value)) for key, value in (dict(row) | own).items()]
        summary, history, clock = protocol.Record(), protocol.Record(), protocol.Record()
        for record, items in ((summary, summary.summary.update), (history, history.history.item)):
            record.num = 3 * number + (12 if record is summary else 13)
            turn = chance.randrange(len(texts))
            for key, text in texts[turn:] + texts[:turn]:
                items.add(value_json=_go_float(text) if key == "_timestamp" else text).nested_key.append(key)
        history.history.step.SetInParent()
        history.history.step.num = number
        clock.num = 3 * number + 14
        clock.summary.update.add(nested_key=["_wandb", "runtime"], value_json=str(int(seconds)))
        clock.summary.update.add(key="_runtime", value_json=str(int(seconds)))
        payloads += [record.SerializeToString() for record in (summary, history, clock)]
    return payloads


def as_json(value: Any) -> str:
    """A value in the text of Go's JSON: no spaces, whole numbers without a point."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e21:
        return str(int(value))
    if isinstance(value, dict):
        return f"{{{','.join(f'{json.dumps(key)}:{as_json(inner)}' for key, inner in value.items())}}}"
    return json.dumps(value, separators=(",", ":"))


def _go_float(text: str) -> str:
    """A number of ten digits before the point as `strconv`'s 'g' has it."""
    digits = text.replace(".", "")
    return f"{digits[0]}.{digits[1:]}".rstrip("0").rstrip(".") + "e+09"
