"""Signals that ask a sweep to stop."""

import signal

from support.outside import Outside

from ampcompare.sweeps.stop_request import SweepStopRequest


def test_two_signals_at_once_are_one_request():
    """A terminal and a wrapper such as `uv run` both pass on one Ctrl-C: it must not kill the runs."""
    with SweepStopRequest() as stop:
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
        assert (stop.is_made(), stop.is_at_once) == (True, False)


def test_of_further_signals_only_ctrl_c_means_at_once(outside: Outside):
    """Slurm warns with one signal and ends with another; the runs need the time in between."""
    clock = outside.stop_clock()
    with SweepStopRequest() as stop:
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGTERM):
            signal.raise_signal(number)
            clock.now += 1.0
        assert (stop.is_made(), stop.is_at_once) == (True, False)
        signal.raise_signal(signal.SIGINT)
        assert stop.is_at_once
    assert stop.signal == signal.SIGUSR1
