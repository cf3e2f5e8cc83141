"""Writes `.wandb` files as W&B's client does, thousands of rows a second, and unusual ones.

`runs/test_wandb_file.py` compares them with files of the client.
"""

import json
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from wandb.proto.wandb_internal_pb2 import Record

HEADER = b":W&B\xe1\xbe\x00"
BLOCK = 32_768
STARTED = 1_795_361_109  # some moment, in seconds since 1970
ROW_SECONDS = 0.41


def chunk(kind: int, data: bytes) -> bytes:
    return struct.pack("<IHB", zlib.crc32(bytes([kind]) + data), len(data), kind) + data


def frame(payloads: Sequence[bytes]) -> bytes:
    """Return the bytes of a file with these records."""
    file = bytearray(HEADER)
    for payload in payloads:
        rest, is_first = payload, True
        while True:
            left = BLOCK - len(file) % BLOCK
            if left < 7:
                file += bytes(left)
                left = BLOCK
            part, rest = rest[: left - 7], rest[left - 7 :]
            kind = (1 if is_first else 4) if not rest else (2 if is_first else 3)
            file += chunk(kind, part)
            is_first = False
            if not rest:
                break
    return bytes(file)


def write_runs(folder: Path, plans: Sequence[Mapping[str, Any]]) -> list[Path]:
    """One run for each plan (`support.fakes.plan`) under `folder/wandb`, as recorded offline: their files."""
    files = []
    for number, plan in enumerate(plans):
        run_id = plan["wandb"]["id"]
        file = folder / "wandb" / f"offline-run-20260101_{number:06}-{run_id}" / f"run-{run_id}.wandb"
        file.parent.mkdir(parents=True)
        file.write_bytes(frame(client_records(plan)))
        files.append(file)
    return files


def client_records(plan: Mapping[str, Any], rows: Sequence[bytes] = ()) -> list[bytes]:
    """Return the records of a planned run; `rows` are those of `row_records`."""
    run, *ends = Record(), Record()
    given = plan["wandb"]
    run.run.run_id, run.run.project, run.run.display_name = given["id"], given["project"], given["name"]
    run.run.run_group = given.get("group", "")
    run.run.tags.extend(given.get("tags", ()))
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


def leet(path: Path, *options: str) -> str:
    """Return what `wandb leet inspect` prints."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_")}
    command = [sys.executable, "-m", "wandb", "leet", "inspect", str(path), "--json", *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def leet_rows(path: Path) -> list[dict]:
    """Return the history rows of W&B's own reader, with values in our form."""
    records = [json.loads(line) for line in leet(path).splitlines() if line.startswith("{")]
    return [record["history"]["item"] for record in records if record["type"] == "history"]


def as_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


KEYS = ("loss", "_step", "eval/accuracy", "a.b", "a", "ü", "a-key-of-more-than-eight-bytes", "x" * 200, "")
TEXTS = ('"NaN"', "NaN", "-Infinity", "1e999", "9" * 400, "-0", "1_0", "+1", ".5", "1,2", '1,"', '2"')
TEXTS += ("{}", "[[]]", '"ü"', "null", "true", '{"a": {"b": 1}}', "", "[", "\0", "1 ", "0x1", "١")
VALUES = st.floats(allow_nan=False).map(json.dumps) | st.integers().map(str)
ODD = st.sampled_from(TEXTS) | st.text(max_size=6) | VALUES


@st.composite
def odd_records(draw: st.DrawFn, keys: tuple[str, ...] = KEYS, values: st.SearchStrategy[str] = ODD) -> bytes:
    """Draw a history or summary record with any content, mostly as the client writes it."""
    record = Record()
    is_row = draw(st.booleans())
    items = record.history.item if is_row else record.summary.update
    (record.history if is_row else record.summary).SetInParent()
    for key in draw(st.lists(st.sampled_from(keys), max_size=5)):
        item = items.add(value_json=draw(values))
        if draw(st.integers(0, 9)):
            item.nested_key.extend(key.split("."))
        else:
            item.key = key
    if not is_row and not draw(st.integers(0, 9)):
        record.summary.remove.add(nested_key=draw(st.sampled_from(keys)).split("."))
    number = b"\x08" + draw(
        st.sampled_from([b"\x01", b"\x80\x01", b"\xff\xff\xff\x7f", b"\x80" * 6 + b"\x01"])
    )
    info = draw(st.sampled_from([b"", b"\xc2\x0c\x02\x0a\x00", b"\x82\x01\x00"]))
    return draw(st.permutations([number, info, record.SerializeToString()]).map(b"".join))
