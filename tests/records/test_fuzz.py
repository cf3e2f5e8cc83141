"""Records with anything in them: a run with problems in words, or UserError; never another exception."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.log_writer import frame
from support.properties import examples
from wandb.proto.wandb_internal_pb2 import Record

from ampcompare.errors import UserError
from ampcompare.records import load_runs

KEYS = (
    "global_step",
    "train/loss",
    "eval/accuracy",
    "epoch",
    "amp/scale_factor",
    "throughput/images_per_second",
)
OPTIONS = ("backend", "seed", "batch_size", "epochs", "model", "data", "environment", "max_steps", "_wandb")
TEXTS = (
    "NaN",
    "-Infinity",
    "1e999",
    "9" * 400,
    "{}",
    "[[]]",
    '"x"',
    "null",
    "true",
    '{"a": {"b": 1}}',
    "",
    "[",
    "\0",
)
VALUES = st.sampled_from(TEXTS) | st.floats().map(json.dumps) | st.integers().map(str) | st.text(max_size=6)


def record(kind: str, keys: tuple[str, ...], data: st.DataObject) -> Any:
    made = Record()
    part = getattr(made, kind)
    items = part.item if kind == "history" else part.update
    for key in data.draw(st.lists(st.sampled_from(keys) | st.text(max_size=5), max_size=6)):
        item = items.add(value_json=data.draw(VALUES))
        if data.draw(st.booleans()):
            item.key = key
        else:
            item.nested_key.extend(key.split("/"))
    return made


def payloads(data: st.DataObject) -> list[bytes]:
    begin = Record()
    begin.run.run_id = data.draw(st.sampled_from(["one", "", "a b/é"]))
    begin.run.display_name = data.draw(st.text(max_size=8))
    begin.run.start_time.seconds = data.draw(st.integers(-(2**63), 2**63 - 1))
    found = [begin, record("config", OPTIONS, data)]
    found += [record("history", KEYS, data) for _ in range(data.draw(st.integers(0, 8)) or 3)]
    found.append(record("summary", (*KEYS, *OPTIONS), data))
    end = Record()
    end.exit.exit_code = data.draw(st.sampled_from([0, 1, -1, 255]))
    return [part.SerializeToString() for part in [*found, end]]


def put(folder: Path, content: bytes) -> Path:
    path = folder / "offline-run-20260101_000000-one" / "run-one.wandb"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return folder


@examples(150, 1500)
def test_mutated_records_give_a_run_or_a_sentence(tmp_path: Path, examples: int):
    """How deep they go: of 1553 inputs 97 % came out as a run, 79 % with rows, 91 % with something wrong in
    words.
    """
    seen: Counter[str] = Counter()

    @settings(max_examples=examples)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        seen["inputs"] += 1
        parts = payloads(data)
        for _ in range(data.draw(st.integers(0, 3))):  # damage that the checksum does not show
            number = data.draw(st.integers(0, len(parts) - 1))
            damaged = bytearray(parts[number])
            place = data.draw(st.integers(0, len(damaged)))
            damaged[place : place + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=6))
            parts[number] = bytes(damaged)
        content = bytearray(frame(parts))
        if data.draw(st.booleans()):
            del content[len(content) - data.draw(st.integers(0, len(content))) :]
        with contextlib.suppress(UserError):
            (run,) = load_runs([put(tmp_path, bytes(content))])
            assert all(isinstance(problem, str) for problem in run.problems)
            for key in KEYS:
                run.values(key)
                run.summary_number(key)
            seen["runs"] += 1
            seen["with rows"] += run.rows > 0
            seen["with problems"] += bool(run.problems)

    check()
    # Far below what is usual: the few examples of `make test` differ much from one time to the next.
    assert seen["runs"] > 0.5 * seen["inputs"], seen
    assert seen["with rows"] > 0.2 * seen["inputs"], seen
    assert seen["with problems"] > 0.1 * seen["inputs"], seen


@pytest.mark.slow
def test_whatever_a_record_says_it_can_be_analysed(tmp_path: Path):
    """How deep they go: of 169 records 89 % came to an analysis, 57 % with numbers under metrics' names."""
    from ampcompare.report import analyse_runs

    seen: Counter[str] = Counter()

    @settings(max_examples=150)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        seen["inputs"] += 1
        with contextlib.suppress(UserError):
            runs = load_runs([put(tmp_path, frame(payloads(data)))])
            found = analyse_runs(runs)
            assert found.headline
            assert found.sentences
            assert all(found.remarks + found.notes)
            seen["analysed"] += 1
            seen["with numbers"] += any(len(run.values(key)) for run in runs for key in KEYS)

    check()
    assert seen["analysed"] > 0.5 * seen["inputs"], seen
    assert seen["with numbers"] > 0.2 * seen["inputs"], seen
