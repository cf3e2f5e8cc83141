"""How much of a stranger's file is let into memory."""

from __future__ import annotations

import os

MAX_FILE_BYTES = 64 * 2**20  # one encoded image, or one header of an archive
MAX_IMAGE_PIXELS = 4096 * 4096


def memory_budget_bytes() -> int:
    """What a data set may take: half of the machine's memory (of 8 GiB where it cannot be asked)."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):
        return 4 * 2**30


def gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"
