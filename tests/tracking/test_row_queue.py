"""Rows that go out in another thread: all of them, in order, errors not lost."""

from __future__ import annotations

import threading

import pytest

from ampcompare.tracking.row_queue import RowQueue


def test_everything_is_received_in_order_before_close_returns():
    received: list[int] = []
    may_begin = threading.Event()

    def once_allowed(item: int) -> None:
        assert may_begin.wait()
        received.append(item)

    rows = RowQueue(once_allowed)
    for number in range(50):
        rows.put(number)
    assert received == []  # nobody waited
    may_begin.set()
    rows.close()
    assert received == list(range(50))


def test_what_the_receiver_raises_is_raised_once_here():
    def fails(item: int) -> None:
        raise OSError("disk full")

    rows = RowQueue(fails)
    rows.put(1)
    with pytest.raises(OSError, match="disk full"):
        rows.close()
    rows.put(2)  # and `finish` can go on

    other = RowQueue(fails)
    other.put(1)
    other._thread.join()
    with pytest.raises(OSError, match="disk full"):
        other.put(2)
