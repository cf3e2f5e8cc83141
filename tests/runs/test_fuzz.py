"""Records with any content give a run with sentences on its problems, or UserError, nothing else."""

import contextlib
from collections import Counter
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from support.fakes import plan
from support.properties import examples
from support.wandb_files import client_records, frame, odd_records

from ampcompare import analyse_runs, load_runs
from ampcompare.errors import UserError

KEYS = tuple(
    "global_step train/loss eval/accuracy epoch amp/scale_factor memory/peak_mib environment".split()
)


@examples(20, 200)
def test_mutated_records_are_analysed_or_refused_in_a_sentence(tmp_path: Path, examples: int):
    seen: Counter[str] = Counter()
    path = tmp_path / "offline-run-20260101_000000-one" / "run-one.wandb"
    path.parent.mkdir()
    records = client_records(plan("none", steps=20))

    @settings(max_examples=examples)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        parts = [*records[:-1], *data.draw(st.lists(odd_records(KEYS), max_size=8)), records[-1]]
        for _ in range(data.draw(st.integers(0, 3))):  # damage that the checksum does not show
            number = data.draw(st.integers(0, len(parts) - 1))
            damaged = bytearray(parts[number])
            place = data.draw(st.integers(0, len(damaged)))
            damaged[place : place + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=6))
            parts[number] = bytes(damaged)
        content = frame(parts)
        path.write_bytes(content[: len(content) - data.draw(st.sampled_from([0, 0, 1, 20, 999]))])
        seen["inputs"] += 1
        with contextlib.suppress(UserError):
            (run,) = load_runs([tmp_path])
            assert all(isinstance(problem, str) for problem in run.problems)
            seen["read"] += 1
            assert analyse_runs([run], metric="eval/accuracy:max:fraction", group_by=["backend"]).headline
            seen["analysed"] += 1

    check()
    # That inputs go deep enough to find anything. The fractions of few inputs vary.
    assert min(seen["read"], seen["analysed"]) > 0.2 * seen["inputs"], seen
