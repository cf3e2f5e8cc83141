"""A sweep from its file to its report."""

import math
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from ampcompare.errors import UserError, one_line
from ampcompare.program.console import print_line
from ampcompare.program.files import make_folder
from ampcompare.program.place import as_typed
from ampcompare.program.stopping import WORDS, heard
from ampcompare.report.words import plural
from ampcompare.sweeps.cluster.array import Array
from ampcompare.sweeps.decide import Decisions, Look, check_can_be_decided, fill_first_look
from ampcompare.sweeps.display import SweepDisplay, print_best
from ampcompare.sweeps.prepare import Prepared, Request, prepare
from ampcompare.sweeps.process import Launch, of_others
from ampcompare.sweeps.queue import Queue
from ampcompare.sweeps.search import load_optuna
from ampcompare.sweeps.worker import Stop, Workers

EXIT_FAILED_RUNS = 1
SAME_REQUEST_SECONDS = 0.3
STOP_SIGNALS = tuple(WORDS)


def run_sweep(path: str, words: Sequence[str], console: Console, request: Request) -> int:
    """Run what is left of the sweep in the file, a path or the name of one that comes along.

    Returns the exit code: 0 if every run finished or was stopped by hyperband; 1 if some failed; 3 if they
    repeat a publication that is not reproduced; 128 + signal if stopped by Ctrl-C or a batch system. Raises
    UserError, with nothing started, for a bad file, bad words or a storage that cannot be used.
    """
    ready = prepare(path, words, request)
    if ready.sweep.learns:
        load_optuna()
    if ready.looks:
        check_can_be_decided(ready.sweep, ready.looks)
    folder = make_output(ready.output)
    if Array(folder).has_begun:
        is_filled = (folder / "sweep.db").exists()  # then it is no array's alone
        todo = "run the rest here with --fill" if is_filled else "go on with --cluster, or here with --fill"
        raise UserError(f"output_dir={folder}: the sweep in there is a job array; see --missing, {todo}")
    queue = queue_of(ready)
    for line in ready.said:
        print_line(console, one_line(line))
    if ready.looks:
        check_can_be_decided(queue.sweep, ready.looks)
        fill_first_look(queue, ready.looks)
    return run_to_report(queue, ready, console)


def run_to_report(queue: Queue, ready: Prepared, console: Console, *asked: str) -> int:
    """See all runs of the queue through, and say what came out. `asked` are options without a value, to go on
    with. Returns the exit code, as `run_sweep`.
    """
    folder = make_output(ready.output)
    if received := work_through(queue, ready, folder, console):
        todo = f"go on with: {ready.again(*asked)}"
        print_line(console, one_line(f"stopped: finished runs stay finished; {todo}"))
        return 128 + received[0]
    rows = queue.rows()
    print_best(console, queue, rows)
    bad = [row.run_id for row in rows if row.state in ("failed", "lost")]
    print_failed(console, bad, queue.sweep.total() or len(rows), folder)
    status = 0
    if ready.sweep.on_server:  # this disk has those runs only that filled holes
        print_line(console, one_line(f"compare them with: {as_typed('ampcompare', 'report', ready.file)}"))
    elif ready.request.report:
        from ampcompare.sweeps.answer import report

        status = report(console, queue.sweep, folder)
    return EXIT_FAILED_RUNS if bad else status


def queue_of(ready: Prepared) -> Queue:
    """The queue of a sweep."""
    grace = ready.request.grace_seconds
    return Queue(ready.sweep, ready.url, ready.sweep.name, grace, ready.words, ready.told)


def launch_of(ready: Prepared, folder: Path) -> Launch:
    """How its runs are started, into this folder."""
    words = (*ready.words, f"output_dir={folder}") if ready.here else ready.words
    # The sweep anew, without its points: to the jobs of an array it travels with each run.
    return Launch(replace(ready.sweep), folder, words, {} if ready.here else of_others(), ready.here)


