"""Whether a process holds the lock of a file, asked without taking the lock.

Who takes a lock to see whether it is free keeps out, for that moment, the program that needs it.
"""

import fcntl
import os
import struct
import sys
from pathlib import Path

from filelock import FileLock, Timeout

KERNEL_LOCKS = Path("/proc/locks")  # the locks of this machine, on Linux
FLOCK = "@hhqqi"  # C's struct flock: type, whence, start, length, process


def is_locked(file: Path) -> bool:
    """Return whether some process holds the lock of a file (a `filelock.FileLock`).

    Linux tells without a lock being taken. A holder in another container is not seen there. Elsewhere the
    lock is taken for a moment.

    Raises:
        OSError: If the file cannot be opened, such as one of another user.
    """
    if not file.is_file():
        return False
    if sys.platform == "linux":
        return _has_kernel_lock(file) or _has_network_lock(file)
    try:
        with FileLock(file, blocking=False):
            return False
    except Timeout:
        return True


def _has_kernel_lock(file: Path) -> bool:
    """Return whether the kernel lists a lock of the file.

    The inode alone is compared: some file systems (overlayfs, Btrfs) show another device there.
    """
    inode = str(file.stat().st_ino)
    for line in KERNEL_LOCKS.read_text().splitlines():
        words = line.split()  # 1: FLOCK ADVISORY WRITE 1234 fe:00:5907177 0 EOF
        if "FLOCK" in words and "->" not in words and any(word.endswith(f":{inode}") for word in words):
            return True
    return False


def _has_network_lock(file: Path) -> bool:
    """Return whether another machine holds the lock: NFS makes it one of a range of bytes."""
    handle = os.open(file, os.O_RDONLY)
    try:
        asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = fcntl.fcntl(handle, fcntl.F_GETLK, asked)
        return bool(struct.unpack(FLOCK, answer)[0] != fcntl.F_UNLCK)
    finally:
        os.close(handle)
