"""When a checkpoint of a run is written, and what it says of the run. `TrainingLoop` has the state itself."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ampcompare.config.schema import Config
from ampcompare.errors import reason
from ampcompare.identity.run_identity import RunIdentity
from ampcompare.tracking.tracker import Tracker
from ampcompare.training.checkpoint.store import CheckpointStore, saved_identity

log = logging.getLogger(__name__)


@dataclass
class CheckpointManager:
    """Saves the state of a run when it is due. If a save fails, a warning says so and the training goes on.

    With several processes the first one writes.

    Attributes:
        tracker: Records the run; its state is part of the checkpoint.
        store: The folder of the checkpoints.
        config: It says when a checkpoint is due.
        identity: What a later run must have in common to resume this one.
        machine: What the environment says of the machine, for a run that continues on another one.
        is_main_process: Whether this process writes.
        saved_step: The step of the last checkpoint that was written.
        saved_at: The time of the last attempt, in seconds of the monotonic clock.
    """

    tracker: Tracker
    store: CheckpointStore
    config: Config
    identity: RunIdentity
    machine: Mapping[str, Any]
    is_main_process: bool = True
    saved_step: int | None = None
    saved_at: float = field(default_factory=time.monotonic)

    @property
    def by_clock(self) -> bool:
        """Return whether checkpoints are due by the clock."""
        return self.config.checkpoint.every_minutes is not None

    def is_due(self, epochs: int | None = None) -> bool:
        """Return whether a checkpoint is due.

        Args:
            epochs: The epochs that are complete, at the end of an epoch; None within an epoch, where the
                clock decides.
        """
        if epochs is not None:
            every = self.config.checkpoint.every_epochs
            return every is not None and epochs % every == 0
        minutes = self.config.checkpoint.every_minutes
        return minutes is not None and time.monotonic() - self.saved_at >= minutes * 60

    def save(
        self, state: Mapping[str, Any], step: int, *, best: bool = False, anomaly: int | None = None
    ) -> None:
        """Save the state of the run after a step (`TrainingLoop.checkpoint`).

        Args:
            state: The state, gathered from all processes.
            step: The step that it follows.
            best: Whether the last evaluation is the best so far.
            anomaly: The first step with an anomaly, before which a checkpoint is kept; None: there is none.
        """
        self.saved_at = time.monotonic()
        if not self.is_main_process:
            return
        self.tracker.flush()  # what is saved has been logged
        run = {
            "step": step,
            "run_id": self.tracker.run_id,
            "record": self.tracker.state_dict(),
            "config": self.config.to_dict(),
            "machine": self.machine,
        }
        try:
            if not self.store.lock():
                raise OSError(0, f"{self.store.folder} is in use by another process")
            self.store.save({**state, **run}, saved_identity(self.identity), best=best, anomaly=anomaly)
            self.saved_step = step
        except OSError as problem:
            log.warning(
                f"the checkpoint at step {step} could not be written to {self.store.folder} "
                f"({reason(problem)}); the training continues without it"
            )
