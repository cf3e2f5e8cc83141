"""Determine how a run ended: finished, failed, stopped, still running, or refused before it began."""

import math

from ampcompare import metrics
from ampcompare.errors import EXIT_BAD_INPUT
from ampcompare.runs import RunRecord
from ampcompare.runs.nested import lookup
from ampcompare.runs.run_state import RunState

# Exit codes of a run that was asked to stop. W&B's client writes 255 for Ctrl-C; our trainings exit with
# 255, too. Shells and recorded loops use 128 + the signal (Linux: SIGHUP, INT, USR1, USR2, TERM).
STOP_CODES = (255, 129, 130, 138, 140, 143)
ASKED = "stopped by Ctrl-C, SIGTERM, W&B's page or a sweep's early termination"
# States of W&B's server, in its own words.
GOING_ON = {
    "running": (RunState.RUNNING, ""),
    "preempting": (RunState.RUNNING, "the machine is about to be taken away"),
    "pending": (RunState.QUEUED, "not started yet"),
    "queued": (RunState.QUEUED, "not started yet"),
}
ENDED_BY_STATE = {
    "finished": (RunState.FINISHED, ""),
    "failed": (RunState.FAILED, "ended with an error"),
    "killed": (RunState.STOPPED, ASKED),
    "stopped": (RunState.STOPPED, ASKED),
    "preempted": (RunState.PREEMPTED, "the machine was taken away"),
}
NO_EXIT = "the record ends without an exit code: the process was killed or the machine was lost"
NO_STEP = "ended without a training step"
SIGNALS = 128


def determine_outcome(run: RunRecord, metric: str = metrics.EVAL_ACCURACY) -> tuple[RunState | None, str]:
    """Return how a run ended, and the reason unless it finished or is running.

    A run that ended with a loss or metric of NaN or infinity failed, whatever its exit code. A non-finite
    value in between does not count. A record that ends without an exit code failed, too: a lost machine looks
    the same as a training that crashed its process, and leaving such runs out would hide the crashes. A run
    that trained nothing has no outcome: exit code 2 before the first step, values that W&B's sweep recorded
    as refused, or a loop under the recorder without a step.

    Args:
        metric: Key of the compared metric.

    Returns:
        The state, None for a run that was refused before its first step; and the reason.
    """
    word = (run.ended_as or run.state or "").lower()
    if word in GOING_ON and run.exit_code is None:
        return GOING_ON[word]
    refusal = _refusal(run)
    if refusal:
        return None, refusal
    # Each step of a loop under the recorder logs a loss scale.
    scale = run.summary_number(metrics.SCALE)
    is_whole = run.exit_code == 0 or word == "finished"
    if is_whole and run.is_recorded and scale is None and not len(run.values(metrics.SCALE)):
        return None, NO_STEP
    nonfinite = _last_not_finite(run, metric)
    if nonfinite:
        return RunState.FAILED, nonfinite
    if run.exit_code is None:
        return ENDED_BY_STATE.get(word, (RunState.FAILED, NO_EXIT))
    return _outcome_by_code(run.exit_code, word)


def _outcome_by_code(code: int, word: str) -> tuple[RunState, str]:
    """Return how a run ended, by its exit code and the word of W&B's server."""
    if code == 0:
        return RunState.FINISHED, ""
    if word == "preempted":
        return ENDED_BY_STATE[word]
    signal_text = f", signal {code - SIGNALS}" if SIGNALS < code < 2 * SIGNALS - 1 else ""
    if code in STOP_CODES:
        return RunState.STOPPED, f"{ASKED}{signal_text}"
    return RunState.FAILED, f"exit code {code}{signal_text}"


def _refusal(run: RunRecord) -> str:
    """Return why a run was refused before its first step, "" if it was not."""
    recorded = lookup(run.summary, metrics.REFUSED)
    if not recorded and run.exit_code != EXIT_BAD_INPUT:
        return ""
    # Rows of training. For a program that logs other names, any row counts.
    trained_rows = len(run.logged[metrics.LOSS][0]) if metrics.LOSS in run.logged else run.rows
    if trained_rows:
        return ""
    if isinstance(recorded, str) and recorded:
        return recorded
    return run.notes or f"exit code {EXIT_BAD_INPUT}"


def _last_not_finite(run: RunRecord, metric: str) -> str:
    """Return which last value is NaN or infinite, in words; "" if none is."""
    for key in dict.fromkeys((metrics.LOSS, metric, metrics.EVAL_LOSS)):
        _, values = run.logged_numbers(key)
        for value in (*values[-1:], run.summary_number(key)):
            if value is None or math.isfinite(value):
                continue
            declared = metrics.find(key)
            name = declared.label if declared else key
            return f"the last {name} is {'NaN' if math.isnan(value) else 'infinite'}"
    return ""
