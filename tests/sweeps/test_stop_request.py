"""Signals that ask a sweep to stop."""

import os
import signal
import time

from ampcompare.sweeps.stop_request import SAME_REQUEST_SECONDS, SweepStopRequest


def test_two_signals_at_once_are_one_request():
    """A terminal and a wrapper such as `uv run` both pass on one Ctrl-C: it must not kill the runs."""
    with SweepStopRequest() as stop:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        assert (stop.is_made(), stop.is_at_once) == (True, False)


def test_a_later_ctrl_c_kills_the_runs():
    with SweepStopRequest() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(SAME_REQUEST_SECONDS + 0.1)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.is_at_once
