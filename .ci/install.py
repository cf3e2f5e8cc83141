"""A pip that takes minutes, made to say what it does: `python install.py WHAT -- COMMAND`.

WHAT is said first. In a terminal one line ticks; elsewhere a line comes every half minute; in CI (`CI` is
set) the first and the last line are all. What pip warns of is passed on, and where it fails its last lines.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time

UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9}
SIZE = re.compile(r"\(([\d.]+) (kB|MB|GB)\)")
# `Downloading torch-2.14.1-cp311-....whl (532.6 MB)`: a name or an address, the size where it is known.
FETCHED = r"(?:Downloading|Using cached|Processing)"
PACKAGE = re.compile(rf"{FETCHED} (?:\S*/)?([^\s/]+?)-\d[^\s/]*\.(?:whl|tar\.gz)(?: |$)")
LAST_LINES = 30  # of pip's, where it fails
MOST_WARNINGS = 3
TICK, SELDOM = 1.0, 30.0  # seconds, in a terminal and elsewhere


class Progress:
    """What pip's lines say of how far it is."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.doing = "looking for packages"
        self.bytes, self.packages = 0.0, 0

    def add(self, line: str) -> None:
        """Take note of a line."""
        self.lines.append(line)
        text = line.strip()
        size = SIZE.search(text)
        if found := PACKAGE.match(text):
            self.bytes += float(size[1]) * UNITS[size[2]] if size else 0.0
            self.packages += 1
            self.doing = f"fetching {found[1]} {size[0] if size else ''}".rstrip()
        elif text.startswith("Installing collected packages"):
            self.doing = f"unpacking {plural(text.count(',') + 1)}"
        elif text.startswith(("Obtaining ", "Installing build", "Preparing ", "Building ")):
            self.doing = "preparing ampcompare"
        elif text.startswith(("Collecting ", "Requirement already")) and not self.packages:
            name = text.removeprefix("Requirement already satisfied:").removeprefix("Collecting ").strip()
            self.doing = f"looking for {re.split('[^A-Za-z0-9_.-]', name)[0]}"

    def at(self, seconds: float) -> str:
        """`1:05  1.2 GB in 34 packages, downloading torch (532.6 MB)`."""
        so_far = f"{self.bytes / 1e9:.1f} GB, {plural(self.packages)}, " if self.packages else ""
        return f"{clock(seconds)}  {so_far}{self.doing}"

    def warnings(self) -> list[str]:
        """What pip wants to be read; of many the first."""
        found = [line for line in self.lines if line.lstrip().startswith(("WARNING:", "DEPRECATION:"))]
        more = [f"(and {len(found) - MOST_WARNINGS} more of pip's warnings)"]
        return found if len(found) <= MOST_WARNINGS else found[:MOST_WARNINGS] + more


def plural(packages: int) -> str:
    """1 package, 2 packages."""
    return f"{packages} package{'' if packages == 1 else 's'}"


def clock(seconds: float) -> str:
    """1:05."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def run(what: str, command: list[str]) -> int:
    """Run the command under a line that ticks; returns its exit code."""
    print(what, flush=True)
    began, progress, ended = time.monotonic(), Progress(), threading.Event()
    in_terminal, in_ci = sys.stdout.isatty(), bool(os.environ.get("CI"))

    def tick() -> None:
        while not ended.wait(TICK if in_terminal else SELDOM):
            line = progress.at(time.monotonic() - began)
            print(f"\r\x1b[K  {line[:76]}" if in_terminal else f"  {line}", end="" if in_terminal else "\n")
            sys.stdout.flush()

    pip = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    ticking = threading.Thread(target=tick)
    if in_terminal or not in_ci:
        ticking.start()
    try:
        for line in pip.stdout or ():
            progress.add(line.rstrip("\n"))
        code = pip.wait()
    except KeyboardInterrupt:  # pip hears it too
        pip.wait()
        code = 130
    finally:
        ended.set()
        if ticking.is_alive():
            ticking.join()
    print("\r\x1b[K" if in_terminal else "", end="")
    for line in progress.lines[-LAST_LINES:] if code not in (0, 130) else progress.warnings():
        print(line)
    took = clock(time.monotonic() - began)
    print(
        f"installed in {took}" if code == 0 else f"not installed (after {took}, exit code {code})", flush=True
    )
    return code


if __name__ == "__main__":
    split = sys.argv.index("--")
    sys.exit(run(" ".join(sys.argv[1:split]), sys.argv[split + 1 :]))
