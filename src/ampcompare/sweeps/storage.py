"""The database of a sweep: its URL, trouble with it in one line, and who waits while it does not answer."""

import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Engine, MetaData, create_engine, event, make_url
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError

from ampcompare.errors import UserError, reason
from ampcompare.program.console import clock

PATIENCE_SECONDS = 3600.0  # for a database that does not answer
PAUSE_SECONDS = 1.0
SQLITE_BUSY = (5, 6)  # SQLITE_BUSY, SQLITE_LOCKED
DRIVER = "psycopg"  # of PostgreSQL, where the URL names none
# A machine that vanishes says nothing: without these its connection is waited for up to two hours.
LIBPQ = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
PLAIN = {"host", "port", "sslmode"}  # what of a URL's query is no secret
# What is told of a driver's words where a password may be among them.
TROUBLE = ["password authentication failed", "Connection refused", "does not exist", "permission denied"]
TROUBLE += ["timeout expired", "could not translate host name", "too many clients"]
Address = str | URL  # of the command line, and of the sweep's own database
T = TypeVar("T")


class Away(UserError):
    """The database does not answer at the moment, or has not for as long as it is waited for."""


class Database:
    """All that one process asks of the database goes through here. Safe to use from several threads.

    A server is restarted, a network goes away for a while: runs go on meanwhile, and who has something to
    write waits, `patience` seconds at most. `say` tells the user. `tables` are made if need be; without any
    nothing is written at all. Raises UserError where it cannot be used.
    """

    def __init__(self, url: Address, tables: MetaData | None = None) -> None:
        self.url = url
        self.say: Callable[[str], None] = lambda line: None
        self.patience: Callable[[], float] = lambda: PATIENCE_SECONDS
        self._away_since: float | None = None
        try:
            self.engine = _engine(url, writes=tables is not None)
            if tables is None:
                self.engine.connect().close()
            else:
                with suppress(DBAPIError):  # another makes them just now; what else is wrong is so again
                    tables.create_all(self.engine)
                tables.create_all(self.engine)
        except (SQLAlchemyError, ImportError, ValueError) as problem:  # ValueError: a port that is no number
            raise self._unusable(problem) from problem

    def once(self, act: Callable[[Connection], T]) -> T:
        """What `act` gets from the database in one transaction. Raises Away where it does not answer, else
        UserError.
        """
        try:
            with self.engine.begin() as connection:
                result = act(connection)
        except SQLAlchemyError as problem:
            if not _is_away(problem):
                raise self._unusable(problem) from problem
            reason = why(problem, self.url)
            if self._away_since is None:
                self._away_since = time.monotonic()
                waits = f"waiting for it, {clock(PATIENCE_SECONDS)} at most"
                self.say(f"the database does not answer ({reason}): runs go on; {waits}")
            raise Away(f"--storage {shown(self.url)}: does not answer ({reason})") from problem
        if (since := self._away_since) is not None:
            self._away_since = None
            self.say(f"the database answers again, after {time.monotonic() - since:.0f} s")
        return result

    def wait(self, act: Callable[[Connection], T]) -> T:
        """As `once`, again and again until it answers. `act` may have done its work each time before. Raises
        Away where patience is at its end.
        """
        began = time.monotonic()
        while True:
            try:
                return self.once(act)
            except Away as away:
                if (waited := time.monotonic() - began) > self.patience():
                    todo = "what is not written is tried again when the sweep is started again"
                    raise Away(f"{away}, for {clock(waited)} by now; {todo}") from away
                time.sleep(PAUSE_SECONDS)

    def _unusable(self, problem: BaseException) -> UserError:
        called = shown(self.url) or "''"
        return UserError(f"--storage {called}: cannot be used ({why(problem, self.url)})")


