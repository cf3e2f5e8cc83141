"""`ampcompare report --watch`: rebuild the report when its records change, and serve it to this machine."""

import os
import re
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from rich.console import Console

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
        folder: The folder of the report.
        port: The port; 0 for any free one.

    Raises:
        UserError: If the port cannot be used.
    """
    try:
        return ThreadingHTTPServer((HOST, port), partial(_Handler, directory=str(folder)))
    except (OSError, OverflowError) as problem:
        why = f"cannot be used ({reason(problem)})"
        raise UserError(f"--port {port}: {why}; choose another port, or 0 for any free port") from None


def watch_report(options: ReportOptions, console: Console) -> None:
    """Serve the report, and rebuild it whenever the sources change, until Ctrl-C.

    Pictures are drawn at the end only. The browser shows a new page when the reader reloads it. If a later
    build fails, the reason is printed and the last page stays.

    Args:
        options: What to compare, and what to write.
        console: Where to print.

    Raises:
        UserError: If the first build fails, or the port cannot be used.
    """
    folder = make_folder(Path(options.out), f"--out {options.out!r}")
    paths = [split_arm(source)[1] for source in options.sources]
    quick = [kind for kind in options.chosen_formats if kind not in PICTURES]
    analysis, last_signature, last_line = None, None, ""
    with serve(folder, options.port) as server, StopRequest() as stop:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            while not stop.is_made():
                began = time.process_time()
                if (now := file_signature(paths)) != last_signature:
                    last_signature = now
                    try:
                        with messages_on(Console(quiet=True)):  # the same messages at each build
                            analysis = options.analyse()
                        write_report(analysis, folder, quick)
                        line = f"{plural(len(analysis.table), 'run')}: {analysis.headline}"
                    except UserError as problem:
                        if not last_line:
                            raise
                        line = f"not rebuilt: {problem}"
                    if line != last_line:
                        say(console, line)
                    if not last_line:
                        where = f"http://{HOST}:{server.server_port}/"
                        say(
                            console, f"watching: {where}  (reload the page for new results; stop with Ctrl-C)"
                        )
                    last_line = line
                stop.wait(max(POLL_SECONDS, REST_FACTOR * (time.process_time() - began)))
        finally:
            server.shutdown()
    say(console, "watching ended")
    if analysis is not None:
        print_written(write_report(analysis, folder, options.chosen_formats), folder, console)


def file_signature(sources: Sequence[str]) -> tuple[Any, ...]:
    """Return a value that changes when a file of the sources changes, and every REBUILD_SECONDS.

    It consists of names, sizes and times. The files of a report do not count: each build writes them.
    """
    files = []
    for source in sources:
        for folder, inner, names in os.walk(source) if os.path.isdir(source) else [("", [], [source])]:
            inner[:] = [name for name in inner if not name.startswith(".")]
            for path in (os.path.join(folder, name) for name in names if not SERVED.fullmatch(f"/{name}")):
                with suppress(OSError):  # deleted since it was listed, or not a path of this machine
                    status = os.stat(path)
                    files.append((path, status.st_size, status.st_mtime_ns))
    return (int(time.time() / REBUILD_SECONDS), *sorted(files))
