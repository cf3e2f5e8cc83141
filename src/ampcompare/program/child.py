"""A program that this one starts and waits for: what ends this one ends it, too."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from ampcompare.program.stopping import WORDS, heard, signal_of


def see_through(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a program that ends in order by itself when it is told to, by Ctrl-C too. Returns its exit code,
    128 + the signal where one has killed it.
    """
    with subprocess.Popen(words, env=dict(environment)) as process, _handing_on(process):
        while process.poll() is None:
            with suppress(KeyboardInterrupt):  # of the terminal, which the program has heard as well
                process.wait()
    return process.returncode if process.returncode >= 0 else 128 + signal_of(process.returncode)


@contextmanager
def _handing_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """What a batch system or a terminal's end sends goes to the process; Ctrl-C it hears itself."""
    numbers: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        numbers.append(number)
        process.send_signal(number)

    here = threading.current_thread() is threading.main_thread()  # nowhere else may handlers be set
    before = {n: signal.signal(n, hear) for n in heard(WORDS) if here and n != signal.SIGINT}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if numbers:
        raise SystemExit(128 + numbers[0])
