"""One training of the demo, as `ampcompare run` but for the last lines: what to do with one record alone."""

from __future__ import annotations

import sys

from ampcompare.entrypoint import main
from ampcompare.program.utf8 import use_utf8

if __name__ == "__main__":
    use_utf8()
    raise SystemExit(main(sys.argv[1:], "ampcompare demo", brief=True))
