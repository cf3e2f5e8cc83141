"""A program that is started and waited for: what ends the one ends the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.wandb_server.clients import wait_until

from ampcompare.program.child import see_through

# It ends in order, and says so in a file; until then it says where it is.
ORDERLY = """
import os, pathlib, signal, sys, time
def end(number, frame):
    pathlib.Path(sys.argv[1], "heard").write_text(str(int(number)))
    raise SystemExit(128 + number)
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, end)
pathlib.Path(sys.argv[1], "child.new").write_text(str(os.getpid()))
pathlib.Path(sys.argv[1], "child.new").rename(pathlib.Path(sys.argv[1], "child"))
time.sleep(600)
"""
PARENT = """
import os, sys
from ampcompare.program import child
raise SystemExit(child.see_through([sys.executable, "-c", sys.argv[1], sys.argv[2]], os.environ))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_to_the_parent_alone_ends_both(tmp_path: Path, number: signal.Signals):
    words = [sys.executable, "-c", PARENT, ORDERLY, str(tmp_path)]
    ready = tmp_path / "child"

    def hears() -> None:  # the tests may run under nohup
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    parent = subprocess.Popen(words, preexec_fn=hears, stderr=subprocess.PIPE)
    try:
        wait_until(ready.exists)
        parent.send_signal(number)
        _, errors = parent.communicate()
        assert parent.returncode == 128 + number
        assert errors == b""
        assert (tmp_path / "heard").read_text() == str(int(number))
        with pytest.raises(ProcessLookupError):
            os.kill(int(ready.read_text()), 0)
    finally:
        parent.kill()


def test_exit_codes():
    assert see_through([sys.executable, "-c", "raise SystemExit(7)"], os.environ) == 7
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert see_through([sys.executable, "-c", killed], os.environ) == 137
