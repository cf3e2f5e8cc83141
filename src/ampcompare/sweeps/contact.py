"""Contact with the database of a sweep: what is done while it does not answer, and what may be judged then.

A server is restarted, a network goes away for a while: runs go on meanwhile, and who has something to write
waits. Whoever was cut off cannot know who else was, so that nobody's silence counts until all have had their
time to be heard again.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from ampcompare.errors import UserError
from ampcompare.program.console import clock
from ampcompare.sweeps.storage import as_user_error, shown, why

PATIENCE_SECONDS = 3600.0  # for a database that does not answer
PAUSE_SECONDS = 1.0
LAST_SECONDS = 30.0  # for what runs ended with, in a sweep that is being stopped: that of STOP_SECONDS
SETTLE_SECONDS = 10.0  # in which a new worker hears from those whose runs it found
SQLITE_BUSY = (5, 6)  # SQLITE_BUSY, SQLITE_LOCKED
LOST_TO_ANOTHER = ("40001", "40P01")  # serialization, deadlock: once more

T = TypeVar("T")


class Away(UserError):
    """The database does not answer at the moment, or has not for as long as it is waited for."""


class Contact:
    """All that one process asks of the database goes through here. Safe to use from several threads.

    `say` tells the user; after `stop` nobody waits but who has an end to write, after `kill` nobody.
    """

    def __init__(self, url: str, grace_seconds: float) -> None:
        self.url, self.grace_seconds = url, grace_seconds
        self.say: Callable[[str], None] = lambda line: None
        self.stop, self.kill = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._since: float | None = None  # it is away
        self.tries = 0  # in vain, since then
        self._reason = ""
        self._began = self._last = time.monotonic()
        self._wall = time.time()
        self._judges_from = -math.inf

    def heed(self, say: Callable[[str], None], stop: threading.Event, kill: threading.Event) -> None:
        """From here on there is a user to tell, who may end the waiting."""
        self.say, self.stop, self.kill = say, stop, kill

    def once(self, act: Callable[[], T]) -> T:
        """What `act` gets from the database. Raises Away where it does not answer, else UserError."""
        try:
            with as_user_error(self.url):
                result = act()
        except UserError as problem:
            if (cause := absence(problem)) is None:
                raise
            self._lost(why(cause, self.url))
            raise Away(f"--storage {shown(self.url)}: does not answer ({self._reason})") from cause
        self._found()
        return result

    def wait(self, act: Callable[[], T], *, at_the_end: bool = False) -> T:
        """As `once`, again and again until it answers. `act` may have done its work each time before.

        Raises Away when it has been away for PATIENCE_SECONDS; when the sweep is stopped, at once or, with
        `at_the_end`, after LAST_SECONDS.
        """
        stopped: float | None = None
        while True:
            try:
                return self.once(act)
            except Away:
                now = time.monotonic()
                if self._since is not None and now - self._since > PATIENCE_SECONDS:
                    self._give_up(clock(PATIENCE_SECONDS))
                if self.stop.is_set():
                    stopped = now if stopped is None else stopped
                    if not at_the_end:
                        raise
                    if self.kill.is_set() or now - stopped > LAST_SECONDS:
                        self._give_up(f"{LAST_SECONDS:.0f} s, and the sweep was stopped")
                (self.kill if self.stop.is_set() else self.stop).wait(PAUSE_SECONDS)

    def _give_up(self, waited: str) -> None:
        todo = "what is not written is tried again when the sweep is started again"
        raise Away(f"--storage {shown(self.url)}: did not answer for {waited} ({self._reason}); {todo}")

    def may_judge(self, *, known: bool) -> bool:
        """Whether silence means death by now; `known` is what began while this process looked on."""
        now = time.monotonic()
        settle = 0.0 if known else min(SETTLE_SECONDS, self.grace_seconds)
        return now >= max(self._judges_from, self._began + settle)

    def _lost(self, reason: str) -> None:
        with self._lock:
            self._reason = reason
            self.tries += 1
            is_new = self._since is None
            if is_new:
                self._since = time.monotonic()
        if is_new:
            waits = f"waiting for it, {clock(PATIENCE_SECONDS)} at most"
            self.say(f"the database does not answer ({reason}): runs go on; {waits}")

    def _found(self) -> None:
        now, wall = time.monotonic(), time.time()
        with self._lock:
            # A machine that slept knows it by the clock on the wall alone.
            if max(now - self._last, wall - self._wall) > self.grace_seconds / 2:
                self._judges_from = now + self.grace_seconds
            self._last, self._wall = now, wall
            since, self._since, self.tries = self._since, None, 0
        if since is not None:
            self.say(f"the database answers again, after {now - since:.0f} s")


def absence(problem: BaseException | None) -> BaseException | None:
    """What led to trouble with a database and is likely to pass without anybody mending the sweep, if so."""
    from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

    for cause in _chain(problem):
        if not isinstance(cause, DBAPIError):
            continue
        # SQLite: other writers alone; a file that cannot be read is no better in an hour.
        code = getattr(cause.orig, "sqlite_errorcode", None)
        if code is not None:
            return cause if code & 0xFF in SQLITE_BUSY else None
        is_broken = cause.connection_invalidated or isinstance(cause, InterfaceError | OperationalError)
        if is_broken and not type(cause.orig).__module__.startswith("sqlite3"):
            return cause
        if getattr(cause.orig, "sqlstate", None) in LOST_TO_ANOTHER:
            return cause
    return None


def _chain(problem: BaseException | None) -> Iterator[BaseException]:
    """The exception and those that led to it: the connection's own may be beneath what was tried after it."""
    seen: list[BaseException] = []
    while problem is not None and problem not in seen:
        seen.append(problem)
        yield problem
        problem = problem.__cause__ or problem.__context__
