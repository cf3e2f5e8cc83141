"""Loading libraries without the garbage collector."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


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
