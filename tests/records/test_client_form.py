"""The tests' own writer against W&B's client: what is measured on its records is true of real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.client_form import client_records
from support.log_writer import frame
from support.offline_runs import plan

from ampcompare.records.wandb_file import read_wandb_file
from ampcompare.wandb_client.framing import LogReader

PLAN = plan("native", name="usual")
BY_CLOCK = ("_runtime", "_timestamp", "_wandb.runtime")  # their values are of the moment


def payloads_of(path: Path) -> list[bytes]:
    with path.open("rb") as file:
        return list(LogReader(file))


def decoded(payloads: list[bytes]) -> list[Any]:
    from wandb.proto import wandb_internal_pb2 as protocol

    return [protocol.Record.FromString(payload) for payload in payloads]


def rows_part(payloads: list[bytes]) -> list[bytes]:
    """The records from the first row's summary to the last row; whether one of the time follows is chance."""
    kinds = [record.WhichOneof("record_type") for record in decoded(payloads)]
    rows = [number for number, kind in enumerate(kinds) if kind == "history"]
    return payloads[rows[0] - 1 : rows[-1] + 1]


def shape(payload: bytes) -> list[Any]:
    """The fields of a record in the order of the wire, of items as a set: theirs changes."""
    from google.protobuf.empty_pb2 import Empty
    from google.protobuf.unknown_fields import UnknownFieldSet

    def fields(content: bytes) -> list[Any]:
        return [(f.field_number, f.wire_type, f.data) for f in UnknownFieldSet(Empty.FromString(content))]

    found: list[Any] = []
    for number, wire, data in fields(payload):
        if number not in (2, 3):
            found.append((number, wire))
            continue
        inner = fields(data)
        items = []
        for kind, _, item in inner:
            if kind == 1:
                parts = fields(item)
                key = ".".join(part.decode() for _, _, part in parts[:-1])
                text = parts[-1][2].decode()
                items.append((key, [p[:2] for p in parts], "" if key in BY_CLOCK else text))
        found.append((number, wire, [part[:2] for part in inner if part[0] != 1], sorted(items)))
    return found


@pytest.fixture(scope="module")
def real(real_runs: dict[str, Path]) -> list[bytes]:
    return payloads_of(real_runs["usual"])


def test_rows_are_the_clients_field_by_field(real):
    ours = rows_part(client_records(PLAN, "native223"))
    theirs = rows_part(real)
    assert len(ours) == len(theirs) == 3 * len(PLAN["rows"]) - 1
    for one, other in zip(ours, theirs, strict=True):
        assert shape(one) == shape(other)


def test_both_read_as_the_same_run(real_runs, tmp_path):
    file = tmp_path / "run-native223.wandb"
    file.write_bytes(frame(client_records(PLAN, "native223")))
    ours, theirs = read_wandb_file(file), read_wandb_file(real_runs["usual"])
    assert ours.logged.keys() == theirs.logged.keys()
    for name in set(ours.logged) - set(BY_CLOCK):
        assert ours.logged[name][0].tolist() == theirs.logged[name][0].tolist()
        assert ours.values(name).tolist() == pytest.approx(theirs.values(name).tolist(), abs=0)
    assert (ours.name, ours.exit_code, ours.problems) == (theirs.name, theirs.exit_code, theirs.problems)
    own = {key: value for key, value in ours.summary.items() if key not in BY_CLOCK}
    assert own == {key: value for key, value in theirs.summary.items() if key in own}
