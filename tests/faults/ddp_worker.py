"""run_experiment.py under torchrun; process 1 kills itself at step $KILL_AT of the first start."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import run_experiment
from ampcompare.fit import Fit
from ampcompare.stopping import leave

taken = Fit._log


def log(self: Fit, *args: object) -> None:
    mine = os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if mine and self.step >= int(os.environ.get("KILL_AT", sys.maxsize)):
        os.kill(os.getpid(), signal.SIGKILL)
    taken(self, *args)  # type: ignore[arg-type]


Fit._log = log  # type: ignore[method-assign]
leave(run_experiment.main(sys.argv[1:]))
