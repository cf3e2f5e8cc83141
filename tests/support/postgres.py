"""A real PostgreSQL for tests, in a folder of its own: from Debian's package or from PATH."""

import os
import pwd
import shutil
import subprocess
import tempfile
from itertools import count
from pathlib import Path

import pytest

DEBIAN = Path("/usr/lib/postgresql")
ACCOUNTS = ("postgres", "nobody")  # initdb refuses root
SETTINGS = """
listen_addresses = ''
fsync = off
full_page_writes = off
shared_buffers = 16MB
autovacuum = off
timezone = 'Europe/Berlin'
"""
# `locked` has a password; everybody else comes in as whom they say they are.
WHO = "local all locked scram-sha-256\nlocal all all trust\n"


def programs() -> Path | None:
    """The folder with initdb and pg_ctl, the newest of Debian's first; None where there is none."""
    folders = sorted(DEBIAN.glob("*/bin"), key=lambda folder: float(folder.parent.name), reverse=True)
    found = shutil.which("initdb")
    folders += [Path(found).resolve().parent] if found else []
    return next((folder for folder in folders if (folder / "pg_ctl").exists()), None)


class Postgres:
    """A server on a socket in its folder. `database()` makes an empty one and returns its URL."""

    def __init__(self, binaries: Path) -> None:
        self._binaries = binaries
        # Not pytest's folder, which only its owner can enter; and the path of a socket has to be short.
        self.folder = Path(tempfile.mkdtemp(prefix="ampcompare-pg-"))
        self._account = _account() if os.geteuid() == 0 else None
        if self._account:
            shutil.chown(self.folder, self._account)
        self._numbers = count()
        self._run("initdb", "--username=postgres", "--auth=trust", "--no-sync", "--encoding=UTF8")
        with (self._data / "postgresql.conf").open("a") as file:
            file.write(f"{SETTINGS}unix_socket_directories = '{self.folder}'\n")
        (self._data / "pg_hba.conf").write_text(WHO)
        self.start()

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def start(self) -> None:
        self._control("start")

    def stop(self, mode: str = "fast") -> None:
        self._control("stop", "-m", mode)

    def url(self, database: str, user: str = "postgres", scheme: str = "postgresql") -> str:
        return f"{scheme}://{user}@/{database}?host={self.folder}"

    def database(self) -> str:
        """The URL of an empty database of its own."""
        name = f"d{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def execute(self, statement: str, database: str = "postgres") -> list[tuple]:
        import psycopg

        where = {"host": str(self.folder), "user": "postgres", "dbname": database}
        with psycopg.connect(**where, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        if (self._data / "postmaster.pid").exists():
            self.stop("immediate")
        shutil.rmtree(self.folder)

    def _control(self, *words: str) -> None:
        self._run("pg_ctl", *words, "-w", "-s", "-l", str(self.folder / "log"))

    def _run(self, program: str, *words: str) -> None:
        # Not captured: the server would inherit the pipe, whose end is then waited for.
        with (self.folder / "said").open("ab") as said:
            done = subprocess.run(
                [str(self._binaries / program), "-D", str(self._data), *words],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                cwd=self.folder,
                env={**os.environ, "LC_ALL": "C"},
                user=self._account,
                group=self._account and pwd.getpwnam(self._account).pw_gid,
                check=False,
            )
        assert done.returncode == 0, (self.folder / "said").read_text()


def _account() -> str:
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ACCOUNTS if name in known)


def started() -> Postgres:
    """A running server, to be closed. Absent on a developer's machine the test skips; in CI it has to be."""
    pytest.importorskip("psycopg", reason="no driver: pip install 'ampcompare[postgresql]'")
    binaries = programs()
    if binaries is None:
        reason = "no PostgreSQL: neither initdb on PATH nor Debian's package postgresql is there"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return Postgres(binaries)
