"""The database of a sweep: where it is, how it is opened, and trouble with it in one line."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, unquote

import optuna
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.storages import RDBStorage

from ampcompare.errors import UserError, reason

TRIES, PAUSE_SECONDS = 4, 0.25
optuna.logging.set_verbosity(optuna.logging.ERROR)  # what there is to say is said by the sweep itself
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
# Ask-and-tell sends its own: Search.alive.
warnings.filterwarnings("ignore", message="Heartbeat of storage is supposed")


def sqlite_url(folder: Path) -> str:
    """The sweep's own database in its output folder, whatever characters its name has."""
    # Quoted twice: SQLAlchemy takes one layer off, SQLite the other.
    return f"sqlite:///file:{quote(quote(str(folder.resolve() / 'sweep.db')))}?uri=true"


def shown(url: str) -> str:
    """The URL as it may be shown: without password, our own database by its path."""
    own = re.fullmatch(r"sqlite:///file:(.*)\?uri=true", url)
    return unquote(unquote(own[1])) if own else re.sub(r"(//[^/@:]*):[^/]*@", r"\1:***@", url)


def open_storage(url: str, heartbeat_seconds: float, grace_seconds: float) -> RDBStorage:
    """Optuna's storage at an SQLAlchemy URL, made if need be."""
    from sqlalchemy.exc import DatabaseError

    for attempt in range(TRIES):
        try:
            return RDBStorage(
                url,
                # SQLite: wait for other writers instead of failing at once.
                engine_kwargs={"connect_args": {"timeout": 30}} if url.startswith("sqlite") else {},
                heartbeat_interval=max(1, round(heartbeat_seconds)),
                grace_period=max(2, round(grace_seconds)),
            )
        except DatabaseError:  # another worker makes the same tables at this moment, or it is a real one
            if attempt == TRIES - 1:
                raise
            time.sleep(PAUSE_SECONDS)
    raise AssertionError


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
        cause = problem.__cause__ or getattr(problem, "orig", None) or problem
        raise UserError(f"--storage {shown(url)}: cannot be used ({reason(cause)})") from problem
