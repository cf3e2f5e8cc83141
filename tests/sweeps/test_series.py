"""Sweeps in which one process trains several seeds: the order of the runs, and what survives a kill."""

import contextlib
from itertools import groupby
from pathlib import Path

import pytest
import yaml
from support.scripted_executor import ScriptedExecutor, drive

from ampcompare.errors import UserError
from ampcompare.runs.run_state import RunState
from ampcompare.sweeps.decisions import Situation, Train, next_step
from ampcompare.sweeps.executors.slurm import runs_in_jobs
from ampcompare.sweeps.journal import Journal, SweepRun, SweepState
from ampcompare.sweeps.prepare import SweepOptions, prepare
from ampcompare.sweeps.process_guard import write_end
from ampcompare.sweeps.run_end import SCHEDULER, RunEnd, end_file
from ampcompare.sweeps.sweep import Sweep
from ampcompare.sweeps.sweep_file import read_sweep


def write_sweep(folder: Path, *, backends: int = 3, seeds: int = 7, **more: object) -> Path:
    file = folder / "sweep.yaml"
    names = ["none", "native", "native_bf16", "bf16"][:backends]
    content = {
        "program": "run_experiment.py",
        "command": ["${env}", "${interpreter}", "-m", "ampcompare", "run", "${args_no_hyphens}"],
        "method": "grid",
        "name": "many",
        "parameters": {"backend": {"values": names}, "seed": {"values": [*range(1, 1 + seeds)]}},
        **more,
    }
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    return file


def sweep_of(tmp_path: Path, per_process: int, *overrides: str, **more: object) -> Sweep:
    file = write_sweep(tmp_path, **more)
    return prepare(str(file), overrides, SweepOptions(seeds_per_process=per_process)).sweep


@pytest.mark.parametrize("per_process", [3, 20])
def test_a_block_has_several_seeds_and_each_backend_trains_them_in_a_row(per_process: int, tmp_path: Path):
    points = sweep_of(tmp_path, per_process).points
    assert len(points) == 21
    rows = [(p.parameters["backend"], p.parameters["seed"], p.block, p.series) for p in points]
    # Each run is there once, and a series is one backend at neighbouring seeds.
    assert len({row[:2] for row in rows}) == 21
    orders = {}
    for _, own in groupby(rows, key=lambda row: row[3]):
        own = [*own]
        (backend,), (block,) = {row[0] for row in own}, {row[2] for row in own}
        seeds = [row[1] for row in own]
        first = 1 + block * per_process
        assert seeds == [*range(first, min(first + per_process, 8))]
        orders.setdefault(block, []).append(backend)
    assert all(sorted(order) == ["native", "native_bf16", "none"] for order in orders.values())


@pytest.mark.parametrize("exit_code", [1, -9])
def test_behind_a_run_that_does_not_finish_the_others_get_a_new_process(
    exit_code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)

    def ending(run: SweepRun) -> RunEnd:
        return RunEnd(exit_code if run.index == 1 and not run.starts else 0)

    executor = ScriptedExecutor(ending)
    sweep = read_sweep(str(write_sweep(tmp_path, backends=1, seeds=4)), ())
    runs = drive(tmp_path / "out", sweep, executor, options=SweepOptions(seeds_per_process=4))
    is_over = exit_code == 1  # a run that a signal ended goes on, before the others
    assert executor.groups == [(0, 1, 2, 3), (2, 3) if is_over else (1, 2, 3)]
    assert runs[1].state is (RunState.FAILED if is_over else RunState.FINISHED)
    assert [run.starts for run in runs] == [1, 1 if is_over else 2, 1, 1]


def test_a_job_has_the_runs_that_have_not_ended_and_did_not_go_on_elsewhere(tmp_path: Path):
    with contextlib.closing(Journal(tmp_path, "s", {})) as journal:
        runs = [journal.propose(SweepRun(index)) for index in range(5)]
        journal.append("submission", mark="m", indices=[[0, 1, 2, 3, 4]])
        (job,) = journal.state.submissions["m"]

        def left() -> list[int]:
            found = dict(runs_in_jobs({"7": job}, journal.state, tmp_path))
            return [run.index for run in found.get("7", [])]

        def note_end(index: int, end: RunEnd) -> None:
            write_end(end_file(tmp_path, runs[index].run_id, 1), end.facts())

        def write(event: str, index: int, **fields: object) -> None:
            journal.append(event, index=index, run_id=runs[index].run_id, **fields)

        assert left() == [0, 1, 2, 3, 4]
        note_end(0, RunEnd(0))
        assert left() == [1, 2, 3, 4]
        note_end(1, RunEnd(140, 1.0, SCHEDULER))  # preempted: it goes on when the job is queued again
        assert left() == [1, 2, 3, 4]
        note_end(1, RunEnd(-9))
        assert left() == [2, 3, 4]
        write("started", 1, process={"job": "7"})
        write("ended", 1, state="preempted", value=None, exit_code=-9, by_signal=True)
        assert left() == [2, 3, 4]  # its next start is not in this job
        journal.propose(journal.state.runs[3])  # a new run of the point, under another id
        assert left() == [2, 4]
        note_end(2, RunEnd(3))
        note_end(4, RunEnd(0))
        assert left() == []


def test_the_slot_of_a_process_is_taken_also_between_two_of_its_runs(tmp_path: Path):
    sweep = sweep_of(tmp_path, 3, backends=2, seeds=5)
    state = SweepState("many", {}, {})

    def note(event: str, index: int = 0, **fields: object) -> None:
        state.apply({"event": event, "index": index, "time": "2026-01-01T00:00:00+00:00", **fields})

    for index in range(3):
        parameters = sweep.points[index].parameters
        note("proposed", index, run_id=f"r{index}", parameters=parameters, plan={}, drawn={})
    note("started", process={})
    note("ended", state="finished", value=None, exit_code=0, by_signal=False)
    for slots, groups in ((1, []), (2, [(3, 4, 5)])):
        step = next_step(Situation(state, sweep, slots, assigned=((1, 2),)))
        assert ([*step.groups] if isinstance(step, Train) else []) == groups


@pytest.mark.parametrize(
    ("options", "more", "why"),
    [
        ({}, {"method": "random"}, "method random chooses new values"),
        ({"cluster": "slurm"}, {"method": "random", "run_cap": 3}, "list the values to compare"),
        ({}, {"seeds": 1}, "has one seed"),
        ({}, {"command": ["python", "-c", "pass", "${args}"]}, "no training of ampcompare"),
    ],
)
def test_what_cannot_share_a_process_is_refused_in_one_line(options, more, why, tmp_path: Path):
    file = write_sweep(tmp_path, **more)
    with pytest.raises(UserError, match=f"--seeds-per-process 4: .*{why}"):
        prepare(str(file), (), SweepOptions(seeds_per_process=4, **options))
