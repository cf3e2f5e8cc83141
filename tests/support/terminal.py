"""A program in a terminal of its own, which can go away as with a lost connection."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import termios
from collections.abc import Sequence
from pathlib import Path


def _take_terminal() -> None:
    """In the new process, before the program."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """Starts the program."""

    def __init__(self, command: Sequence[str], cwd: Path, **env: str) -> None:
        self._ours, theirs = pty.openpty()
        self.said = b""
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            env=os.environ | env,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(theirs)

    def wait_for(self, words: bytes) -> None:
        """Read until the program has said so."""
        while words not in self.said:
            self.said += os.read(self._ours, 65_536)

    def hang_up(self) -> int:
        """The terminal goes; returns the program's exit code."""
        os.close(self._ours)
        return self.process.wait()
