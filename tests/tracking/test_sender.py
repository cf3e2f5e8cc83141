"""Rows that go out in another thread: all of them, in order, errors not lost."""

from __future__ import annotations

import threading

import pytest
from support.quick import HANG

from ampcompare.tracking.sender import Sender


def test_everything_is_received_in_order_before_close_returns():
    received: list[int] = []
    may_begin = threading.Event()

    def once_allowed(item: int) -> None:
        assert may_begin.wait(HANG)
        received.append(item)

    sender = Sender(once_allowed)
    for number in range(50):
        sender.put(number)
    assert received == []  # nobody waited
    may_begin.set()
    sender.close()
    assert received == list(range(50))


def test_the_receiver_runs_in_another_thread():
    threads: list[int] = []
    sender = Sender(lambda item: threads.append(threading.get_ident()))
    sender.put(None)
    sender.close()
    assert threads
    assert threads[0] != threading.get_ident()


def test_what_the_receiver_raises_is_raised_once_here():
    def fails(item: int) -> None:
        raise OSError("disk full")

    sender = Sender(fails)
    sender.put(1)
    with pytest.raises(OSError, match="disk full"):
        sender.close()
    sender.put(2)  # and `finish` can go on

    other = Sender(fails)
    other.put(1)
    other._thread.join()
    with pytest.raises(OSError, match="disk full"):
        other.put(2)
