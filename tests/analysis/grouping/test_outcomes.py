"""How runs end, and which of their values count."""

import math

import pytest
from support.fakes import make

from ampcompare import analyse_runs, metrics

SHORT = {"steps": 50, "epochs": 5}


def ended(code: int | None = 0, state: str = "finished", *, ended_as: str = "", **options):
    """Return a run with this exit code and state."""
    run = make("fp16", **(SHORT | options), state=state)
    run.exit_code, run.ended_as = code, ended_as
    return run


def last(key: str, value: object):
    """Return an edit that changes the last value of a key."""

    def edit(made):
        row = next(row for row in reversed(made["rows"]) if key in row)
        row[key] = value

    return edit


def nothing_logged(made):
    """Remove all rows of a run."""
    made["rows"] = []


def outcome_of(run, **options):
    """Return how a run ended, and why, as the table of runs has it."""
    row = analyse_runs([run], **options).table.iloc[0]
    return row["outcome"], row["why"]


def test_exit_code_and_state_decide_the_outcome(subtests: pytest.Subtests):
    for code, state, ended_as, outcome, why in [
        (0, "finished", "", "finished", ""),
        (1, "failed", "", "failed", "exit code 1"),
        (2, "failed", "", "failed", "exit code 2"),  # it has trained
        (139, "failed", "", "failed", "exit code 139, signal 11"),  # a segmentation fault
        (
            255,
            "failed",
            "",
            "stopped",
            "Ctrl-C",
        ),  # W&B's client after Ctrl-C, and ours after a stop
        *((128 + signal, "failed", "", "stopped", f"signal {signal}") for signal in (1, 2, 10, 12, 15)),
        (138, "preempted", "", "preempted", "machine"),  # marked by mark_preempting()
        (None, "failed", "crashed", "failed", "without an exit code"),
        (None, "stopped", "killed", "stopped", "Ctrl-C"),
        (None, "preempted", "", "preempted", "machine"),
        (None, "running", "", "running", ""),
        (None, "running", "preempting", "running", "machine"),
        (None, "queued", "pending", "queued", "not started"),
        (None, "finished", "", "finished", ""),  # the server tells no exit code
    ]:
        with subtests.test(code=code, state=state, ended_as=ended_as):
            found, reason = outcome_of(ended(code, state, ended_as=ended_as))
            assert found == outcome
            assert why in reason
            assert bool(why) == bool(reason)


def test_a_nonfinite_last_value_is_a_failure_whatever_the_exit_code(subtests: pytest.Subtests):
    for key, value, code in (
        (metrics.LOSS, "NaN", 0),
        (metrics.EVAL_ACCURACY, math.inf, 255),
        (metrics.EVAL_LOSS, "NaN", 255),
    ):
        with subtests.test(key=key, value=value, code=code):
            outcome, why = outcome_of(ended(code, edit=last(key, value)))
            assert outcome == "failed"
            assert ("NaN" if value == "NaN" else "infinite") in why
    run = ended()
    run.summary[metrics.EVAL_ACCURACY] = math.nan
    assert outcome_of(run)[0] == "failed"


def test_a_nan_is_no_failure_in_between_or_while_the_run_is_running():
    def spoil(made):
        made["rows"][2][metrics.LOSS] = "NaN"

    assert outcome_of(ended(edit=spoil))[0] == "finished"
    assert outcome_of(ended(None, "running", edit=last(metrics.LOSS, "NaN")))[0] == "running"


def test_bad_input_before_the_first_step_is_refused():
    run = ended(2, "failed", edit=nothing_logged)
    assert outcome_of(run)[0] == "refused"
    run.exit_code = 1  # out of memory at the first step
    assert outcome_of(run)[0] == "failed"
    run = ended(None, "failed", edit=nothing_logged)  # the server keeps no exit code
    run.summary[metrics.REFUSED] = "no CUDA graphs here"
    assert outcome_of(run) == ("refused", "no CUDA graphs here")


def fp16(*codes: int):
    """Return one run of fp16 for each exit code."""
    runs = []
    for seed, code in enumerate(codes):
        run = make("fp16", seed, **SHORT, state="finished" if code == 0 else "failed")
        run.exit_code = code
        runs.append(run)
    return runs


def grouped(runs):
    """Return the only group of these runs."""
    (group,) = analyse_runs(runs).groups
    return group


def test_failures_are_counted_with_their_exact_interval():
    outcomes = grouped(fp16(0, 1, 1, 0, 1, 255)).outcomes
    assert outcomes.text == "2 of 6 runs, 3 failed, 1 stopped"
    share = outcomes.failures
    assert (share.k, share.n, share.low, share.high) == pytest.approx((3, 5, 0.1466, 0.9473), abs=1e-4)


def test_a_refused_run_joins_the_group_of_its_requested_options():
    whole = [make("fp16", seed, **SHORT, config={"batch_size": 64}) for seed in (1, 2)]
    refused = make("fp16", 3, **SHORT, state="failed", edit=nothing_logged)
    refused.exit_code, refused.summary, refused.config = 2, {}, {"backend": "fp16", "seed": 3}
    assert grouped([*whole, refused]).outcomes.text == "2 of 3 runs, 1 refused"
    refused.config |= {"batch_size": 32}
    assert len(analyse_runs([*whole, refused]).groups) == 2


def test_the_values_of_a_group_are_those_of_finished_runs_and_else_say_that_none_finished():
    runs = fp16(0, 1, 0)
    runs[1].summary[metrics.THROUGHPUT_MEDIAN] = 1.0
    group, finished = grouped(runs), grouped([runs[0], runs[2]])
    assert (group.n, group.outcomes.failed, finished.outcomes.failed) == (2, 1, 0)
    for column in ("images_per_second", "quality"):
        assert group.estimates[column].value == finished.estimates[column].value
    group = grouped(fp16(1, 1))
    assert group.is_unfinished
    assert "quality" not in group.estimates
    assert group.estimates["images_per_second"].n == 2  # as far as they came, and said so


def test_runs_that_did_not_finish_give_caveats():
    caveats = analyse_runs([make("none", 1, **SHORT, state="running"), *fp16(0, 1, 255)]).caveats
    for words in ("Failed: ", "Stopped: "):
        (caveat,) = (line for line in caveats if line.startswith(words))
        assert "1 of 3 runs of fp16" in caveat
    assert any("No run of fp32 (none) finished" in line for line in caveats)


def test_a_recorded_loop_without_a_step_is_not_counted():
    """Although it was evaluated."""

    def edit(made):
        made["config"] |= {"recorder": {"version": 1}, "seed": 2}
        made["rows"] = [row for row in made["rows"] if "eval/accuracy" in row][-1:]
        made["summary"] = {k: v for k, v in made["summary"].items() if k == "environment"}

    whole = make("native", 1, config={"recorder": {"version": 1}})
    analysis = analyse_runs([make("none"), whole, make("native", 2, edit=edit)])
    (group,) = [group for group in analysis.groups if group.value == "native"]
    assert group.records == (whole,)
    assert any("Refused before the first step: 1 of 2 runs of native" in line for line in analysis.caveats)
