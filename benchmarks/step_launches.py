"""Count what a captured training step launches and moves under each backend, into
benchmarks/results/step_launches.*.

    python benchmarks/step_launches.py

Needs no GPU and takes about a minute. A test compares the files with what the code gives: whoever changes the
launches of a step runs this, and the change is in the diff.
"""

from __future__ import annotations

import json
from pathlib import Path

from rehearsal.launches import as_markdown, count_all

OUT = Path(__file__).resolve().parent / "results"


def main() -> None:
    found = count_all()
    (OUT / "step_launches.json").write_text(json.dumps(found, indent=1) + "\n")
    text = as_markdown(found)
    (OUT / "step_launches.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
