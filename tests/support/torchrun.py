"""Several processes on this machine, as torchrun starts them."""

import os
import subprocess

from support import warm_python
from support.quick import ROOT


def torchrun(processes: int, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    options = ["--standalone", f"--nproc-per-node={processes}"]
    start = [warm_python.python(), "-m", "torch.distributed.run", *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}"}
    done = subprocess.run([*start, *command], capture_output=True, text=True, env=environment)
    assert not check or done.returncode == 0, done.stderr
    return done
