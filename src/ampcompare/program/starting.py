"""How a program of ours starts: its text in UTF-8, its threads asleep while they wait, its libraries loaded
without the garbage collector.
"""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def use_utf8() -> None:
    """Start this very process again in Python's UTF-8 mode, unless paths and words are UTF-8 already, as they
    are not in bare containers and batch jobs (LC_ALL=C).

    Otherwise a path with a letter beyond ASCII becomes a text that W&B's client cannot send (seen with 0.31).
    What has been typed is handed on byte for byte.
    """
    if sys.getfilesystemencoding().lower().replace("-", "") != "utf8":
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])  # noqa: S606  no shell wanted


def let_threads_sleep() -> None:
    """To be called before PyTorch is loaded, here or in a child, wherever steps are timed beside other work.

    By default its threads spin, and one that another program keeps from its core is waited for by all (two
    cores, a load of 8: 12 s for a step of ResNet50 that takes 1.3 s).
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@contextmanager
def loading(module: str) -> Iterator[None]:
    """Within, a large module is imported for the first time: no garbage is collected, and all there is stays.

    The collector is called by the number of new objects, and would go through everything that is loaded again
    and again: 0.7 of the 3.9 s of CPU time that a tiny run took with PyTorch and W&B's client.
    """
    if module in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()
