"""`ampcompare report --watch`: rebuild the report when its records change, and serve it to this machine."""

import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from rich.console import Console

from ampcompare.analysis.analysis import Analysis
from ampcompare.errors import UserError, reason
from ampcompare.report.options import PICTURES, ReportOptions
from ampcompare.report.pipeline import print_written, say, write_report
from ampcompare.runs.loader import split_arm
from ampcompare.runtime.atomic_files import make_folder
from ampcompare.runtime.console import messages_on
from ampcompare.runtime.formatting import plural
from ampcompare.runtime.signals import StopRequest

HOST = "127.0.0.1"
POLL_SECONDS = 1.0  # at least, between two checks of the files
# Multiples of the processor time of the last build to wait: the watched runs may be measured on this machine.
REST_FACTOR = 4.0
REBUILD_SECONDS = 30  # also without a change: a run that stops writing counts as crashed after a while
# The files of a report. The folder may hold others, and other users of the machine can send requests.
SERVED = re.compile(r"/(index\.html|comparison\.(csv|json|md)|charts/[a-z0-9-]+\.(png|svg))")


class _Handler(SimpleHTTPRequestHandler):
    server: ThreadingHTTPServer

    def send_head(self) -> Any:
        # A page elsewhere can point its own name at 127.0.0.1; its requests still carry that name.
        port = self.server.server_port
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            return self.send_error(403, "this server only answers requests for its own address")
        self.path = "/index.html" if self.path == "/" else self.path
        return super().send_head() if SERVED.fullmatch(self.path) else self.send_error(404)

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: the terminal shows the runs."""


def serve(folder: Path, port: int) -> ThreadingHTTPServer:
    """Return a server of the folder for this machine alone, not yet running.

    Args:
        port: The port; 0 for any free one.

    Raises:
        UserError: If the port cannot be used.
    """
    try:
        return ThreadingHTTPServer((HOST, port), partial(_Handler, directory=str(folder)))
    except (OSError, OverflowError) as problem:
        raise UserError(
            f"--port {port}: cannot be used ({reason(problem)}); choose another port, or 0 for any free port"
        ) from None


def watch_report(options: ReportOptions, console: Console) -> None:
    """Serve the report, and rebuild it whenever the sources change, until Ctrl-C.

    Pictures are drawn at the end only. The browser shows a new page when the reader reloads it. If a later
    build fails, the reason is printed and the last page stays.

    Raises:
        UserError: If the first build fails, or the port cannot be used.
    """
    folder = make_folder(Path(options.out), f"--out {options.out!r}")
    build = _WatchedReport(options, folder, console)
    with serve(folder, options.port) as server, StopRequest() as stop:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://{HOST}:{server.server_port}/"
        try:
            while not stop.is_made():
                began = time.process_time()
                is_first = build.analysis is None
                build.update()
                if is_first and build.analysis is not None:
                    say(console, f"watching: {url}  (reload the page for new results; stop with Ctrl-C)")
                stop.wait(max(POLL_SECONDS, REST_FACTOR * (time.process_time() - began)))
        finally:
            server.shutdown()
    say(console, "watching ended")
    if build.analysis is not None:
        print_written(write_report(build.analysis, folder, options.chosen_formats), folder, console)


class _WatchedReport:
    """A report that is built again when its sources have changed.

    Attributes:
        analysis: The last analysis; None before the first.
    """

    def __init__(self, options: ReportOptions, folder: Path, console: Console) -> None:
        self.analysis: Analysis | None = None
        self._options = options
        self._folder = folder
        self._console = console
        self._formats = [kind for kind in options.chosen_formats if kind not in PICTURES]
        self._paths = [split_arm(source)[1] for source in options.sources]
        self._signature: tuple[Any, ...] | None = None
        self._printed = ""  # the last line about a build

    def update(self) -> None:
        """Build the report if a source has changed, and print the result if it has changed.

        Raises:
            UserError: If the first build fails.
        """
        signature = file_signature(self._paths)
        if signature == self._signature:
            return
        self._signature = signature
        try:
            line = self._build()
        except UserError as problem:
            if not self._printed:
                raise
            line = f"not rebuilt: {problem}"
        if line != self._printed:
            say(self._console, line)
        self._printed = line

    def _build(self) -> str:
        with messages_on(Console(quiet=True)):  # the same messages at each build
            self.analysis = self._options.analyse()
        write_report(self.analysis, self._folder, self._formats)
        return f"{plural(len(self.analysis.table), 'run')}: {self.analysis.headline}"


def file_signature(sources: Sequence[str]) -> tuple[Any, ...]:
    """Return a value that changes when a file of the sources changes, and every REBUILD_SECONDS.

    It consists of names, sizes and times. The files of a report do not count: each build writes them.
    """
    files = []
    for path in _list_files(sources):
        with suppress(OSError):  # deleted since it was listed, or not a path of this machine
            status = os.stat(path)
            files.append((path, status.st_size, status.st_mtime_ns))
    return (int(time.time() / REBUILD_SECONDS), *sorted(files))


def _list_files(sources: Sequence[str]) -> Iterator[str]:
    """Yield the files of the sources, without those of a report."""
    for source in sources:
        if not os.path.isdir(source):
            if not SERVED.fullmatch(f"/{source}"):
                yield source
            continue
        for folder, inner, names in os.walk(source):
            inner[:] = [name for name in inner if not name.startswith(".")]
            for name in names:
                if not SERVED.fullmatch(f"/{name}"):
                    yield os.path.join(folder, name)
