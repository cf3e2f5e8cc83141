"""Signs of life of the runs of one process, from a thread of its own; and what all workers have done by now.

A run's worker may be waiting for the database, or reading a long record: neither is silence.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ampcompare.sweeps.attempts import Attempt
from ampcompare.sweeps.contact import Away
from ampcompare.sweeps.search import Search


class Pulse(threading.Thread):
    """Beats every few seconds from `with` to its end. `told` gets how many runs are done and how many go on,
    of all workers; None where nobody looks.
    """

    def __init__(self, search: Search, told: Callable[[int, int], None] | None) -> None:
        super().__init__(name="pulse", daemon=True)
        self._search, self._told = search, told
        self._ended = threading.Event()
        self._held: dict[int, Attempt] = {}
        self._lost: set[int] = set()
        self._problem: Exception | None = None

    def __enter__(self) -> Pulse:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._ended.set()
        self.join()

    def hold(self, attempt: Attempt) -> None:
        """Its worker is alive from here on."""
        self._held[attempt.trial.number] = attempt

    def release(self, attempt: Attempt) -> None:
        """Its end is written, or will not be."""
        self._held.pop(attempt.trial.number, None)

    def is_lost(self, attempt: Attempt) -> bool:
        """Whether another worker has taken it over. Raises what ended the signs of life, as a UserError for a
        database that cannot be used: a run without them is taken over.
        """
        if self._problem:
            raise self._problem
        return attempt.trial.number in self._lost

    def run(self) -> None:
        try:
            while not self._ended.wait(self._search.heartbeat_seconds):
                self._beat()
        except Exception as problem:  # of whatever kind: told by the worker whose run goes on unheard
            self._problem = problem

    def _beat(self) -> None:
        try:
            for number, attempt in list(self._held.items()):
                if not self._search.alive(attempt):
                    self._lost.add(number)
            if self._told:
                self._told(*self._search.progress())
        except Away:
            pass  # it was said; a beat later
