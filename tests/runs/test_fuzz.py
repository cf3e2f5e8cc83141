"""Records with any content give a run with sentences on its problems, or UserError, nothing else."""

import contextlib
from collections import Counter
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from support.properties import examples
from support.wandb_files import ODD, frame, odd_records
from wandb.proto.wandb_internal_pb2 import Record

from ampcompare import analyse_runs, load_runs
from ampcompare.errors import UserError

KEYS = tuple(
    "global_step train/loss eval/accuracy epoch amp/scale_factor memory/peak_mib environment".split()
)
OPTIONS = tuple("backend seed batch_size epochs model data environment max_steps _wandb".split())


def payloads(data: st.DataObject) -> list[bytes]:
    """Return the records of a run with any rows."""
    begin, end = Record(), Record()
    begin.run.run_id = data.draw(st.sampled_from(["one", "", "a b/é"]))
    begin.run.display_name = data.draw(st.text(max_size=8))
    begin.run.start_time.seconds = data.draw(st.integers(-(2**63), 2**63 - 1))
    for key in data.draw(st.lists(st.sampled_from(OPTIONS) | st.text(max_size=5), max_size=6)):
        begin.run.config.update.add(key=key, value_json=data.draw(ODD))
    begin.run.config.update.add(key="backend", value_json='"none"')  # what the analysis compares
    end.exit.exit_code = data.draw(st.sampled_from([0, 1, -1, 255]))
    rows = data.draw(st.lists(odd_records(KEYS), min_size=1, max_size=8))
    return [begin.SerializeToString(), *rows, end.SerializeToString()]


@examples(20, 200)
def test_mutated_records_are_analysed_or_refused_in_a_sentence(tmp_path: Path, examples: int):
    seen: Counter[str] = Counter()
    path = tmp_path / "offline-run-20260101_000000-one" / "run-one.wandb"
    path.parent.mkdir()

    @settings(max_examples=examples)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
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
        path.write_bytes(content)
        seen["inputs"] += 1
        with contextlib.suppress(UserError):
            (run,) = load_runs([tmp_path])
            assert all(isinstance(problem, str) for problem in run.problems)
            seen["read"] += 1
            # A record without our options is another program's: what it compares has to be named.
            assert analyse_runs([run], metric="eval/accuracy:max:fraction", group_by=["backend"]).headline
            seen["analysed"] += 1

    check()
    # Far below what is usual: that inputs go deep enough to find anything. The fractions of few inputs vary.
    assert seen["read"] > (0.5 if examples >= 200 else 0.2) * seen["inputs"], seen
    assert seen["analysed"] > (0.2 if examples >= 200 else 0.0) * seen["inputs"], seen
