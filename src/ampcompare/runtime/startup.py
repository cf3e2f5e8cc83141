"""How a program of ours starts: in UTF-8 mode, with threads that sleep while they wait.

Large libraries are imported without the garbage collector.
"""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def use_utf8() -> None:
    """Start this process again in Python's UTF-8 mode, unless Python uses UTF-8 already.

    In bare containers and batch jobs (LC_ALL=C) Python decodes paths as ASCII. A path with another letter
    then becomes a text that W&B's client cannot send (seen with 0.31), and the run fails. The mode cannot be
    changed in a running interpreter. Arguments are passed on byte for byte.
    """
    if sys.getfilesystemencoding().lower().replace("-", "") != "utf8":
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])  # noqa: S606  no shell wanted


def let_threads_sleep() -> None:
    """Let PyTorch's threads sleep while they wait; to be called before PyTorch is loaded, here or in a child.

    By default the threads spin. One that another program keeps from its core makes all of them wait, so that
    steps that are timed beside other work take many times as long (two cores, a load of 8: 12 s for a step of
    ResNet50 that takes 1.3 s).
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@contextmanager
def import_without_collection() -> Iterator[None]:
    """Import large modules without the garbage collector, and leave what they hold out of later collections.

    The collector runs after so many new objects, and goes through all modules that are loaded, again and
    again and at the end of the process. Without this, a run of two steps takes 4.5 s of CPU time and with it
    3.5 s (medians of 5 runs each, in turns, on 2 cores of an Intel Xeon; torch 2.14.1, wandb 0.31.0).
    """
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()
