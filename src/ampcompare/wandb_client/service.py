"""The end of W&B's service process, which its client starts beside ours, in order and out of it."""

from __future__ import annotations

import contextlib
import threading

USUAL_SECONDS = 15.0  # the end takes 0.1 s, where nothing is wrong


def gone() -> tuple[type[Exception], ...]:
    """What W&B's client raises where its service has ended: as it sends, and as it waits (wandb 0.31)."""
    from wandb.sdk.mailbox import HandleAbandonedError, MailboxClosedError

    return ConnectionError, MailboxClosedError, HandleAbandonedError


def end_service(seconds: float = USUAL_SECONDS) -> bool:
    """Tear W&B's client down, waiting so long at most; returns whether its service has ended.

    `wandb.teardown` waits without limit, and where the server cannot be reached the service did not end in 1
    of 10 tries (wandb 0.31). What is left behind ends by itself when this process does.
    """
    import wandb

    def tear_down() -> None:
        with contextlib.suppress(*gone()):  # it had ended before
            wandb.teardown()

    # A daemon: neither the waiting nor W&B's own exit hook, taken off by then, holds up our exit.
    waiting = threading.Thread(target=tear_down, daemon=True, name="wandb.teardown")
    try:
        waiting.start()
    except RuntimeError:  # Python ends already: from 3.12 on it begins no threads then
        return False
    waiting.join(seconds)
    return not waiting.is_alive()
