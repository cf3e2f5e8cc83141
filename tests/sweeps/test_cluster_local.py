"""`ampcompare sweep --cluster local`: how it is stopped, killed and started again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable

import pytest
from support.place import Place, is_alive
from support.quick import ROOT

XS = {"x": {"values": [1, 2]}, "hold": {"value": "all"}}
# Before what it does otherwise, it notes that it was told to end.
TELLS = """
import json, os, signal, sys
def told(number, frame):
    with open(os.path.join(os.environ["WANDB_DIR"], "events.jsonl"), "a") as file:
        file.write(json.dumps({"event": "told", "number": number}) + "\\n")
    sys.exit(5)
signal.signal(signal.SIGTERM, told)
"""


def started(place: Place) -> subprocess.Popen[str]:
    """The command, with a group of its own, as in a terminal."""
    return subprocess.Popen(
        place.command("--cluster", "local"),
        cwd=place.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def programs(place: Place) -> list[int]:
    return [event["pid"] for event in place.events("began")]


def ends(place: Place) -> list[str]:
    return sorted(event["given"]["x"] for event in place.events("ended"))


@pytest.mark.parametrize("send", [os.kill, os.killpg])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR2])
def test_a_signal_ends_the_runs_in_order_and_it_says_how_to_go_on(
    place: Place, send: Callable[[int, int], None], number: signal.Signals
):
    program = place.folder / "program.py"
    program.write_text(TELLS + program.read_text())
    place.file(parameters=XS)
    place.hold()
    process = started(place)
    place.wait_for("began", 2)
    send(process.pid, number)
    said, _ = process.communicate()
    assert process.returncode == 128 + number, said
    assert re.search(r"; go on with: .*ampcompare sweep sweep.yaml output_dir=\S+ --cluster local\n", said)
    assert (len(place.events("told")), any(map(is_alive, programs(place)))) == (2, False)
    assert not list((place.out / "cluster").glob("stop-*"))
    place.release()
    code, said = place.sweep("--cluster", "local")
    assert (code, ends(place)) == (0, ["1", "2"]), said


def test_a_signal_while_the_runs_are_being_started_is_not_lost(place: Place):
    place.file(parameters=XS)
    place.hold()
    place.before = """
import os, signal
from submitit import LocalExecutor
submit = LocalExecutor.submit
def signalled(*words):
    job = submit(*words)
    os.killpg(0, signal.SIGINT)
    return job
LocalExecutor.submit = signalled
"""
    process = started(place)
    said, _ = process.communicate()
    assert process.returncode == 130, said
    assert "stopped: finished runs stay finished" in said
    assert not any(map(is_alive, programs(place)))


def test_a_second_signal_ends_at_once_what_does_not_listen(place: Place):
    program = place.folder / "program.py"
    program.write_text(TELLS.replace("sys.exit(5)", "pass") + program.read_text())
    place.file(parameters=XS)
    place.hold()
    place.before = "from ampcompare.sweeps import run; run.SAME_REQUEST_SECONDS = 0"
    process = started(place)
    place.wait_for("began", 2)
    process.send_signal(signal.SIGINT)
    place.wait_for("told", 2)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate()
    assert process.returncode == 130, said
    assert not any(map(is_alive, programs(place)))


def test_the_runs_of_a_killed_command_end_before_the_next_begins_them(place: Place):
    place.file(parameters=XS)
    place.hold()
    process = started(place)
    place.wait_for("began", 2)
    process.kill()
    process.wait()
    first = programs(place)
    again = place.start("--cluster", "local")
    place.wait_for("began", 4)
    assert not any(map(is_alive, first))
    place.release()
    said, _ = again.communicate()
    assert (again.returncode, ends(place)) == (0, ["1", "2"]), said


def test_gpus_that_have_no_number_are_handed_on(place: Place):
    place.file(parameters={"x": {"values": [1, 2]}})
    place.before = (
        "from ampcompare.sweeps.cluster import local; local.visible_gpus = lambda: ['MIG-a', 'GPU-b']"
    )
    code, said = place.sweep("--cluster", "local")
    assert code == 0, said
    given = [event["environment"]["CUDA_VISIBLE_DEVICES"] for event in place.events("began")]
    assert sorted(given) == ["GPU-b", "MIG-a"]
