"""When a run's state is saved, and with what."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ampcompare.checkpoint.files import Store
from ampcompare.checkpoint.resume import Identity
from ampcompare.checkpoint.state import capture
from ampcompare.errors import reason

if TYPE_CHECKING:
    from ampcompare.tracking.tracker import Tracker
    from ampcompare.train.fit import Fit


class RunKeeper:
    """Saves a run's state when it is due. A save that fails is said, and the training goes on.

    Of several processes all gather the state, at one step, and the first one writes it.
    """

    def __init__(
        self,
        tracker: Tracker,
        store: Store,
        identity: Identity,
        environment: Mapping[str, Any],
        say: Callable[[str], None],
    ) -> None:
        self.tracker, self.store, self.identity = tracker, store, identity
        # Plain: PyTorch's version is a class of its own.
        self.environment = json.loads(json.dumps(environment))
        self.say = say
        self.options = identity.config.checkpoint
        self.saved_step: int | None = None
        self._saved_at = time.monotonic()

    def is_due(self, epochs: int | None = None) -> bool:
        every, minutes = self.options.every_epochs, self.options.every_minutes
        if epochs is not None:
            return every is not None and epochs % every == 0
        return minutes is not None and time.monotonic() - self._saved_at >= minutes * 60

    def save(self, fit: Fit, *, best: bool = False) -> None:
        self._saved_at = time.monotonic()
        step, gathered = fit.step, capture(fit)
        if not fit.world.leads:
            return
        self.tracker.flush()  # what is saved has been logged
        state = {
            "step": step,
            "run_id": self.tracker.run_id,
            "config": self.identity.config.to_dict(),
            "identity": self.identity.values(),
            "environment": self.environment,
            "record": self.tracker.state_dict(),
            **gathered,
        }
        try:
            if not self.store.lock():
                raise OSError(0, f"{self.store.folder} is in use by another process")
            self.store.save(state, best=best)
            self.saved_step = step
        except OSError as problem:
            where = f"could not be written to {self.store.folder} ({reason(problem)})"
            self.say(f"the checkpoint at step {step} {where}: going on without it")
