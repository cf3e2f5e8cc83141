"""What a checkpoint of a run holds, and when it is written.

Exact: on a CPU, and on a GPU with `deterministic=true`, a run that was killed and resumed has the weights,
losses and loss scales of a run that was not.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ampcompare.config.schema import Config
from ampcompare.errors import UserError, reason
from ampcompare.machine.device import random_states, set_random_states
from ampcompare.tracking.tracker import Tracker
from ampcompare.train.checkpoint.store import Store

if TYPE_CHECKING:
    from ampcompare.train.loop import TrainingLoop

log = logging.getLogger(__name__)

PARTS = ("model", "optimizer", "scheduler", "precision")  # precision after the model: fp32 masters are finer


def capture(loop: TrainingLoop) -> dict[str, Any]:
    """Return all that a run needs to continue: plain values and tensors, and the random states of processes.

    Call it in all processes at one step. Writing the result out waits for the device.
    """
    parts = {name: getattr(loop.trainer, name).state_dict() for name in PARTS}
    return {"fit": loop.state_dict(), **parts, "random": loop.world.gather(random_states(loop.device))}


def restore(loop: TrainingLoop, state: Mapping[str, Any]) -> None:
    """Put a new loop where the loop of a checkpoint was.

    Raises:
        UserError: The checkpoint is of another program.
    """
    try:
        for name in PARTS:
            getattr(loop.trainer, name).load_state_dict(state[name])
        loop.load_state_dict(state["fit"])
        set_random_states(loop.device, state["random"][loop.world.rank])
    except Exception as problem:  # whatever a file that passes every check may still lack
        what = f"the checkpoint of run {state.get('run_id')} does not fit this program ({reason(problem)})"
        raise UserError(f"resume: {what}; start anew with resume=never") from None


@dataclass
class CheckpointManager:
    """Saves the state of a run when it is due. If a save fails, a warning says so and the training goes on.

    With several processes all gather the state, at one step, and the first one writes it.

    Attributes:
        tracker: Records the run; its state is part of the checkpoint.
        store: The folder of the checkpoints.
        config: The options of the run.
        identity: What a later run must have in common to resume this one (`store.identify`).
        machine: What the environment says of the machine, for a run that continues on another one.
        saved_step: The step of the last checkpoint that was written.
        saved_at: The time of the last attempt, in seconds of the monotonic clock.
    """

    tracker: Tracker
    store: Store
    config: Config
    identity: Mapping[str, Any]
    machine: Mapping[str, Any]
    saved_step: int | None = None
    saved_at: float = field(default_factory=time.monotonic)

    @property
    def by_clock(self) -> bool:
        """Return whether checkpoints are due by the clock."""
        return self.config.checkpoint.every_minutes is not None

    def is_due(self, epochs: int | None = None) -> bool:
        """Return whether a checkpoint is due after so many epochs, or now by the clock."""
        every, minutes = self.config.checkpoint.every_epochs, self.config.checkpoint.every_minutes
        if epochs is not None:
            return every is not None and epochs % every == 0
        return minutes is not None and time.monotonic() - self.saved_at >= minutes * 60

    def save(self, loop: TrainingLoop, *, best: bool = False) -> None:
        """Save the state of `loop`; `best` after the best evaluation so far."""
        self.saved_at = time.monotonic()
        gathered = capture(loop)
        if not loop.world.leads:
            return
        self.tracker.flush()  # what is saved has been logged
        state = gathered | {
            "step": loop.step,
            "run_id": self.tracker.run_id,
            "record": self.tracker.state_dict(),
            "config": self.config.to_dict(),
            "machine": self.machine,
        }
        try:
            if not self.store.lock():
                raise OSError(0, f"{self.store.folder} is in use by another process")
            self.store.save(state, self.identity, best=best)
            self.saved_step = loop.step
        except OSError as problem:
            where = f"could not be written to {self.store.folder} ({reason(problem)})"
            log.warning(f"the checkpoint at step {loop.step} {where}: going on without it")
