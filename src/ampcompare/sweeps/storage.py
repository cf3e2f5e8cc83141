"""The database of a sweep: where it is, how it is opened, and trouble with it in one line."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote

import optuna
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.storages import RDBStorage

from ampcompare.errors import UserError, reason

if TYPE_CHECKING:
    from sqlalchemy import URL

TRIES, PAUSE_SECONDS = 4, 0.25
BUSY_SECONDS = 30.0  # for a server that is there and takes nobody at the moment
BUSY = re.compile(r"too many (clients|connections)|connection slots|starting up|shutting down|recovery mode")
DRIVERS = ("psycopg", "psycopg2")  # of PostgreSQL, the first that is installed
POSTGRES = re.compile(r"postgres(?:ql)?(\+\w+)?(?=://)")
# How to install what an import misses.
PACKAGES = {"psycopg": "'ampcompare[postgresql]'", "psycopg2": "psycopg2-binary", "MySQLdb": "mysqlclient"}
# A machine that vanishes says nothing: without these its connection is waited for up to two hours.
LIBPQ = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
# What names a secret, in whatever case: a key, and a key with its value, as in a connection string.
SECRET = re.compile(r"pass|pwd|secret|token", re.IGNORECASE)
SAID_SECRET = re.compile(rf"((?:{SECRET.pattern})\w*\s*=\s*)([^&;\s]*)", re.IGNORECASE)
QUERY = re.compile(r"([?&][^=&]*)=([^&]*)")
# Without a user what stands in place of the port may be a password whose @ was forgotten.
NO_USER = re.compile(r"(//[^/@:?[]*):(\d+)(?=[/?]|$)")
USUAL_PORTS = ("5432", "5433", "6432", "3306", "1433", "1521", "26257")
LONG = 4  # letters of a password that no word has by chance
T = TypeVar("T")
optuna.logging.set_verbosity(optuna.logging.ERROR)  # what there is to say is said by the sweep itself
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
# Ask-and-tell sends its own: Search.alive.
warnings.filterwarnings("ignore", message="Heartbeat of storage is supposed")


def sqlite_url(folder: Path) -> str:
    """The sweep's own database in its output folder, whatever characters its name has."""
    # Quoted twice: SQLAlchemy takes one layer off, SQLite the other.
    return f"sqlite:///file:{quote(quote(str(folder.resolve() / 'sweep.db')))}?uri=true"


def check_storage(given: str | None) -> None:
    """Raises UserError for what --storage cannot mean."""
    if given is None:
        return
    if not given.strip():
        raise UserError(f"--storage {given!r}: expected the URL of a database, or leave the option out")
    url = _parsed(given)
    if url is None or url.get_backend_name() != "sqlite":
        return
    if not url.database or ":memory:" in url.database or url.query.get("mode") == "memory":
        todo = "name a file, sqlite:///sweep.db, or leave the option out"
        raise UserError(f"--storage {given}: a database in memory is gone with its process; {todo}")


def sqlite_path(url: str) -> Path | None:
    """The file of an SQLite database; None of any other. Raises what SQLAlchemy does for what is no URL."""
    from sqlalchemy import make_url

    given = make_url(url)
    if given.get_backend_name() != "sqlite" or not given.database:
        return None
    if not given.database.startswith("file:"):
        return Path(given.database)
    return Path(unquote(re.sub(r"file:(//[^/]*)?", "", given.database, count=1)))


def shown(url: str) -> str:
    """The URL as it may be shown: without password, our own database by its path. Of what is no URL, and may
    be anything, no more than the beginning that looks like one.
    """
    if own := re.fullmatch(r"sqlite:///file:(.*)\?uri=true", url):
        return unquote(unquote(own[1]))
    if _is_of_file(url) or re.fullmatch(r"[\w./\\-]*", url):  # a path, which may have any of these characters
        return url
    if _parsed(url) is None:
        scheme = re.match(r"[\w+.-]+://", url)
        return f"{scheme[0] if scheme else ''}***"
    # The same password as SQLAlchemy's, but up to the last @: one that was left unquoted is no host.
    url = re.sub(r"(?s)(//[^/:]*):.*@", r"\1:***@", url)
    url = NO_USER.sub(lambda m: m[0] if m[2] in USUAL_PORTS else f"{m[1]}:***", url)
    url = QUERY.sub(lambda m: f"{m[1]}=***" if _is_secret(m) else m[0], url)
    return SAID_SECRET.sub(r"\1***", url)


def _is_of_file(url: str) -> bool:
    return re.match(r"sqlite(\+pysqlite|\+aiosqlite)?:", url) is not None


def _parsed(url: str) -> URL | None:
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(url)
    except (ArgumentError, ValueError):
        return None


def _is_secret(option: re.Match[str]) -> bool:
    """Whether a word of the query is to be hidden: by its name, or as a connection string that has one."""
    return bool(SECRET.search(unquote(option[1])) or SAID_SECRET.search(unquote(unquote(option[2]))))


class SweepStorage(RDBStorage):
    """Optuna's storage; `spares` says of a silent trial that its worker is not yet to be taken for dead."""

    spares: Callable[[int], bool]

    def __init__(self, url: str, **options: Any) -> None:
        from sqlalchemy import event

        self.spares = lambda trial_id: False
        super().__init__(url.replace("{", "{{").replace("}", "}}"), **options)  # a template to Optuna
        if self.engine.dialect.name == "postgresql":
            event.listen(self.engine, "connect", _as_we_need_it)
            self.engine.dispose()  # the connections from before

    def _get_stale_trial_ids(self, study_id: int) -> list[int]:
        return [number for number in super()._get_stale_trial_ids(study_id) if not self.spares(number)]


