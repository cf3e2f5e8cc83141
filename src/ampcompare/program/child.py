"""A program that this one starts and waits for: what ends this one ends it, too."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from ampcompare.program.stopping import TAKEN_AWAY, heard


def answer_of(words: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a program that prints an answer. Ends this program, 128 + the signal, where one has come."""
    with (
        _handing_on() as started,
        subprocess.Popen(
            words, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process,
    ):
        started(process)
        try:
            out, err = process.communicate()
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(list(words), process.returncode, out, err)


def see_through(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a program that ends in order by itself when it is told to, by Ctrl-C too. Returns its exit code,
    128 + the signal where one has killed it.
    """
    with _handing_on() as started:
        process = subprocess.Popen(words, env=dict(environment), text=True)
        started(process)
        while process.poll() is None:
            with suppress(KeyboardInterrupt):  # of the terminal, which the program has heard as well
                process.wait()
    code = process.returncode
    return code if code >= 0 else 128 - code


@contextmanager
def _handing_on() -> Iterator[Callable[[subprocess.Popen[str]], None]]:
    """What a batch system or a terminal's end sends goes to the process that is named within."""
    numbers: list[int] = []
    processes: list[subprocess.Popen[str]] = []

    def hear(number: int, frame: FrameType | None) -> None:
        numbers.append(number)
        for process in processes:
            process.send_signal(number)

    def started(process: subprocess.Popen[str]) -> None:
        processes.append(process)
        for number in numbers:  # came between its start and here
            process.send_signal(number)

    here = threading.current_thread() is threading.main_thread()  # nowhere else may handlers be set
    before = {n: signal.signal(n, hear) for n in heard((*TAKEN_AWAY, signal.SIGHUP)) if here}
    try:
        yield started
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if numbers:
        raise SystemExit(128 + numbers[0])
