"""A locale that is not UTF-8, as in bare containers and batch jobs (LC_ALL=C)."""

from __future__ import annotations

import os
import sys


def use_utf8() -> None:
    """Start this very process again in Python's UTF-8 mode, unless paths and words are UTF-8 already.

    Otherwise a path with a letter beyond ASCII becomes a text that W&B's client cannot send (seen with 0.31).
    What has been typed is handed on byte for byte.
    """
    if sys.getfilesystemencoding().lower().replace("-", "") != "utf8":
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])  # noqa: S606  no shell wanted
