"""How runs end, and which of their values count."""

import itertools
import math

import pytest
from support.fakes import make

from ampcompare import analyse_runs, metrics
from ampcompare.analysis.grouping.outcome import determine_outcome
from ampcompare.runs.run_state import RunState

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


def test_exit_code_and_state_decide_the_outcome(subtests: pytest.Subtests):
    for code, state, ended_as, outcome in [
        (0, "finished", "", RunState.FINISHED),
        (1, "failed", "", RunState.FAILED),
        (2, "failed", "", RunState.FAILED),  # it has trained
        (137, "failed", "", RunState.FAILED),  # SIGKILL
        (139, "failed", "", RunState.FAILED),  # a segmentation fault
        (255, "failed", "", RunState.STOPPED),  # what W&B's client writes after Ctrl-C, and ours after a stop
        (130, "failed", "", RunState.STOPPED),
        (143, "failed", "", RunState.STOPPED),
        (129, "failed", "", RunState.STOPPED),
        (138, "failed", "", RunState.STOPPED),
        (140, "failed", "", RunState.STOPPED),
        (254, "failed", "", RunState.FAILED),
        (138, "preempted", "", RunState.PREEMPTED),  # marked by mark_preempting()
        (1, "preempted", "", RunState.PREEMPTED),
        (None, "failed", "crashed", RunState.FAILED),
        (None, "failed", "", RunState.FAILED),
        (None, "stopped", "killed", RunState.STOPPED),
        (None, "preempted", "", RunState.PREEMPTED),
        (None, "running", "", RunState.RUNNING),
        (None, "running", "preempting", RunState.RUNNING),
        (None, "queued", "pending", RunState.QUEUED),
        (None, "finished", "", RunState.FINISHED),  # the server tells no exit code
        (None, "no such state", "", RunState.FAILED),
    ]:
        with subtests.test(code=code, state=state, ended_as=ended_as, outcome=outcome):
            state_found, why = determine_outcome(ended(code, state, ended_as=ended_as))
            assert state_found is outcome
            assert bool(why) is (
                outcome in (RunState.FAILED, RunState.STOPPED, RunState.PREEMPTED)
                or ended_as in ("preempting", "pending")
            )


def test_the_reason_names_the_signal_behind_an_exit_code():
    reasons = {
        code: determine_outcome(ended(code, "failed"))[1] for code in (1, 128, 129, 139, 143, 254, 255)
    }
    named = {code: why.partition(", signal ")[2] for code, why in reasons.items()}
    assert named == {1: "", 128: "", 129: "1", 139: "11", 143: "15", 254: "126", 255: ""}


def test_a_nonfinite_last_value_is_a_failure_whatever_the_exit_code(subtests: pytest.Subtests):
    for key, value, code in itertools.product(
        (metrics.LOSS, metrics.EVAL_ACCURACY, metrics.EVAL_LOSS), ("NaN", math.inf), (0, 255)
    ):
        with subtests.test(key=key, value=value, code=code):
            outcome, why = determine_outcome(ended(code, edit=last(key, value)))
            assert outcome is RunState.FAILED
            assert ("NaN" if value == "NaN" else "infinite") in why
    run = ended()
    run.summary[metrics.EVAL_ACCURACY] = math.nan
    assert determine_outcome(run)[0] is RunState.FAILED


def test_a_nan_is_no_failure_in_between_or_while_the_run_is_running():
    def spoil(made):
        made["rows"][2][metrics.LOSS] = "NaN"

    assert determine_outcome(ended(edit=spoil))[0] is RunState.FINISHED
    assert determine_outcome(ended(None, "running", edit=last(metrics.LOSS, "NaN")))[0] is RunState.RUNNING


def test_bad_input_before_the_first_step_is_no_outcome():
    run = ended(2, "failed", edit=nothing_logged)
    assert determine_outcome(run)[0] is None
    run.exit_code = 1  # out of memory at the first step
    assert determine_outcome(run)[0] is RunState.FAILED
    run = ended(None, "failed", edit=nothing_logged)  # the server keeps no exit code
    run.summary[metrics.REFUSED] = "execution='cuda_graph': no CUDA graphs here"
    assert determine_outcome(run) == (None, "execution='cuda_graph': no CUDA graphs here")


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


def test_runs_that_all_failed_have_no_accuracy():
    group = grouped(fp16(1, 1))
    assert group.is_unfinished
    assert "quality" not in group.estimates
    assert group.estimates["images_per_second"].n == 2  # as far as they came, and said so


def test_runs_that_did_not_finish_give_caveats():
    runs = fp16(0, 1, 2, 255)
    runs[2] = make("fp16", 2, **SHORT, state="failed", edit=nothing_logged)
    runs[2].exit_code = 2
    base = make("none", 1, **SHORT, state="running")
    analysis = analyse_runs([base, *runs]).caveats
    assert "Failed: 1 of 4 runs of fp16 (seed 1: exit code 1)." in analysis
    assert "No run of fp32 (none) finished: the values shown are from unfinished runs." in analysis
    assert "Refused before the first step: 1 of 4 runs of fp16 (seed 2: exit code 2)." in analysis
    (stopped,) = (remark for remark in analysis if "better" in remark)
    assert stopped.startswith("Stopped: 1 of 4 runs of fp16 (seed 3: stopped by Ctrl-C")


@pytest.mark.parametrize("rows", [0, 1])
def test_a_recorded_loop_without_a_step_is_not_counted(rows: int):
    """Whether it was evaluated or not."""

    def edit(made):
        made["config"] |= {"recorder": {"version": 1}, "seed": 2}
        made["rows"] = [row for row in made["rows"] if "eval/accuracy" in row][-rows:] if rows else []
        made["summary"] = {k: v for k, v in made["summary"].items() if k == "environment"}

    whole = make("native", 1, config={"recorder": {"version": 1}})
    analysis = analyse_runs([make("none"), whole, make("native", 2, edit=edit)])
    (group,) = [group for group in analysis.groups if group.value == "native"]
    assert group.records == (whole,)
    assert any("Refused before the first step: 1 of 2 runs of native" in line for line in analysis.caveats)
