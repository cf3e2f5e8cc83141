"""How a program starts: in UTF-8 mode, with sleeping threads, without collecting garbage."""

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
    """Let PyTorch's threads sleep while they wait. Call it before PyTorch is loaded.

    By default the threads spin. If another program takes the core of one thread, all others wait for it, so
    timed steps take many times as long (on two cores with a load of 8, 12 s instead of 1.3 s for a step of
    ResNet50).
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@contextmanager
def import_without_collection() -> Iterator[None]:
    """Import large modules without the garbage collector, and exclude them from later collections.

    The collector runs after a number of new objects and visits all loaded modules each time, and again at the
    end of the process. Without it, a run of two steps takes 3.5 s of CPU time instead of 4.5 s (medians of 5
    runs each, interleaved, on 2 cores of an Intel Xeon; torch 2.14.1, wandb 0.31.0).
    """
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()
