"""How the record of somebody's loop ends: finished, failed with an exception, or stopped by a signal."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from ampcompare.program.stopping import EXIT_FAILED, heard
from ampcompare.tracking.tracker import Tracker

# Those that end a process at once, without a word in its record. Ctrl-C is Python's KeyboardInterrupt.
SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class Ending:
    """Makes SIGTERM and the end of the terminal a SystemExit, which unwinds the loop and ends its record.

    A handler that the program has set stays. While entered the exit waits: the recorder is at work.
    """

    def __init__(self) -> None:
        self._taken: list[signal.Signals] = []
        self.is_at_work = False
        self.asked: int | None = None

    def listen(self) -> None:
        """From here on."""
        if threading.current_thread() is threading.main_thread():  # nowhere else may handlers be set
            self._taken = [n for n in heard(SIGNALS) if signal.getsignal(n) is signal.SIG_DFL]
            for number in self._taken:
                signal.signal(number, self._on_signal)

    def close(self) -> None:
        """Up to here: what comes later ends the process as it does."""
        for number in self._taken:
            signal.signal(number, signal.SIG_DFL)

    def __enter__(self) -> None:
        self.is_at_work = True

    def __exit__(self, *problem: object) -> None:
        self.is_at_work = False
        self.leave()

    def leave(self) -> None:
        """Exit, if that was asked for meanwhile."""
        if self.asked is not None:
            raise SystemExit(128 + self.asked)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.asked = number
        if not self.is_at_work:
            raise SystemExit(128 + number)


def end(
    tracker: Tracker,
    summary: Mapping[str, Any],
    problem: BaseException | None,
    output_dir: str | Path,
    say: Callable[[str], None],
    *,
    lent: bool,
) -> None:
    """End the record as the exception says that came out of the loop, or None; say where it is."""
    code = exit_code(problem)
    if code is None:
        preempted = isinstance(problem, SystemExit) and problem.code == 128 + signal.SIGTERM
        if not tracker.finish_stopped(summary, preempted=preempted and not os.environ.get("WANDB_SWEEP_ID")):
            say("the record is on the disk, but was not sent whole in time")
    elif lack := tracker.finish(summary, code):
        say(f"error: {lack}")
    for line in () if lent else tracker.where(Path(output_dir)):
        say(line)


def exit_code(problem: BaseException | None) -> int | None:
    """The exit code of a record: 0 of a loop that ended; None of one that was stopped."""
    if problem is None:
        return 0
    if isinstance(problem, KeyboardInterrupt):
        return None
    if not isinstance(problem, SystemExit):
        return EXIT_FAILED
    if problem.code in [128 + number for number in (signal.SIGINT, *SIGNALS)]:
        return None
    if problem.code is None:
        return 0
    return problem.code if isinstance(problem.code, int) else EXIT_FAILED
