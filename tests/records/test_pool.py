from __future__ import annotations

import sys
import threading

import pytest

from ampcompare.records import load_runs, pool


def test_helpers_read_what_one_process_reads(real_runs, monkeypatch):
    paths = list(real_runs.values())
    alone = pool.read_fragments(paths)
    monkeypatch.setattr(pool, "WORTH_BYTES", 0)
    monkeypatch.setattr(pool, "processors", lambda: 3)
    together = pool.read_fragments(paths)
    assert [f.id for f in together] == [f.id for f in alone]
    for one, other in zip(alone, together, strict=True):
        assert one.columns.keys() == other.columns.keys()
        assert repr((one.config, one.problems, one.state)) == repr(
            (other.config, other.problems, other.state)
        )
        assert all(repr(one.columns[n].tolist()) == repr(other.columns[n].tolist()) for n in one.columns)


def test_a_helper_that_dies_is_an_error_and_not_a_missing_run(real_runs, monkeypatch):
    monkeypatch.setattr(pool, "WORTH_BYTES", 0)
    monkeypatch.setattr(pool, "processors", lambda: 2)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="exit code 1"):
        pool.read_fragments(list(real_runs.values()))


def test_runs_are_read_beside_other_threads(real_runs, monkeypatch):
    monkeypatch.setattr(pool, "WORTH_BYTES", 0)
    monkeypatch.setattr(pool, "processors", lambda: 2)
    found = []
    thread = threading.Thread(target=lambda: found.extend(load_runs(real_runs.values())))
    thread.start()
    thread.join()
    assert len(found) == 4
