"""A report that keeps up with its runs: rebuilt when their files change, served to this machine alone."""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ampcompare.errors import UserError, reason
from ampcompare.records.sources import READERS
from ampcompare.report.files import PAGE_NAME
from ampcompare.report.outputs import output_of

HOST = "127.0.0.1"
POLL_SECONDS = 1.0  # between two readings of the sizes of the files, at least
REST = 4.0  # of the time of the last build: the runs that are watched may be measured on this machine
# A run that stops writing is taken for dead after a while, and an API source has no files.
AGEING_SECONDS = 30


class ReportServer(ThreadingHTTPServer):
    """Serves the files of one report, to requests that name this machine; `build` is the page's version."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder.resolve()
        self.build = ""
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as problem:
            why = f"cannot be had ({reason(problem)})"
            raise UserError(f"--port {port}: {why}; name another, or 0 for any free one") from None

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: ReportServer
    server_version, sys_version = "ampcompare", ""
    timeout = 30

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal shows the runs."""

    def _answer(self, *, with_body: bool) -> None:
        port = self.server.server_port
        # A page elsewhere can point its own name at 127.0.0.1; its requests still carry that name.
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            return self._send(403, b"this server answers to its own address only\n", "text/plain", with_body)
        path = self.path.partition("?")[0].lstrip("/") or PAGE_NAME
        if path == "build":
            return self._send(200, self.server.build.encode(), "text/plain", with_body)
        # What a report consists of; the folder may hold more, and that is nobody's business.
        output = output_of(path)
        content = self._read(path) if output else None
        if output is None or content is None:
            return self._send(404, b"no such file in this report\n", "text/plain", with_body)
        return self._send(200, content, output.content_type, with_body)

    def _read(self, path: str) -> bytes | None:
        file = (self.server.folder / path).resolve()
        if not file.is_relative_to(self.server.folder) or not file.is_file():
            return None
        return file.read_bytes()

    def _send(self, status: int, content: bytes, kind: str, with_body: bool) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if with_body:
            self.wfile.write(content)


def watch(
    sources: Sequence[str],
    folder: Path,
    build: Callable[[str], None],
    say: Callable[[str], None],
    port: int = 0,
) -> None:
    """Call `build(version)` now and whenever the sources change, and serve the folder, until interrupted.

    What is wrong with the sources at the first build is raised; later it is said, and the last page stays.
    """
    with ReportServer(folder, port) as server:
        seen = signature(sources)
        rest = _rebuild(build, server, say)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            say(f"watching: {server.url}  (end with Ctrl-C)")
            while True:
                time.sleep(max(POLL_SECONDS, rest))
                before_that, seen = seen, signature(sources)
                if seen != before_that:
                    rest = _rebuild(build, server, say)
        except KeyboardInterrupt:
            say("watching ended")
        finally:
            signal.signal(signal.SIGTERM, before)
            server.shutdown()


def _rebuild(build: Callable[[str], None], server: ReportServer, say: Callable[[str], None]) -> float:
    """Build the next version; returns for how many seconds to rest after that."""
    version = secrets.token_hex(4)
    began = time.monotonic()
    try:
        build(version)
        server.build = version
    except UserError as problem:
        if not server.build:  # the first one
            raise
        say(f"not rebuilt: {problem}")
    return REST * (time.monotonic() - began)


def signature(sources: Sequence[str]) -> tuple[Any, ...]:
    """Something that changes when the records do (their names, sizes, times), and every so often anyway."""
    files = []
    for path in (path for source in sources for path in _records(source)):
        try:
            status = os.stat(path)
        except OSError:  # deleted since it was listed, or no path of this machine at all
            continue
        files.append((path, status.st_size, status.st_mtime_ns))
    return (int(time.time() / AGEING_SECONDS), *sorted(files))


def _records(source: str) -> Iterator[str]:
    yield source  # a file; for a folder, its own time tells of runs that came or went
    for folder, inner, names in os.walk(source):
        inner[:] = [name for name in inner if not name.startswith(".")]
        yield from (os.path.join(folder, name) for name in names if _is_record(folder, name))


def _is_record(folder: str, name: str) -> bool:
    """Whether a run may be in it; not so our own tables, which each build writes anew."""
    if name.endswith(".wandb"):
        return True
    return any(reader.is_one(name) and reader.is_run(Path(folder, name), None) for reader in READERS.values())
