"""A `python` that needs no time to load PyTorch and W&B's client: half of the time of a short training.

`programs()` is a folder with the programs `python` and `ampcompare`. Each call of them is a fork of one
process that has loaded what a training loads. All workers of pytest-xdist share this process. The fork has
the arguments, the folder, the environment and the open files of the call. It is in its process group, unless
the caller is in another session. It gets the signals of the call, and the call ends as the fork ends. What
/proc tells of a fork's first environment and of its parent is that of the process that was forked.
So tests that look for processes by these take `sys.executable`, as do tests of the start itself.
"""

import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from filelock import FileLock

HERE = Path(__file__).parent
# The programs, and the arguments that each of them has before its own.
MODULES = {"python": "", "ampcompare": "-m ampcompare "}


@functools.cache
def programs() -> Path:
    """Return the folder with the programs; start the process that they fork when it is first called.

    The folder and the process end with the pytest that the user started.
    """
    main = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    folder = Path(tempfile.gettempdir(), f"warm-python-{main}")
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            _start(folder, main)
    return folder


def _start(folder: Path, main: int) -> None:
    """Write the programs, and start the process that ends after the process `main`."""
    folder.mkdir()
    client = f'exec "{sys.executable}" -ISE "{HERE / "client.py"}" "{sys.executable}" "{folder}"'
    for name, words in MODULES.items():
        (folder / name).write_text(f'#!/bin/sh\n{client} {words}"$@"\n')
        (folder / name).chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    command = [sys.executable, str(HERE / "server.py"), str(folder), str(main)]
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"


def python() -> str:
    """Return the path of the `python` among the programs."""
    return str(programs() / "python")
