"""The reader on files of the real client, compared with W&B's own reader."""

import contextlib
import json
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fakes import plan
from support.log_templates import write
from support.properties import examples
from support.wandb_files import ODD, VALUES, frame, leet, leet_rows, odd_records, write_runs
from wandb.proto.wandb_internal_pb2 import Record

from ampcompare import load_runs
from ampcompare.errors import UserError
from ampcompare.runs import RunRecord
from ampcompare.runs.metric_definitions import definition_of
from ampcompare.runs.nested import parse_json
from ampcompare.training.checkpoint.store import CheckpointStore


def read(path: Path) -> RunRecord:
    """Return the run in a file."""
    (run,) = load_runs([path])
    return run


def written(folder: Path, payloads: list[bytes]) -> RunRecord:
    """Return the run in a file with these records."""
    path = folder / "run-one.wandb"
    folder.mkdir(exist_ok=True)
    path.write_bytes(frame(payloads))
    return read(path)


def our_rows(run: RunRecord) -> list[dict]:
    """Return the rows that our reader finds."""
    rows: list[dict] = [{} for _ in range(run.rows)]
    for key, (at, values) in run.logged.items():
        for row, value in zip(at, values.tolist(), strict=True):
            rows[row][key] = _as_leet_says(value)
    return rows


def _as_leet_says(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {k: _as_leet_says(v) for k, v in value.items()}
    return value


def without_nulls(row: dict) -> dict:
    """Return a row without missing values."""
    return {k: v for k, v in row.items() if v is not None}


@pytest.mark.parametrize("name", ["usual", "odd", "keys", "killed"])
def test_history_equals_that_of_wandbs_reader(real_runs, name):
    expected = [without_nulls(row) for row in leet_rows(real_runs[name])]
    assert expected
    assert our_rows(read(real_runs[name])) == expected


@pytest.mark.parametrize("name", ["usual", "odd", "failed"])
def test_config_and_summary_equal_those_of_wandbs_reader(real_runs, name):
    expected = json.loads(leet(real_runs[name], "--summary"))
    run = read(real_runs[name])
    # The public reader leaves out groups without members; here they are kept.
    assert {k: v for k, v in run.config.items() if v != {}} == expected["config"]
    summary = {k: v for k, v in _as_leet_says(run.summary).items() if v is not None}
    assert summary == without_nulls(expected["summary"])
    assert (run.id, run.name, run.project) == (expected["run_id"], expected["name"], expected["project"])
    assert (run.exit_code, run.problems) == (expected["exit_code"], [])
    if name == "usual":  # what that reader does not tell
        assert (run.group, run.job_type, run.notes, run.tags) == (
            "together",
            "train",
            "a note",
            ("one", "two"),
        )


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda content: content[: len(content) // 5], "ends inside a record"),
        (lambda content: content[: int(len(content) * 0.77)], "ends inside a record"),
        (
            lambda content: content[:20_000] + bytes([content[20_000] ^ 0xFF]) + content[20_001:],
            "damaged at 1",
        ),
    ],
)
def test_a_damaged_file_gives_the_rows_of_wandbs_reader(real_runs, tmp_path, spoil, problem):
    content = spoil(real_runs["usual"].read_bytes())
    spoilt = write(tmp_path / "offline-run-20260101_000000-bad" / "run-bad.wandb", content)
    expected = [without_nulls(row) for row in leet_rows(spoilt)]
    assert 0 < len(expected) < len(leet_rows(real_runs["usual"]))
    assert our_rows(read(spoilt)) == expected
    assert problem in read(spoilt).problems[0]


def set_back(path: Path, seconds: float) -> None:
    """Move the time of a file into the past."""
    os.utime(path, (time.time() - seconds,) * 2)


def rows_at(*ages: float, others: Sequence[bytes] = ()) -> bytes:
    """Return a file with a row that was logged so many seconds ago, for each, and other records."""
    return frame([*(row(_timestamp=str(time.time() - age)) for age in ages), *others])


def test_exit_code_age_and_lock_decide_the_state(real_runs, tmp_path):
    assert (read(real_runs["failed"]).state, read(real_runs["failed"]).exit_code) == ("failed", 3)
    killed = write(tmp_path / "wandb" / "offline-run-1-one" / "run-one.wandb", b"")
    for seconds, state in ((50, "running"), (70, "failed")):
        killed.write_bytes(rows_at(seconds))
        for age in (0, 1e6):  # of the file, which a copy changes
            set_back(killed, age)
            assert (read(killed).state, read(killed).rows) == (state, 1)
        sample = Record()  # system metrics, long after the last row
        sample.stats.timestamp.seconds = int(time.time() - seconds)
        killed.write_bytes(rows_at(5000, others=[sample.SerializeToString()]))
        assert read(killed).state == state
    store = CheckpointStore(tmp_path / "checkpoints" / read(killed).id)
    assert store.lock()
    assert read(killed).state == "running"
    store.unlock()
    assert read(killed).state == "failed"
    assert store.lock()  # and looking has not taken it
    store.unlock()
    for seconds, state in ((700, "running"), (800, "failed")):  # three rows of its own
        ages = [seconds + 250 * n + early for n in reversed(range(9)) for early in (0.5, 0)]
        killed.write_bytes(rows_at(*ages))
        assert read(killed).state == state