def work_through(queue: Queue, ready: Prepared, folder: Path, console: Console) -> list[int]:
    """See all runs of the queue through by workers of this process; with looks, round after round until all
    is decided. Returns the signals that ended it before.
    """
    gpus = [] if ready.on_cpu else visible_gpus()
    launch = launch_of(ready, folder)
    stop, display = Stop(), SweepDisplay(console, queue, queue.progress())

    def workers() -> int:
        total, most = queue.sweep.total(), ready.request.workers or max(1, len(gpus))
        return min(most, max(1, total - display.progress.done)) if total else most

    def look() -> Look:
        from ampcompare.sweeps.answer import look_at

        return look_at(queue.sweep, folder, queue.rows())

    for line in _begins(display, folder, workers(), len(gpus), ready.planned):
        display.say(line)
    with stopped_by_signals(stop.asked, stop.at_once, display.say) as received, display:
        queue.database.say, queue.database.patience = display.say, stop.patience
        with Workers(queue, launch, stop, display) as crew:
            decisions = Decisions(queue, ready.looks, look, display.say)
            crew.see_round(workers(), gpus)
            while ready.looks and not stop.asked.is_set() and decisions.go_on():
                crew.see_round(workers(), gpus)
        if not received:
            display.close()
    return received


def visible_gpus() -> list[str]:
    """One CUDA_VISIBLE_DEVICES value per GPU that this process may use; empty where there is none."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        names = [name.strip() for name in given.split(",")]
        # CUDA takes the list up to the first name that is none, such as -1.
        valid = next((i for i, name in enumerate(names) if not name or name.startswith("-")), len(names))
        return names[:valid] if _gpu_count() else []
    return [str(index) for index in range(_gpu_count())]


def _gpu_count() -> int:
    import pynvml

    try:
        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:  # no driver, no GPU
        return 0


def _begins(display: SweepDisplay, folder: Path, workers: int, gpus: int, planned: str) -> Iterator[str]:
    """What runs here, as it begins."""
    sweep, done = display.queue.sweep, display.progress.done
    total = sweep.total()
    parts = [f"{sweep.name}: {sweep.method}", f"{total} runs" if total else "runs until Ctrl-C (no run_cap)"]
    parts += [f"{done} of them done before"] if done else []
    parts.append(plural(workers, "worker"))
    if workers > max(1, gpus):
        shared = plural(gpus, "GPU") if gpus else "this machine's processor"
        parts.append(f"sharing {shared}, so their times are not comparable")
    yield f"{', '.join(parts)}, in {folder}"
    if planned:
        yield f"planned: {planned}"


def print_failed(console: Console, run_ids: Sequence[str], total: int, folder: Path) -> None:
    """How many runs failed, and where their output is, if any did."""
    if run_ids:
        ids = ", ".join(run_ids[:5]) + (", ..." if len(run_ids) > 5 else "")
        count = f"{len(run_ids)} of {total} runs failed ({ids})"
        print_line(console, one_line(f"{count}; their output is in {folder / 'logs'}"))


def make_output(output: Path) -> Path:
    """The folder of the runs, made with what has to be in it. Raises UserError."""
    option = f"output_dir={str(output)!r}"
    folder = make_folder(output, option).resolve()
    for inner in ("logs", "wandb"):
        make_folder(folder / inner, option)
    return folder


@contextmanager
def stopped_by_signals(stop: threading.Event, kill: threading.Event, say: Any) -> Iterator[list[int]]:
    """Ctrl-C, a batch system, the terminal's end: let the runs end; a further Ctrl-C: at once. Yields them.

    A batch system warns with one signal and ends with another, and the runs need the time in between.
    """
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
            say("stopping: waiting for the runs to end (Ctrl-C: at once)")
        elif number == signal.SIGINT:
            kill.set()

    before = {number: signal.signal(number, handle) for number in heard(STOP_SIGNALS)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
