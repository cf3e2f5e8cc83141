"""What a checkpoint of a run holds, and when it is written.

Exact: on a CPU, and on a GPU with `deterministic=true`, a run that was killed and resumed has the weights,
losses and loss scales of one that was not.
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
from ampcompare.train.checkpoint.store import Store

if TYPE_CHECKING:
    from ampcompare.tracking.tracker import Tracker
    from ampcompare.train.loop import Fit

log = logging.getLogger(__name__)

PARTS = ("model", "optimizer", "scheduler", "precision")  # precision after the model: fp32 masters are finer


def capture(fit: Fit) -> dict[str, Any]:
    """All that a run needs to go on: plain values, tensors; of each process its own random numbers. Called in
    all of them at one step. Waits for the device when it is written out.
    """
    parts = {name: getattr(fit.trainer, name).state_dict() for name in PARTS}
    return {"fit": fit.state_dict(), **parts, "random": fit.world.gather(random_states(fit.device))}


def restore(fit: Fit, state: Mapping[str, Any]) -> None:
    """Put a fresh fit where another one was. Raises UserError for a state of something else."""
    try:
        for name in PARTS:
            getattr(fit.trainer, name).load_state_dict(state[name])
        fit.load_state_dict(state["fit"])
        set_random_states(fit.device, state["random"][fit.world.rank])
    except Exception as problem:  # what a file that passes every check may still lack
        what = f"the checkpoint of run {state.get('run_id')} does not fit this program ({reason(problem)})"
        raise UserError(f"resume: {what}; start anew with resume=never") from None


@dataclass
class RunKeeper:
    """Saves a run's state when it is due. A save that fails is said, and the training goes on.

    Of several processes all gather the state, at one step, and the first one writes it.
    """

    tracker: Tracker
    store: Store
    config: Config
    identity: Mapping[str, Any]  # `identify`
    machine: Mapping[str, Any]  # what the environment says of it, for what goes on elsewhere
    saved_step: int | None = None
    saved_at: float = field(default_factory=time.monotonic)

    def is_due(self, epochs: int | None = None) -> bool:
        """Whether it is time to: after so many epochs, or by the clock."""
        every, minutes = self.config.checkpoint.every_epochs, self.config.checkpoint.every_minutes
        if epochs is not None:
            return every is not None and epochs % every == 0
        return minutes is not None and time.monotonic() - self.saved_at >= minutes * 60

    def save(self, fit: Fit, *, best: bool = False) -> None:
        """Save that of `fit`, `best` after the best evaluation so far."""
        self.saved_at = time.monotonic()
        gathered = capture(fit)
        if not fit.world.leads:
            return
        self.tracker.flush()  # what is saved has been logged
        state = gathered | {
            "step": fit.step,
            "run_id": self.tracker.run_id,
            "record": self.tracker.state_dict(),
            "config": self.config.to_dict(),
            "machine": self.machine,
        }
        try:
            if not self.store.lock():
                raise OSError(0, f"{self.store.folder} is in use by another process")
            self.store.save(state, self.identity, best=best)
            self.saved_step = fit.step
        except OSError as problem:
            where = f"could not be written to {self.store.folder} ({reason(problem)})"
            log.warning(f"the checkpoint at step {fit.step} {where}: going on without it")
