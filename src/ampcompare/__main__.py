"""The program `ampcompare`, also as `python -m ampcompare`."""

from __future__ import annotations

import sys

from ampcompare.program.stopping import watch
from ampcompare.tracking.taken import tell


def main() -> None:
    """Begin: a training hears from here on that its machine is taken away, not only once all is imported."""
    if sys.argv[1:2] == ["run"]:
        watch(tell)
    from ampcompare.cli import main as command_line

    command_line()


if __name__ == "__main__":
    main()
