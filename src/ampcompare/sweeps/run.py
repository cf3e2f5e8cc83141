"""A sweep from its file to its report."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from ampcompare.config.load import split_override
from ampcompare.errors import UserError, one_line
from ampcompare.program.console import print_line
from ampcompare.program.files import make_folder
from ampcompare.program.place import as_typed, find_shipped
from ampcompare.program.stopping import heard
from ampcompare.sweeps.check import problems_of, trains_here
from ampcompare.sweeps.devices import visible_gpus
from ampcompare.sweeps.display import SweepDisplay, print_best
from ampcompare.sweeps.file.sweep import Sweep, read_sweep
from ampcompare.sweeps.process import Guard
from ampcompare.sweeps.search import Search
from ampcompare.sweeps.storage import shown, sqlite_url
from ampcompare.sweeps.worker import Worker, WorkerContext

EXIT_FAILED_RUNS = 1
GRACE_SECONDS = 60.0
SAME_REQUEST_SECONDS = 0.3
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ENDED = ("finished", "failed", "stopped", "lost")


def run_sweep(
    path: str,
    words: Sequence[str],
    console: Console,
    *,
    workers: int | None = None,
    storage: str | None = None,
    name: str | None = None,
    grace_seconds: float = GRACE_SECONDS,
) -> int:
    """Run what is left of the sweep in the file, a path or the name of one that comes along.

    Returns the exit code: 0 if every run finished or was stopped by hyperband; 1 if some failed; 128 + signal
    if stopped by Ctrl-C or SIGTERM. Raises UserError, with nothing started, for a bad file, bad words or a
    storage that cannot be used.
    """
    given = dict(split_override(word) for word in words)
    sweep = read_sweep(find_sweep(path), lambda found, is_whole: problems_of(found, words, is_whole))
    if name is not None:
        sweep = dataclasses.replace(sweep, name=name)
    check_name(sweep.name)
    if storage is not None and not storage.strip():
        raise UserError(f"--storage {storage!r}: expected the URL of a database, or leave the option out")
    output = Path(given.get("output_dir") or Path("runs") / sweep.name)
    option = f"output_dir={str(output)!r}"
    folder = make_folder(output, option).resolve()
    for inner in ("logs", "wandb"):
        make_folder(folder / inner, option)
    own = [word for word in words if split_override(word)[0] != "output_dir"]
    here = trains_here(sweep)
    gpus = [] if given.get("device", "").startswith("cpu") else visible_gpus()
    search = Search(sweep, storage or sqlite_url(folder), sweep.name, grace_seconds, own)

    before = [row for row in search.rows() if row.state in ENDED]
    total = sweep.total()
    count = min(workers or max(1, len(gpus)), max(1, total - len(before)) if total else sys.maxsize)
    _headline(console, sweep, folder, count, gpus, len(before))
    display = SweepDisplay(console, sweep, count, len(before))
    stop, kill = threading.Event(), threading.Event()
    guard = Guard()
    # A run that is tried again has the same id, and goes on from its checkpoint.
    again = [] if "resume" in given else ["resume=auto"]
    behind = (*own, *again, f"output_dir={folder}") if here else tuple(own)
    told = (display.change, display.waiting)
    context = WorkerContext(sweep, search, folder, behind, guard, here, stop, kill, *told)
    threads = [Worker(i, context, gpus[i % len(gpus)] if gpus else None) for i in range(count)]
    with _signals(stop, kill, display.say) as received, display:
        for worker in threads:
            worker.start()
        for worker in threads:
            while worker.is_alive():  # join() alone would keep signals waiting
                worker.join(0.2)
    guard.close()
    for worker in threads:
        if worker.problem:
            raise worker.problem

    rows = search.rows()
    bad = [row for row in rows if row.state in ("failed", "lost")]
    if received:
        grace = grace_seconds if grace_seconds != GRACE_SECONDS else None
        kept_storage = storage and shown(search.url)
        options = {"--workers": workers, "--storage": kept_storage, "--name": name, "--grace": grace}
        again = [f"{key}={value}" for key, value in (options | given).items() if value is not None]
        command = as_typed("ampcompare", "sweep", path, *again)
        print_line(console, one_line(f"stopped: finished runs stay finished; go on with: {command}"))
        return 128 + received[0]
    print_best(console, sweep, rows)
    if bad:
        ids = ", ".join(row.run_id for row in bad[:5]) + (", ..." if len(bad) > 5 else "")
        text = f"{len(bad)} of {total or len(rows)} runs failed ({ids}); their output is in {folder / 'logs'}"
        print_line(console, one_line(text))
    _report(console, sweep, folder)
    return EXIT_FAILED_RUNS if bad else 0


def find_sweep(name: str) -> Path:
    """The file that a path, or the name of one of our sweeps, stands for; the path if there is none."""
    with contextlib.suppress(OSError, ValueError):  # whoever reads it says what is wrong with the name
        return find_shipped(name, "sweeps") or Path(name)
    return Path(name)


def check_name(name: str) -> None:
    """The name of a sweep becomes a folder and W&B's group. Raises UserError."""
    import re

    is_word = re.fullmatch(r"[^\x00-\x1f\x7f/\\:\ud800-\udfff]{1,100}", name) and name.strip(" .")
    if not is_word or len(name.encode()) > 200:
        expected = "expected 1 to 100 characters that can be a folder's name"
        raise UserError(f"name={name!r}: {expected}; set name or --name")


