"""run_experiment.py that waits at the steps $HELD_AT (60) while the file $HOLD exists.

A request to stop ends the wait too. While it waits, a file $HOLD-STEP exists. Without $HOLD it becomes
run_experiment.py itself.
"""

import os
import sys
import time
from pathlib import Path

if "HOLD" not in os.environ:
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import run_experiment
from ampcompare.runtime.signals import StopRequest, exit_process

HELD_AT = [int(step) for step in os.environ.get("HELD_AT", "60").split(",")]
stop = StopRequest()


def hold(step: int) -> None:
    while step in HELD_AT and Path(os.environ["HOLD"]).exists() and not stop.is_made():
        Path(f"{os.environ['HOLD']}-{step}").touch()
        time.sleep(0.05)


if __name__ == "__main__":
    # The first argument is the sweep's program.
    exit_process(run_experiment.main(sys.argv[2:], stop=stop, on_step=hold))
