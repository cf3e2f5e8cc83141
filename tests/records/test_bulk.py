"""Records taken in by the thousand against the same records taken in one by one."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from support.log_writer import frame
from support.odd_records import ODD, VALUES, records
from support.properties import examples

from ampcompare.records import offline
from ampcompare.records.offline import read_fragment
from ampcompare.records.run import Fragment
from ampcompare.records.table import parse_json
from ampcompare.records.tree import Tree
from ampcompare.wandb_client.protocol import Record
from ampcompare.wandb_client.wire import FEW, PLAIN, Batch


def one_by_one(payloads: list[bytes]) -> dict[str, Any]:
    """What a file of these records says, by the plainest code: protobuf, a dictionary for each row."""
    rows: list[dict[str, Any]] = []
    names: dict[str, bool] = {}  # whether all that was put under it is a number
    summary, config, said = Tree(), Tree(), Counter[str]()
    exit_code = None
    for payload in payloads:
        try:
            record = Record.FromString(payload)
        except DecodeError:
            said["undecodable"] += 1
            continue
        if record.HasField("history"):
            row: dict[str, Any] = {}
            for item in record.history.item:
                name = ".".join(item.nested_key) if item.nested_key else item.key
                names.setdefault(name, True)
                try:
                    value = row[name] = _value(item.value_json)
                    names[name] &= value is None or isinstance(value, float)
                except ValueError:
                    said["bad values"] += 1
            rows.append(row)
        elif record.HasField("summary"):
            summary.apply(record.summary)
        elif record.HasField("config"):
            config.apply(record.config)
        elif record.HasField("run"):
            config.apply(record.run.config)
            summary.apply(record.run.summary)
        elif record.HasField("exit"):
            exit_code = record.exit.exit_code
    found = {"summary": summary.build(), "config": config.build(), "exit_code": exit_code}
    if bad := summary.bad_values + config.bad_values:
        said["bad values"] += bad
    columns = {name: _cells([row.get(name) for row in rows], plain) for name, plain in names.items()}
    return found | {"rows": len(rows), "columns": columns, "said": dict(sorted(said.items()))}


def _value(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return parse_json(text)


def _cells(values: list[Any], is_number: bool) -> list[str]:
    """Each value as text, NaN marked as logged or nothing."""
    nothing = "nan" if is_number else "None"
    return [nothing if v is None else "nan, logged" if v != v else repr(v) for v in values]


def as_plain(fragment: Fragment) -> dict[str, Any]:
    """What was read, in the form of `one_by_one`."""
    columns = {}
    for name, column in fragment.columns.items():
        logged = set(fragment.nan_rows.get(name, np.empty(0)).tolist())
        cells = [repr(v) for v in column.tolist()]
        columns[name] = [f"{cell}, logged" if n in logged else cell for n, cell in enumerate(cells)]
        assert len(column) == fragment.rows
    words = {"could not be decoded": "undecodable", "were not valid JSON": "bad values"}
    said = {
        short: int(problem.split()[0].replace(",", ""))
        for problem in fragment.problems
        for long, short in words.items()
        if long in problem
    }
    names = ("summary", "config", "exit_code", "rows")
    return {name: getattr(fragment, name) for name in names} | {
        "columns": columns,
        "said": dict(sorted(said.items())),
    }


def check(path: Path, payloads: list[bytes]) -> Fragment:
    path.write_bytes(frame(payloads))
    fragment = read_fragment(path, now=0)
    found, expected = as_plain(fragment), one_by_one(payloads)
    assert repr(found) == repr(expected)
    assert list(found["columns"]) == list(expected["columns"])
    return fragment


@examples(100, 600)
def test_many_records_say_what_each_says_alone(tmp_path: Path, examples: int):
    """Batches of some KB, so that records of one file fall into several."""
    seen: Counter[str] = Counter()

    @settings(max_examples=examples)
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        values = data.draw(st.sampled_from([ODD, VALUES]))
        drawn = data.draw(st.lists(records(values=values), min_size=FEW, max_size=40))
        times = data.draw(st.integers(1, 4))
        payloads = drawn * times
        if data.draw(st.booleans()):
            other = Record()
            other.run.run_id = "one"
            other.run.summary.update.add(key="loss", value_json="-1")
            payloads.insert(data.draw(st.integers(0, len(payloads))), other.SerializeToString())
        for _ in range(data.draw(st.integers(0, 2))):  # damage that no checksum shows
            number = data.draw(st.integers(0, len(payloads) - 1))
            damaged = bytearray(payloads[number])
            place = data.draw(st.integers(0, len(damaged)))
            damaged[place : place + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=6))
            payloads[number] = bytes(damaged)
        kinds = Batch(payloads).kinds
        seen["records"] += len(kinds)
        seen["plain"] += int((kinds == PLAIN).sum())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(offline, "BATCH_BYTES", data.draw(st.sampled_from([400, 4_000, 4_000_000])))
            check(tmp_path / "run-one.wandb", payloads)

    run()
    assert 0.05 < seen["plain"] / seen["records"] < 0.9, seen  # both ways were compared


def row(**values: str) -> bytes:
    record = Record()
    for name, text in values.items():
        record.history.item.add(value_json=text).nested_key.append(name)
    return record.SerializeToString()


def test_one_value_that_is_no_number_leaves_the_others_exact(tmp_path):
    numbers = [repr(n / 7) for n in range(50)]
    payloads = [row(a=n, b=n, c="1") for n in numbers] + [row(a="1,2", b='"NaN"', c="tr\\u00fce")]
    fragment = check(tmp_path / "run-one.wandb", payloads + [row(a=n) for n in numbers])
    assert fragment.columns["a"][:50].tolist() == [float(n) for n in numbers]
    assert fragment.nan_rows["b"].tolist() == [50]


def test_values_that_only_together_are_json_are_bad_values(tmp_path):
    """Joined with commas they would make a list of as many elements."""
    for pair in (("1,[2", "3]"), ('1,"', '2"'), ('1,"5', '6"'), ("1,2", ""), ('1,{"a":1', "1}")):
        payloads = [row(a=pair[0], b=pair[1])] + [row(a="1", b="2")] * FEW
        assert "2 values were not valid JSON" in " ".join(check(tmp_path / "run-a.wandb", payloads).problems)


def test_text_that_is_not_utf8_costs_its_record_and_no_other(tmp_path):
    payloads = [row(a="1", b='"x"')] * (2 * FEW)
    payloads[3] = payloads[3].replace(b'"x"', b'"\xff"')
    payloads[5] = payloads[5].replace(b"\x01b", b"\x01\xff")
    fragment = check(tmp_path / "run-a.wandb", payloads)
    assert fragment.rows == 2 * FEW - 2
    assert "2 records could not be decoded" in " ".join(fragment.problems)


def test_logged_nan_stays_one_in_a_column_that_gets_texts_later(tmp_path):
    payloads = [row(a='"NaN"'), row(b="1"), row(a='"x"'), row(a='"NaN"')]
    fragment = check(tmp_path / "run-a.wandb", payloads)
    cells = fragment.columns["a"]
    assert math.isnan(cells[0])
    assert list(cells[1:3]) == [None, "x"]
    assert fragment.nan_rows["a"].tolist() == [0, 3]