def defined(name: str, step: str = "", summary: str = "", goal: int = 0) -> bytes:
    """Return a record of `define_metric`."""
    record = Record()
    setattr(record.metric, "glob_name" if "*" in name else "name", name)
    record.metric.step_metric, record.metric.goal = step, goal
    if summary:
        setattr(record.metric.summary, summary, True)
    return record.SerializeToString()


def test_definitions_of_keys_and_patterns_are_read(tmp_path):
    records = [
        defined("val/*", "epoch"),
        defined("val/loss/*", "pass"),
        defined("val/acc", "epoch", "max"),
        defined("ppl", goal=1),
    ]
    run = written(tmp_path, [*records, row(loss="1")])
    keys = ("val/f1", "val/loss/a", "val/acc", "ppl", "x")
    definitions = {key: definition_of(key, run.definitions) for key in keys}
    assert [definitions[key].step for key in keys] == ["epoch", "pass", "epoch", "", ""]
    assert [definitions[key].goal for key in keys] == ["", "", "maximize", "minimize", ""]
    assert [key for key, one in definitions.items() if one.is_best] == ["val/acc"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b":W&", "ends inside a record"),
        (b":W&B\xe1\xbe\x00", "no run record"),
        (b"\x89PNG\r\n" + bytes(range(256)) * 300, "not a .wandb file"),
        (frame([b"\xff" * 20, b"\xff\xff"]), "could not be decoded"),
    ],
)
def test_a_file_without_a_run_is_a_failed_run_among_others_and_refused_alone(tmp_path, content, message):
    file = write(tmp_path / "offline-run-1-abc" / "run-abc.wandb", content)
    set_back(file, 1e6)
    with pytest.raises(UserError, match=message):
        read(tmp_path)
    write_runs(tmp_path, [plan("none")])
    (run,) = [run for run in load_runs([tmp_path]) if run.id == "abc"]
    assert message in " ".join(run.problems)
    assert (run.state, run.rows) == ("failed", 0)


def test_a_pipe_with_the_name_of_a_record_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "run-pipe.wandb")
    with pytest.raises(UserError, match="not a plain file"):
        read(tmp_path / "run-pipe.wandb")


def row(**values: str) -> bytes:
    """Return a record of one row."""
    record = Record()
    for name, text in values.items():
        record.history.item.add(value_json=text).nested_key.extend(name.split("__"))
    return record.SerializeToString()


def test_an_invalid_value_is_skipped_alone_and_null_is_no_value(tmp_path):
    texts = ["1.5", "null", '"x"', "2", "true", "[1, 2]", '"NaN"', '{"a": "Infinity"}', "9" * 400, "1,2"]
    payloads = [*(row(a=text, b='"x"') for text in texts), row(a__b="3")]
    payloads[3] = payloads[3].replace(b'"x"', b'"\xff"')  # not UTF-8
    payloads[5] = payloads[5].replace(b"\x01b", b"\x01\xff")
    run = written(tmp_path, payloads)
    cells = run.history["a"].tolist()
    assert cells[:6] + cells[7:11] == [1.5, None, "x", 2, True, [1, 2], {"a": math.inf}, math.inf, None, None]
    assert (run.nonfinite("a").tolist(), run.values("a.b").tolist()) == ([6, 8], [3])
    assert len(run.logged["b"][0]) == 8
    assert "3 values were not valid JSON" in " ".join(run.problems)


def test_summary_updates_and_removals_apply_in_order(tmp_path):
    def summary(*writes: tuple[str, str | None]) -> bytes:
        record = Record()
        for path, text in writes:
            items = record.summary.remove if text is None else record.summary.update
            items.add(nested_key=path.split("."), value_json=text or "")
        return record.SerializeToString()

    parts = [
        summary(("a.b", "1"), ("c", '{"d": 2, "e": 3}'), ("_wandb.runtime", "3")),
        summary(("a", "3")),
        summary(("a.x", "4"), ("n", '"NaN"')),
        summary(("c.d", None), ("nowhere.y", None)),
        summary(("n", '"Infinity"'), ("f", "{")),
    ]
    run = written(tmp_path, [*parts, row(a="1")])
    assert run.summary == {"a": {"x": 4}, "c": {"e": 3}, "n": math.inf}
    assert "1 values were not valid JSON" in " ".join(run.problems)