def _engine(url: Address, *, writes: bool) -> Engine:
    given = make_url(url)
    name, _, driver = given.drivername.partition("+")
    if name in ("postgres", "postgresql"):
        given = given.set(drivername=f"postgresql+{driver or DRIVER}")
    if given.get_backend_name() == "sqlite":
        if not given.database or given.database.startswith(("file:", ":memory:")):
            todo = "a database in memory is gone with its process"
            raise UserError(f"--storage {url}: expected a file, such as sqlite:///sweep.db; {todo}")
        # Wait for other writers instead of failing at once.
        engine = create_engine(given, connect_args={"timeout": 30})
        # sqlite3 would begin a transaction at the first write, not before. Who reads before it writes would
        # find, when it writes, that another has.
        event.listen(engine, "connect", lambda raw, record: setattr(raw, "isolation_level", None))
        begin = "BEGIN IMMEDIATE" if writes else "BEGIN"
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
        return engine
    # One connection is kept, as many workers share the server's; it is asked whether it still lives before
    # it is used.
    server: dict[str, Any] = {"pool_pre_ping": True, "pool_size": 1, "max_overflow": 100}
    if given.drivername.partition("+")[2].startswith(DRIVER):  # psycopg2 as well
        server["connect_args"] = {key: value for key, value in LIBPQ.items() if key not in given.query}
        server["isolation_level"] = "READ COMMITTED"
    engine = create_engine(given, **server)
    if engine.dialect.name == "postgresql":
        event.listen(engine, "connect", _without_dead_transactions)
    return engine


def _without_dead_transactions(connection: Any, record: object) -> None:
    # A machine that dies within a transaction would keep its locks until its connection is found dead.
    connection.cursor().execute("SET idle_in_transaction_session_timeout = '60s'")
    connection.commit()


def _is_away(problem: BaseException) -> bool:
    """Whether trouble with a database is likely to pass without anybody mending the sweep."""
    cause: BaseException | None = problem
    while cause is not None:  # the connection's own may be beneath what was tried after it
        if isinstance(cause, DBAPIError):
            # SQLite: other writers alone; a file that cannot be read is no better in an hour.
            if (code := getattr(cause.orig, "sqlite_errorcode", None)) is not None:
                return code & 0xFF in SQLITE_BUSY
            if cause.connection_invalidated or isinstance(cause, InterfaceError | OperationalError):
                return True
        cause = cause.__cause__ or cause.__context__
    return False


def sqlite_url(folder: Path) -> URL:
    """The sweep's own database in its output folder, whatever characters its name has."""
    return URL.create("sqlite", database=str(folder.resolve() / "sweep.db"))


def sqlite_path(url: Address) -> Path | None:
    """The file of an SQLite database; None of any other."""
    given = _parsed(url)
    if given is None or given.get_backend_name() != "sqlite" or not given.database:
        return None
    return Path(given.database)


def shown(url: Address) -> str:
    """The URL as it may be shown: no more than `backend://host/database`; the sweep's own by its path."""
    if isinstance(url, URL):
        return str(url.database)
    if re.match(r"sqlite(\+\w+)?:", url) or re.fullmatch(r"[\w./\\-]*", url):  # a path, or a slip
        return url
    if (given := _parsed(url)) is None:  # whatever it has may be a password
        return "***"
    bare = URL.create(given.drivername, host=given.host, database=given.database)
    kind, _, place = bare.render_as_string().partition("://")
    return f"{kind}://{place.rpartition('@')[2]}"  # a password may have an @ that was not quoted


def why(problem: BaseException, url: Address) -> str:
    """What is wrong with the database at this URL, in words that may be shown: the driver's own only where
    no password can be in them.
    """
    if (given := _parsed(url)) is None:
        return "not the URL of a database; expected such as postgresql://user@host/database"
    cause = getattr(problem, "orig", None) or problem
    if isinstance(cause, ImportError):
        name = (cause.name or DRIVER).partition(".")[0]
        package = "'ampcompare[postgresql]'" if name == DRIVER else name
        return f"its driver {name} is not installed: pip install {package}"
    said = reason(cause)
    if given.get_backend_name() == "sqlite" or (given.password is None and PLAIN.issuperset(given.query)):
        return said
    known = next((text for text in TROUBLE if text in said), type(cause).__name__)
    return f"{known}; more is told where the URL has no password, as with PGPASSWORD"


def _parsed(url: Address) -> URL | None:
    try:
        return make_url(url)
    except (SQLAlchemyError, ValueError):
        return None
