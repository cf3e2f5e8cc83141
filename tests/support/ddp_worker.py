"""run_experiment.py under torchrun, with processes that kill themselves.

$KILLS has a word for each start, `RANK:WHERE:STEP` or `-`: which process ends, where, and from which step on.
The places are `step` (after a step), `evaluate` (in an evaluation) and `write` (as a file is written). With
`RANK:WHERE:STEP:SIGUSR1` it is sent that signal instead. Each process says its exit code.
"""

import os
import signal
import sys
from pathlib import Path

from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import run_experiment
from ampcompare.runtime.signals import exit_process
from support.hooks import before_forward

kills = os.environ.get("KILLS", "").split() + ["-"] * 9
rank, *rest = kills[int(os.environ["TORCHELASTIC_RESTART_COUNT"])].split(":")
place, at, name = "", 0, "SIGKILL"
if rank == os.environ["RANK"]:
    place, at, name = rest[0], int(rest[1]), rest[2] if rest[2:] else name
now = 0  # the step that was taken last
write_out = os.fsync


def be_at(here: str) -> None:
    """Get the signal, if this is its place and time."""
    if here == place and now >= at:
        os.kill(os.getpid(), signal.Signals[name])


def on_step(step: int) -> None:
    global now
    now = step
    be_at("step")


def on_forward(network: nn.Module, images: Tensor) -> None:
    if not network.training:
        be_at("evaluate")


def on_write(descriptor: int) -> None:
    be_at("write")
    write_out(descriptor)


# What the process writes is in a file then, and not yet under its name.
os.fsync = on_write
with before_forward(on_forward):
    code = run_experiment.main(sys.argv[1:], on_step=on_step)
print(f"process {os.environ['RANK']} ends with {code}", flush=True)
exit_process(code)
