"""A record of two million rows, as of a run of a week: read and reported whole."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.log_writer import BLOCK, HEADER
from support.offline_runs import plan
from support.peak import REPORT, peak_kib
from wandb.proto.wandb_internal_pb2 import Record

ROWS = 2_000_000
WIDTH = 12


def row_template(keys: list[str]) -> bytes:
    """A history record with a place of fixed width for each value, as protobuf for each row takes minutes."""
    record = Record()
    for key in keys:
        record.history.item.add(nested_key=[key], value_json="@" * WIDTH)
    return record.SerializeToString().replace(b"%", b"%%").replace(b"@" * WIDTH, b"%-12.6g")


def payloads(rows: int) -> Iterator[bytes]:
    made = plan("native", steps=200)
    head, summary, end = Record(), Record(), Record()
    head.run.run_id = head.run.display_name = "long"
    for key, value in made["config"].items():
        head.run.config.update.add(key=key, value_json=json.dumps(value))
    for key, value in made["summary"].items():
        summary.summary.update.add(key=key, value_json=json.dumps(value))
    end.exit.exit_code = 0
    end.exit.SetInParent()
    template = row_template([*made["rows"][0], "_step"]).replace(b"%-12.6g", b"%-12d", 1)
    yield head.SerializeToString()
    for n in range(rows):
        x = n / rows
        loss = 2.3 - 2 * x + (n % 7) / 50
        speed = 2500.0 + n % 17
        yield template % (
            n + 1,
            x * 100,
            n / 20,
            n / 21,
            loss,
            x,
            0.1 - x / 10,
            65536.0,
            n // 1000,
            speed,
            50,
            900,
            n,
        )
    yield summary.SerializeToString()
    yield end.SerializeToString()


def write_long_record(path: Path, rows: int) -> None:
    """`log_writer.frame`, without holding the file in memory."""
    path.parent.mkdir(parents=True)
    pack, crc = struct.Struct("<IHB").pack, zlib.crc32
    with path.open("wb") as file:
        file.write(HEADER)
        left = BLOCK - len(HEADER)
        for payload in payloads(rows):
            rest, first = payload, True
            while first or rest:
                if left < 7:
                    file.write(bytes(left))
                    left = BLOCK
                part, rest = rest[: left - 7], rest[left - 7 :]
                kind = (1 if first else 4) if not rest else (2 if first else 3)
                file.write(pack(crc(part, crc(bytes([kind]))), len(part), kind) + part)
                left -= 7 + len(part)
                first = False


@pytest.mark.slow
def test_two_million_rows_are_reported_in_bounded_memory(tmp_path: Path):
    """0.5 GB were measured."""
    write_long_record(tmp_path / "offline-run-20260101_000000-long" / "run-long.wandb", ROWS)
    words = ["report", str(tmp_path), "--out", str(tmp_path / "out")]
    said, peak = peak_kib(REPORT, *words, cache=tmp_path / "cache")
    assert "page: " in said
    assert peak < 1_500_000
    content = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert [run["rows"] for run in content["runs"]] == [ROWS]
    assert content["runs"][0]["problems"] == []
    assert (tmp_path / "out" / "index.html").stat().st_size < 5_000_000
