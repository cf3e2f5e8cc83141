"""A `python` that needs no time to load PyTorch and W&B's client: half of the time of a short training.

`programs()` is a folder with the programs `python` and `ampcompare`. Each call of them is a fork of one
process that has loaded what a training loads. The fork has the arguments, the folder, the environment and the
open files of the call. It is in the call's process group, unless the caller is in another session. It gets
the signals of the call, and the call ends as the fork ends. What /proc tells of a fork's first environment
and of its parent is that of the process that was forked, so tests that look for processes by these take
`sys.executable`, as do tests of the start itself.
"""

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
# The programs, and the arguments that each of them has before its own.
MODULES = {"python": "", "ampcompare": "-m ampcompare "}


@functools.cache
def programs() -> Path:
    """Return the folder with the programs; start the process that they fork when it is first called."""
    folder = Path(tempfile.mkdtemp(prefix="warm-python-"))
    reader, writer = os.pipe()  # the process ends when the pipe is closed, however this process ends
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    command = [sys.executable, str(HERE / "server.py"), str(folder / "socket")]
    server = subprocess.Popen(command, stdin=reader, stdout=subprocess.PIPE, env=environment)
    os.close(reader)
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    client = f'exec "{sys.executable}" -ISE "{HERE / "client.py"}" "{sys.executable}" "{folder}"'
    for name, words in MODULES.items():
        (folder / name).write_text(f'#!/bin/sh\n{client} {words}"$@"\n')
        (folder / name).chmod(0o755)

    def end() -> None:
        os.close(writer)
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    return folder


def python() -> str:
    """Return the path of the `python` among the programs."""
    return str(programs() / "python")