def environment(folder: Path, *changes: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a machine after W&B's client wrote these records one after the other."""
    records = [row(a="1")]
    for change in changes:
        record = Record()
        ParseDict(change, record.environment)
        records.append(record.SerializeToString())
    return written(folder, records).machine.facts


DEVICES = [  # what the client wrote, as one or several records or into a file, and device and kind
    ([{"apple": {"name": "Apple M2 Pro"}}, {"cpu_count": 8}], {}, "Apple M2 Pro", ""),
    ([{"cpu_count": 8}, {"gpu_amd": [{"series": "MI300X"}]}], {}, "MI300X", ""),
    ([{"tpu": {"name": "v5e"}, "cpu_count": 8}], {}, "v5e", ""),
    ([{"gpu_nvidia": [{"name": "NVIDIA L4"}], "cpu_count": 8}], {}, "NVIDIA L4", "cuda"),
    ([{"cpu_count": 8}], {}, "CPU with 8 cores", "cpu"),
    ([], {"gpu": "Tesla T4", "gpu_count": 1, "cpu_count": 2}, "Tesla T4", ""),
    ([], {"gpu_devices": [{"name": "Tesla V100"}], "cpu_count": 2}, "Tesla V100", ""),
    ([], {"gpuapple": {"type": "arm", "vendor": "Apple"}, "cpu_count": 8}, "Apple GPU", ""),
    ([], {"gpu_count": 2, "cpu_count": 8}, None, None),
    ([], {"cpu_count": 8}, "CPU with 8 cores", "cpu"),
    ([], ["no mapping"], None, None),
]


@pytest.mark.parametrize(("records", "metadata", "device", "kind"), DEVICES)
def test_a_machine_is_a_cpu_only_without_any_other_accelerator(tmp_path, records, metadata, device, kind):
    """Older clients write the name of the GPU beside the record."""
    write(tmp_path / "files" / "wandb-metadata.json", json.dumps(metadata))
    facts = environment(tmp_path, *records)
    assert (facts.get("device_name"), facts.get("device_type")) == (device, kind)


def test_the_machine_is_hashed_and_one_of_several_gpus_is_not_identified(tmp_path: Path):
    gpus = [{"name": "NVIDIA A100", "uuid": f"GPU-{number}"} for number in range(2)]
    box = {"host": "box", "gpu": "NVIDIA A100", "cuda_version": "13.0"}
    one, two = (environment(tmp_path, box | {"gpu_nvidia": gpus[:count]}) for count in (1, 2))
    assert (one["device_name"], one["device_type"], one["cuda"]) == ("NVIDIA A100", "cuda", "13.0")
    assert set(one["machine"]) == {"host", "gpu_uuid"}
    assert set(two["machine"]) == {"host"}
    assert "box" not in json.dumps(one)


def as_text(value: Any) -> str:
    """Return the value as text; 0 has no sign."""
    return repr(value + 0 if isinstance(value, float) else value)


def plainly(payloads: list[bytes]) -> dict[str, list[tuple[int, str]]]:
    """Return the rows of these records, decoded by protobuf into dictionaries; None if one cannot be."""
    found: dict[str, dict[int, str]] = {}
    number = -1
    for record in map(Record.FromString, payloads):
        if not record.HasField("history"):
            continue
        number += 1
        for item in record.history.item:
            with contextlib.suppress(ValueError):
                value = parse_json(item.value_json, parse_int=float)
                if value is not None:
                    name = ".".join(item.nested_key) if item.nested_key else item.key
                    found.setdefault(name, {})[number] = as_text(value)
    return {name: sorted(cells.items()) for name, cells in found.items()}


@examples(25, 200)
def test_records_of_any_form_are_read_as_by_protobuf(tmp_path, examples):
    @settings(max_examples=examples)
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        values = data.draw(st.sampled_from([ODD, VALUES]))
        drawn = data.draw(st.lists(odd_records(values=values), max_size=40)) * data.draw(st.integers(1, 4))
        payloads = [row(first="1"), *drawn]
        run_read = written(tmp_path, payloads)
        cells = {
            key: [(n, as_text(value)) for n, value in zip(at.tolist(), values.tolist(), strict=True)]
            for key, (at, values) in run_read.logged.items()
        }
        assert {key: some for key, some in cells.items() if some} == plainly(payloads)

    run()
