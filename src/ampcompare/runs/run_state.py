"""The states of a run: one vocabulary for sweeps, records and the report."""

from enum import StrEnum


class RunState(StrEnum):
    """The state of a run.

    Attributes:
        QUEUED: Not started yet.
        RUNNING: Started, and not known to have ended.
        FINISHED: Ended by itself with exit code 0.
        STOPPED: Ended early on request and not to be continued: early termination of a sweep, or the stop
            button of W&B's page.
        FAILED: Ended by an error, or without a trace.
        PREEMPTED: Interrupted and to be continued: the machine was preempted, or the sweep was stopped.
    """

    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    PREEMPTED = "preempted"

    @property
    def is_final(self) -> bool:
        """Return whether nothing more happens to the run unless a new attempt is requested."""
        return self in (RunState.FINISHED, RunState.STOPPED, RunState.FAILED)
