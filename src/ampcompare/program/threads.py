"""Threads of PyTorch's that sleep while they wait for each other."""

from __future__ import annotations

import os


def let_threads_sleep() -> None:
    """To be called before PyTorch is loaded, here or in a child, wherever steps are timed beside other work.

    By default they spin, and a thread that another program keeps from its core is waited for by all (two
    cores, a load of 8: 12 s for a step of ResNet50 that takes 1.3 s).
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
