"""Runs a program to its end and forwards signals to it."""

import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress

from ampcompare.runtime.signals import StopRequest, signal_of

POLL_SECONDS = 0.2  # between checks for a signal


def run_to_completion(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a program that completes its work and ends when a signal asks it to.

    Signals to this process alone are forwarded. Ctrl-C is not: the terminal sends it to both.

    Returns:
        Its exit code, or 128 + the signal that killed it or that asked this program to stop.
    """
    with StopRequest() as stop, subprocess.Popen(command, env=dict(environment)) as process:
        forwarded: int = signal.SIGINT
        while process.poll() is None:
            with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                process.wait(POLL_SECONDS)
            if stop.is_made() and stop.signal != forwarded:
                forwarded = stop.signal
                process.send_signal(forwarded)
    if stop.is_made():
        return stop.exit_code
    return process.returncode if process.returncode >= 0 else 128 + signal_of(process.returncode)
