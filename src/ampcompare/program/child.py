"""A program that this one starts and waits for: what ends this one ends it, too."""

import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress

from ampcompare.program.stopping import StopRequest, signal_of

LOOK_SECONDS = 0.2  # between two looks whether a signal has come


def see_through(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a program that ends in order by itself when it is told to, by Ctrl-C too, which it hears from the
    terminal. Returns its exit code, 128 + the signal that has killed it or told this program to end.
    """
    with StopRequest() as stop, subprocess.Popen(words, env=dict(environment)) as process:
        told = 128 + signal.SIGINT
        while process.poll() is None:
            with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                process.wait(LOOK_SECONDS)
            if stop.is_made() and stop.exit_code != told:
                told = stop.exit_code
                process.send_signal(told - 128)
    if stop.is_made():
        return stop.exit_code
    return process.returncode if process.returncode >= 0 else 128 + signal_of(process.returncode)
