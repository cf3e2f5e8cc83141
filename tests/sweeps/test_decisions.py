"""The driver of a sweep decides which run comes next, and what becomes of one that was interrupted."""

from dataclasses import replace

import pytest
from support.fakes import plan
from support.scripted_executor import ScriptedExecutor, drive, finishes
from support.sweep_project import make_grid
from support.wandb_files import write_runs

from ampcompare.runs.run_state import RunState
from ampcompare.sweeps.decisions import Band, reached_bands
from ampcompare.sweeps.journal import SweepRun, SweepState
from ampcompare.sweeps.run_end import RunEnd
from ampcompare.sweeps.samplers import falls_behind
from ampcompare.sweeps.sweep import Hyperband, Objective, orders


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """Return a function that makes a grid of another program."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p").touch()
    return make_grid


def test_every_point_is_run_once_in_the_order_of_the_blocks(tmp_path, sweep):
    executor = ScriptedExecutor(slots=2)
    runs = drive(tmp_path / "out", sweep(5), executor)
    assert [run.parameters["x"] for run in executor.submitted] == [*next(orders("s", 5))]
    assert {run.state for run in runs} == {RunState.FINISHED}
    again = ScriptedExecutor()
    assert drive(tmp_path / "out", sweep(5), again) == runs
    assert again.submitted == []


@pytest.mark.parametrize(("process", "has_time"), [({"gpu": 1}, True), ({"job": "7"}, False)])
def test_the_first_finished_run_is_described_once_with_the_time_of_its_process(
    tmp_path, sweep, process, has_time
):
    """A run of Slurm or Ray has waited in a queue, so the time since its submission is not its own."""
    described = []

    def describe(prepared, folder, run, process_seconds):
        described.append((run.index, process_seconds))
        return []

    def ending(run: SweepRun) -> RunEnd:
        return RunEnd(3) if len(executor.submitted) == 1 else finishes(run)

    executor = ScriptedExecutor(ending, **process)
    drive(tmp_path / "out", sweep(4), executor, describe_first_run=describe)
    ((index, seconds),) = described
    assert index == executor.submitted[1].index  # the first one failed
    assert (seconds is not None) is has_time
    assert seconds is None or seconds >= 0


def test_a_run_that_signals_end_is_started_three_times_under_its_id_and_has_failed_then(tmp_path, sweep):
    def ending(run: SweepRun) -> RunEnd:
        return RunEnd(-9) if run.index == 0 else finishes(run)

    executor = ScriptedExecutor(ending)
    first, second = drive(tmp_path / "out", sweep(2), executor)
    assert (first.state, first.starts, first.signal_ends) == (RunState.FAILED, 3, 3)
    assert (second.state, second.starts) == (RunState.FINISHED, 1)
    assert len({run.run_id for run in executor.submitted}) == 2


def test_a_search_ends_at_its_target(tmp_path, sweep):
    """The value comes from the record of the run."""
    folder, values = tmp_path / "out", iter([3.0, 2.0, 1.0, 0.5])

    def ending(run: SweepRun) -> RunEnd:
        write_runs(folder, [plan("none", id=run.run_id) | {"rows": [{"score": next(values)}]}])
        return finishes(run)

    search = sweep(5, method="random", metric=Objective(name="score", goal="minimize", target=1.5))
    runs = drive(folder, search, ScriptedExecutor(ending))
    assert [run.value for run in runs] == [3.0, 2.0, 1.0]


@pytest.mark.parametrize(
    ("value", "others", "maximize", "expected"),
    [
        (0.5, [], True, False),
        (0.5, [0.6], True, True),
        (0.5, [0.6, 0.4, 0.3, 0.2, 0.1], True, False),  # the second of six
        (0.5, [0.6, 0.7, 0.3, 0.2, 0.1], True, True),
        (0.5, [0.4, 0.7, 0.8, 0.9, 1.0], False, False),
        (float("inf"), [0.4], False, True),
    ],
)
def test_the_best_third_of_a_band_goes_on(value, others, maximize, expected):
    assert falls_behind(value, [*others, value], 3, maximize=maximize) is expected


@pytest.fixture
def race():
    """Return a race and its state; the run 0 was at 0.9 at the band 2."""
    race = make_grid(
        2,
        metric=Objective(name="score", goal="maximize"),
        hyperband=Hyperband(type="hyperband", min_iter=2, eta=2),
    )
    state, time = SweepState("s", {}, {}), "2026-01-01T00:00:00+00:00"
    for index in (0, 1):
        run = {"index": index, "run_id": f"r{index}", "time": time}
        state.apply({"event": "proposed", **run, "parameters": {}, "plan": {}, "drawn": {}})
        state.apply({"event": "started", **run, "process": {}})
    state.apply({"event": "band", "index": 0, "band": 2, "value": 0.9, "stopped": False})
    return state, race


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((0.1,), []),
        ((0.1, 0.2), [Band(2, 0.2, True)]),
        ((0.95, 0.2, float("nan"), 0.3, 0.99), [Band(2, 0.95, False), Band(4, 0.95, False)]),
    ],
)
def test_a_run_is_compared_at_each_band_that_it_reaches(race, values, expected):
    """It may reach several between two looks at its record."""
    state, sweep = race
    assert [*reached_bands(state, sweep, state.runs[1], values)] == expected


def test_a_loss_is_compared_by_its_lowest_value(race):
    state, sweep = race
    sweep = replace(sweep, metric=Objective(name="loss", goal="minimize"))
    assert [*reached_bands(state, sweep, state.runs[1], (0.5, 0.95))] == [Band(2, 0.5, False)]
