"""A sweep from its file to its report."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from ampcompare.config import split_override
from ampcompare.errors import UserError
from ampcompare.sweeps.check import check_sweep, trains_here
from ampcompare.sweeps.definition import Sweep, read_sweep
from ampcompare.sweeps.devices import visible_gpus
from ampcompare.sweeps.display import SweepDisplay, print_best
from ampcompare.sweeps.process import Guard
from ampcompare.sweeps.search import Search, sqlite_url
from ampcompare.sweeps.worker import Worker, Workplace

EXIT_FAILED_RUNS = 1
ENDED = ("finished", "failed", "stopped", "lost")


def run_sweep(
    path: str,
    words: Sequence[str],
    console: Console,
    *,
    workers: int | None = None,
    storage: str | None = None,
    name: str | None = None,
    grace_seconds: float = 60.0,
) -> int:
    """Run what is left of the sweep in the file; returns the exit code.

    0: every run finished or was stopped by hyperband; 1: some failed; 128 + signal: stopped by Ctrl-C or SIGTERM.
    Raises UserError, with nothing started, for a bad file, bad words or a storage that cannot be used.
    """
    sweep = read_sweep(path)
    if name:
        sweep = dataclasses.replace(sweep, name=name)
    check_name(sweep.name)
    check_sweep(sweep, words)
    given = dict(split_override(word) for word in words)
    folder = Path(given.get("output_dir") or Path("runs") / sweep.name).resolve()
    make_folder(folder)
    if trains_here(sweep):
        words = [*(word for word in words if split_override(word)[0] != "output_dir"), f"output_dir={folder}"]
        if "resume" not in given:
            words.append("resume=auto")  # a run that is tried again has the same id
    gpus = [] if given.get("device", "").startswith("cpu") else visible_gpus()
    count = workers or max(1, len(gpus))
    search = Search(sweep, storage or sqlite_url(folder), sweep.name, grace_seconds)

    before = [row for row in search.rows() if row.state in ENDED]
    total = sweep.total()
    _headline(console, sweep, folder, count, gpus, len(before))
    display = SweepDisplay(console, sweep, count, len(before))
    stop, kill = threading.Event(), threading.Event()
    guard = Guard()
    place = Workplace(sweep, search, folder, tuple(words), guard, stop, kill, display.change, display.waiting)
    crew = [Worker(i, place, gpus[i % len(gpus)] if gpus else None) for i in range(count)]
    with _signals(stop, kill, display.say) as received, display:
        for worker in crew:
            worker.start()
        for worker in crew:
            while worker.is_alive():  # join() alone would keep signals waiting
                worker.join(0.2)
    guard.close()
    for worker in crew:
        if worker.problem:
            raise worker.problem

    rows = search.rows()
    bad = [row for row in rows if row.state in ("failed", "lost")]
    if received:
        again = f"ampcompare sweep {path}" + "".join(f" {word}" for word in given_words(given))
        console.print(f"stopped: finished runs stay finished; go on with: {again}", markup=False, soft_wrap=True)
        return 128 + received[0]
    print_best(console, sweep, rows)
    if bad:
        ids = ", ".join(row.run_id for row in bad[:5]) + (", ..." if len(bad) > 5 else "")
        text = f"{len(bad)} of {total or len(rows)} runs failed ({ids}); their output is in {folder / 'logs'}"
        console.print(text, markup=False, soft_wrap=True)
    _report(console, folder)
    return EXIT_FAILED_RUNS if bad else 0


def given_words(given: dict[str, str]) -> list[str]:
    """Words as they would be typed again."""
    import shlex

    return [shlex.quote(f"{key}={value}") for key, value in given.items()]


def check_name(name: str) -> None:
    """The name of a sweep becomes a folder and W&B's group. Raises UserError."""
    import re

    if not re.fullmatch(r"[^\x00-\x1f/\\:]{1,100}", name) or name in (".", ".."):
        raise UserError(f"name={name!r}: expected 1 to 100 characters that can be a folder's name; set name or --name")


def make_folder(folder: Path) -> None:
    """The output folder. Raises UserError where it cannot be made or written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe.{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise UserError(f"output_dir={str(folder)!r}: cannot be written ({reason}); name another folder") from None


@contextmanager
def _signals(stop: threading.Event, kill: threading.Event, say: Any) -> Iterator[list[int]]:
    """Ctrl-C or SIGTERM once: let the runs end in order. Twice: at once. Yields the list of what was received."""
    received: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) == 1:
            stop.set()
            say("stopping: waiting for the runs to end (again: at once)")
        else:
            kill.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
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
    console.print(f"{', '.join(parts)}, in {folder}", markup=False, highlight=False, soft_wrap=True)


def _report(console: Console, folder: Path) -> None:
    """The table by backend and the page, where the runs left records."""
    from ampcompare.records import load_runs
    from ampcompare.report import analyse_runs, prepare_folder, write_page
    from ampcompare.report.table import print_table

    if not any((folder / "wandb").glob("*run-*/run-*.wandb")):
        console.print(f"no report: the runs left no W&B record under {folder}", markup=False, soft_wrap=True)
        return
    analysis = analyse_runs(load_runs([folder]))
    print_table(analysis, console)
    page = write_page(analysis, prepare_folder(folder / "report"))
    console.print(f"report: {page}", markup=False, soft_wrap=True)
