"""The most memory that a piece of Python takes, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# The most memory of this process and of the largest that it started; on two processors there is one such.
MEASURED = """
import os, resource, sys
from pathlib import Path
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
try:
    {work}
finally:
    # Not ru_maxrss of this process: on Linux it starts with that of the one that launched it.
    lines = Path("/proc/self/status").read_text().splitlines()
    own = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    print(own + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
"""
REPORT = "from ampcompare.cli import main; main(sys.argv[1:])"


def peak_kib(work: str, *words: str, cache: Path) -> tuple[str, int]:
    """What a program prints, and the most memory that its processes had."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED.format(work=work), *words],
        env=os.environ | {"AMPCOMPARE_CACHE": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, int(done.stderr.splitlines()[-1])
