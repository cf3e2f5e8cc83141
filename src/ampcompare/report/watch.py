"""A report that keeps up with its runs: written anew when their records changed, served to this machine."""

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
from ampcompare.report.options import PICTURES, Request
from ampcompare.report.pipeline import say, tell
from ampcompare.report.writer import write_report
from ampcompare.runs.loader import split_arm
from ampcompare.runtime.atomic_files import make_folder
from ampcompare.runtime.formatting import plural
from ampcompare.runtime.messages import messages_on
from ampcompare.runtime.signals import StopRequest

HOST = "127.0.0.1"
POLL_SECONDS = 1.0  # between two readings of the sizes of the files, at least
REST = 4.0  # of the processor time of the last build: the runs that are watched may be measured here
AGEING_SECONDS = 30  # a run that stops writing is taken for dead after a while, though no file changes
# What a report consists of; the folder may hold more, and on a shared machine others can ask, too.
SERVED = re.compile(r"/(index\.html|comparison\.(csv|json|md)|charts/[a-z0-9-]+\.(png|svg))")


class _Handler(SimpleHTTPRequestHandler):
    server: ThreadingHTTPServer

    def send_head(self) -> Any:
        # A page elsewhere can point its own name at 127.0.0.1; its requests still carry that name.
        port = self.server.server_port
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            return self.send_error(403, "this server answers to its own address only")
        self.path = "/index.html" if self.path == "/" else self.path
        return super().send_head() if SERVED.fullmatch(self.path) else self.send_error(404)

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal shows the runs."""


def serve(folder: Path, port: int) -> ThreadingHTTPServer:
    """A server of the folder to this machine alone, not yet running. Raises UserError."""
    try:
        return ThreadingHTTPServer((HOST, port), partial(_Handler, directory=str(folder)))
    except (OSError, OverflowError) as problem:
        why = f"cannot be had ({reason(problem)})"
        raise UserError(f"--port {port}: {why}; name another, or 0 for any free one") from None


def watch_report(request: Request, console: Console) -> None:
    """Write the page now and whenever the sources change, and serve it, until interrupted; the pictures at
    the end. The page in the browser stays as it is until its reader reloads it.

    What is wrong with the sources at first is raised; later it is said, and the last page stays.
    """
    folder = make_folder(Path(request.out), f"--out {request.out!r}")
    places = [split_arm(source)[1] for source in request.sources]
    quick = [kind for kind in request.kinds if kind not in PICTURES]
    analysis, seen, said = None, None, ""
    # Ctrl-C also ends the processes that read records, which is a KeyboardInterrupt here; so is a second one.
    with serve(folder, request.port) as server, StopRequest() as stop, suppress(KeyboardInterrupt):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            while not stop.is_made():
                began = time.process_time()
                if (now := signature(places)) != seen:
                    seen = now
                    try:
                        with messages_on(Console(quiet=True)):  # at each build the same
                            analysis = request.analyse()
                        write_report(analysis, folder, quick)
                        line = f"{plural(len(analysis.table), 'run')}: {analysis.headline}"
                    except UserError as problem:
                        if not said:
                            raise
                        line = f"not rebuilt: {problem}"
                    if line != said:
                        say(console, line)
                    if not said:
                        where = f"http://{HOST}:{server.server_port}/"
                        say(console, f"watching: {where}  (reload to see more; end with Ctrl-C)")
                    said = line
                stop.wait(max(POLL_SECONDS, REST * (time.process_time() - began)))
        finally:
            server.shutdown()
    say(console, "watching ended")
    if analysis is not None:
        tell(write_report(analysis, folder, request.kinds), folder, console)


def signature(sources: Sequence[str]) -> tuple[Any, ...]:
    """Something that changes when the sources' files do (names, sizes, times), but those of a report, which
    each build writes anew; and every so often anyway.
    """
    found = []
    for source in sources:
        for folder, inner, names in os.walk(source) if os.path.isdir(source) else [("", [], [source])]:
            inner[:] = [name for name in inner if not name.startswith(".")]
            for path in (os.path.join(folder, name) for name in names if not SERVED.fullmatch(f"/{name}")):
                with suppress(OSError):  # deleted since it was listed, or no path of this machine at all
                    status = os.stat(path)
                    found.append((path, status.st_size, status.st_mtime_ns))
    return (int(time.time() / AGEING_SECONDS), *sorted(found))
