"""run_experiment.py that waits at the steps $HELD_AT (60) while the file $HOLD exists.

A request to stop ends the wait too. While it waits, a file $HOLD-STEP exists. Without $HOLD it becomes
run_experiment.py itself.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

if "HOLD" not in os.environ:
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import run_experiment
from ampcompare.runtime.signals import StopRequest, exit_process
from ampcompare.training.display import TrainingDisplay

HELD_AT = [int(step) for step in os.environ.get("HELD_AT", "60").split(",")]
asked: list[str] = []
shown, ask = TrainingDisplay.step, StopRequest.request


def step(self: TrainingDisplay, step: int) -> None:
    shown(self, step)
    while step in HELD_AT and Path(os.environ["HOLD"]).exists() and not asked:
        Path(f"{os.environ['HOLD']}-{step}").touch()
        time.sleep(0.05)


def note(self: StopRequest, reason: str, number: int) -> None:
    asked.append(reason)
    ask(self, reason, number)


def main(words: list[str]) -> Any:
    TrainingDisplay.step = step  # type: ignore[method-assign]
    StopRequest.request = note  # type: ignore[method-assign]
    return run_experiment.main(words)


if __name__ == "__main__":
    exit_process(main(sys.argv[2:]))  # the first is the sweep's program
