"""The states of a run: one vocabulary for sweeps, records and the report."""

from enum import StrEnum


class RunState(StrEnum):
    """What is known of a run.

    Attributes:
        QUEUED: Not started yet.
        RUNNING: Started, and not known to have ended.
        FINISHED: Ended by itself with exit code 0.
        STOPPED: Ended before its end because somebody asked for it and does not want it continued: early
            termination of a sweep, or the stop button of W&B's page.
        FAILED: Ended by an error, or without a trace.
        PREEMPTED: Interrupted (its machine was taken away, its sweep was stopped) and to be continued.
    """

    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    PREEMPTED = "preempted"

    @property
    def is_final(self) -> bool:
        """Whether nothing more happens to the run unless somebody asks for a new one."""
        return self in (RunState.FINISHED, RunState.STOPPED, RunState.FAILED)