def _as_we_need_it(connection: Any, record: object) -> None:
    """Settings of a session with PostgreSQL."""
    cursor = connection.cursor()
    # Optuna keeps signs of life without a time zone, in that of the session. Sessions with other ones
    # (PGTZ, a role's setting) would be hours apart, all of them an hour silent when summer time begins.
    cursor.execute("SET TIME ZONE 'UTC'")
    # A machine that dies within a transaction would keep its locks until its connection is found dead.
    cursor.execute("SET idle_in_transaction_session_timeout = '60s'")
    cursor.close()
    connection.commit()


def open_storage(url: str, heartbeat_seconds: float, grace_seconds: float) -> SweepStorage:
    """Optuna's storage at an SQLAlchemy URL, made if need be.

    `postgresql://` and `postgres://` take the driver that is installed. Raises what the database raises, and
    ImportError for a missing driver.
    """
    url = _with_driver(url)
    return _patiently(
        lambda: SweepStorage(
            url,
            engine_kwargs=_engine_options(url),
            heartbeat_interval=max(1, round(heartbeat_seconds)),
            grace_period=max(2, round(grace_seconds)),
        )
    )


def holds_studies(url: str) -> bool:
    """Whether Optuna has made its tables in the database, found out without making them. Raises as
    `open_storage`.
    """
    from sqlalchemy import create_engine, inspect

    url = _with_driver(url)
    engine = create_engine(url, **_engine_options(url))
    try:
        return _patiently(lambda: {"studies", "trials"} <= {*inspect(engine).get_table_names()})
    finally:
        engine.dispose()


def _with_driver(url: str) -> str:
    if scheme := POSTGRES.match(url):
        return f"postgresql{scheme[1] or f'+{_driver()}'}{url[scheme.end() :]}"
    return url


def _patiently(act: Callable[[], T]) -> T:
    from sqlalchemy.exc import DatabaseError

    began, tries = time.monotonic(), 0
    while True:
        try:
            return act()
        # Another worker makes the same tables at this moment, or it is a real one.
        except (DatabaseError, StorageInternalError) as problem:
            tries += 1
            is_busy = BUSY.search(str(problem)) and time.monotonic() - began < BUSY_SECONDS
            if tries >= TRIES and not is_busy:
                raise
            time.sleep(PAUSE_SECONDS)


def _driver() -> str:
    return next((name for name in DRIVERS if find_spec(name)), DRIVERS[0])


def _engine_options(url: str) -> dict[str, Any]:
    from sqlalchemy import make_url

    if url.startswith("sqlite"):
        return {"connect_args": {"timeout": 30}}  # wait for other writers instead of failing at once
    # One connection is kept, as many workers share the server's; it is asked whether it still lives before
    # it is used.
    options: dict[str, Any] = {"pool_pre_ping": True, "pool_size": 1, "max_overflow": 100}
    given = make_url(url)
    if given.drivername.partition("+")[2] in DRIVERS:
        options["connect_args"] = {key: value for key, value in LIBPQ.items() if key not in given.query}
    return options


@contextmanager
def as_user_error(url: str) -> Iterator[None]:
    """Trouble with the database at this URL as one line."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (UserError, UpdateFinishedTrialError):
        raise
    # What RDBStorage raises for a URL that it cannot open: a missing driver, a wrong name.
    except (StorageInternalError, SQLAlchemyError, ImportError, ValueError, KeyError, OSError) as problem:
        raise UserError(f"--storage {shown(url)}: cannot be used ({why(problem, url)})") from problem


def why(problem: BaseException, url: str) -> str:
    """What is wrong with the database at this URL, in words that may be shown."""
    parsed = _parsed(url)
    if parsed is None:  # whatever it has may be a password
        return "not the URL of a database; expected such as postgresql://user@host/database"
    cause = problem
    while isinstance(cause, StorageInternalError | ImportError) and cause.__cause__:
        cause = cause.__cause__
    cause = getattr(cause, "orig", None) or cause.__cause__ or cause
    if isinstance(cause, ImportError):
        name = (cause.name or "").partition(".")[0] or "of its kind"
        package = PACKAGES.get(name, name if cause.name else PACKAGES[DRIVERS[0]])
        return f"its driver {name} is not installed: pip install {package}"
    said = reason(cause)
    if getattr(cause, "sqlstate", None) == "42501":  # PostgreSQL 15 gives it to owners only
        said += "; its user has to be allowed to make tables there"
    said = said.replace(url, shown(url))
    for secret in _secrets(url, parsed):
        # A short one is part of many words: hidden where it stands by itself, as in quotes.
        pattern = re.escape(secret)
        said = re.sub(pattern if len(secret) >= LONG else rf"(?<=[^\w\s]){pattern}(?=[^\w\s])", "***", said)
    return said


def _secrets(url: str, parsed: URL) -> list[str]:
    """Passwords in a URL as messages may have them: as written, as meant, and what an @ within leaves."""
    if _is_of_file(url):
        return []
    found = [match[1] for match in re.finditer(r"(?s)//[^/:]*:(.*)@", url)]
    found += [str(parsed.password or "")]
    found += [part for part in (parsed.host, parsed.database) if part and "@" in part]
    found += [m[2] for m in NO_USER.finditer(url) if m[2] not in USUAL_PORTS]
    for option in QUERY.finditer(url):
        if _is_secret(option):
            found += [option[2], *(m[2] for m in SAID_SECRET.finditer(unquote(unquote(option[2]))))]
    pieces = [piece for secret in found for piece in (secret, *re.split("[@/:?#]", secret))]
    forms = {form for piece in pieces for form in (piece, unquote(piece)) if form}
    return sorted(forms, key=len, reverse=True)
