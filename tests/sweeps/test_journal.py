"""The journal of a sweep: what is written is known again, whatever happened to the driver."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.quick import ROOT

from ampcompare.errors import UserError
from ampcompare.runs.run_state import RunState
from ampcompare.sweeps.journal import Journal, SeedGroup, SweepRun, read_journal

DEFINITION = {"method": "grid"}


def begun(folder: Path) -> Journal:
    """Return a journal with a finished run, a run that a signal ended, and a running one."""
    journal = Journal(folder, "mine", DEFINITION)
    journal.begin_driver()
    for index in range(3):
        journal.propose(SweepRun(index, parameters={"x": index}))
        journal.append("started", index=index, run_id="", process={"pid": 10 + index})
    for run, state, end in (
        (journal.state.runs[0], RunState.FINISHED, {"value": 0.5, "exit_code": 0, "by_signal": False}),
        (journal.state.runs[1], RunState.PREEMPTED, {"value": None, "exit_code": -9, "by_signal": True}),
    ):
        journal.append("ended", index=run.index, run_id=run.run_id, state=state, **end)
    journal.append("band", index=2, band=3, value=0.25, stopped=False)
    journal.add_seeds(SeedGroup((4, 5), 3, ("look at 3 seeds",)))
    return journal


def test_a_new_driver_knows_every_run_as_the_last_one_did(tmp_path):
    journal = begun(tmp_path)
    journal.close()
    again = Journal(tmp_path, "mine", {"method": "random"})  # what it began as stays
    assert again.state.definition == DEFINITION
    assert again.state.runs == journal.state.runs
    finished, preempted, running = again.state.runs.values()
    assert (finished.state, finished.value, finished.exit_code) == (RunState.FINISHED, 0.5, 0)
    assert (preempted.state, preempted.signal_ends, preempted.starts) == (RunState.PREEMPTED, 1, 1)
    assert (running.state, running.bands, running.process) == (RunState.RUNNING, {3: 0.25}, {"pid": 12})
    assert again.state.added_seeds == [(4, 5)]
    again.close()


@pytest.mark.parametrize("cut", [1, 40])
def test_a_line_that_a_killed_driver_did_not_complete_is_left_out(tmp_path, cut):
    journal = begun(tmp_path)
    runs = dict(journal.state.runs)
    journal.append("ended", index=2, run_id="", state="failed", value=None, exit_code=1, by_signal=False)
    journal.close()
    file = tmp_path / "sweep.jsonl"
    file.write_bytes(file.read_bytes()[:-cut])
    assert read_journal(tmp_path).runs == runs
    again = Journal(tmp_path, "mine", DEFINITION)
    end = {"state": RunState.FINISHED, "value": 0.75, "exit_code": 0, "by_signal": False}
    again.append("ended", index=2, run_id=again.state.runs[2].run_id, **end)
    again.close()
    assert read_journal(tmp_path).runs[2].value == 0.75


def test_a_point_that_is_run_again_has_a_new_id_and_forgets_how_the_old_one_ended(tmp_path):
    journal = begun(tmp_path)
    old = journal.state.runs[1]
    new = journal.propose(old)
    assert (new.index, new.parameters, new.state) == (1, old.parameters, RunState.QUEUED)
    assert (new.starts, new.signal_ends, new.exit_code) == (0, 0, None)
    assert new.run_id != old.run_id
    journal.close()


HOLDS = """
import sys
from pathlib import Path
from ampcompare.sweeps.journal import Journal
journal = Journal(Path(sys.argv[1]), "mine", {})
journal.begin_driver()
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_second_driver_is_told_where_the_first_one_runs_and_one_that_was_killed_is_none(tmp_path):
    command = [sys.executable, "-c", HOLDS, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": {"PYTHONPATH": str(ROOT / "src")}}
    with subprocess.Popen(command, **pipes) as first:
        assert first.stdout.readline() == b"ready\n"
        with pytest.raises(UserError, match=rf"already running in this folder \(.*, pid {first.pid}\)"):
            Journal(tmp_path, "mine", {})
        first.kill()
    Journal(tmp_path, "mine", {}).close()


def test_what_is_no_journal_of_this_sweep_is_refused_in_a_line(tmp_path):
    begun(tmp_path).close()
    with pytest.raises(UserError, match="this folder belongs to the sweep 'mine', not to 'other'"):
        Journal(tmp_path, "other", {})
    events = tmp_path / "sweep.jsonl"
    kept = events.read_text()
    for damaged in ("no json\n", '{"event": "started"}\n[]\n', "\0\0\n"):
        events.write_text(damaged)
        with pytest.raises(UserError, match=r"sweep\.jsonl: not the journal of a sweep") as caught:
            Journal(tmp_path, "mine", {})
        assert "\n" not in str(caught.value)
    events.write_text(kept)
    definition = tmp_path / "sweep.json"
    for number, said in (
        (1, r"version 0\.4 or an earlier one of AMP .*finish it with"),
        (99, "a later version of AMP Compare began this sweep"),
    ):
        definition.write_text(json.dumps(json.loads(definition.read_text()) | {"format": number}))
        with pytest.raises(UserError, match=said):
            read_journal(tmp_path)
    definition.write_text("[")
    with pytest.raises(UserError, match=r"sweep\.json: not the journal of a sweep"):
        Journal(tmp_path, "mine", {})