@contextmanager
def _signals(stop: threading.Event, kill: threading.Event, say: Any) -> Iterator[list[int]]:
    """Ctrl-C, SIGTERM, the terminal's end: once, let the runs end; twice, at once. Yields what came."""
    received: list[int] = []
    last = -math.inf

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < SAME_REQUEST_SECONDS:  # a terminal and a wrapper may both send it
            return
        last = now
        received.append(number)
        if len(received) == 1:
            stop.set()
            say("stopping: waiting for the runs to end (again: at once)")
        else:
            kill.set()

    before = {number: signal.signal(number, handle) for number in heard(STOP_SIGNALS)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _headline(console: Console, sweep: Sweep, folder: Path, workers: int, gpus: list[str], done: int) -> None:
    total = sweep.total()
    runs = f"{total} runs" if total else "runs until Ctrl-C (no run_cap)"
    parts = [f"{sweep.name}: {sweep.method}, {runs}"]
    if done:
        parts.append(f"{done} of them done before")
    parts.append(f"{workers} {'worker' if workers == 1 else 'workers'}")
    if workers > max(1, len(gpus)):
        shared = f"{len(gpus)} {'GPU' if len(gpus) == 1 else 'GPUs'}" if gpus else "this machine's processor"
        parts.append(f"sharing {shared}, so their times are not comparable")
    print_line(console, one_line(f"{', '.join(parts)}, in {folder}"))


def _report(console: Console, sweep: Sweep, folder: Path) -> None:
    """The table and the page, where the runs left records."""
    from ampcompare.report.command import Request, make_report
    from ampcompare.report.outputs import FORMATS, PICTURES

    if not any((folder / "wandb").glob("*run-*/run-*.wandb")):
        print_line(console, one_line(f"no report: the runs left no W&B record under {folder}"))
        return
    keys = [p.key for p in sweep.parameters if p.kind != "constant" and p.key != "seed"]
    by = sorted(keys, key=lambda key: key != "backend") or ["backend"]
    # A grid has the same values under every backend; a search has its own, and is compared by backend.
    groups, ignored = (by, by[:0]) if sweep.is_grid else (["backend"], [k for k in by if k != "backend"])
    values = [str(p.grid_value(0)) for p in sweep.parameters if p.key == groups[0] and p.is_listed]
    baseline = "none" if groups[0] == "backend" else values[0]
    formats = tuple(name for name in FORMATS if name not in PICTURES)
    out = str(folder / "report")
    how: dict[str, Any] = {"group_by": tuple(groups), "ignore": tuple(ignored), "formats": formats}
    try:
        make_report(Request([str(folder)], out, baseline, **how), console)
    except UserError as problem:
        print_line(console, one_line(f"no report: {problem}"))
