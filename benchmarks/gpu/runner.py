"""Running the parts: one after the other, each within its time and all within the minutes that there are."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu import ROOT
from gpu import parts as plan
from gpu.parts import Part

PACKING_SECONDS = 30
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STATES = "states"
PASSED = "passed"
TO_DO = "to do"


class Told(BaseException):
    """This program was told to end. No Exception: nothing on the way may take it for a fault."""


@contextlib.contextmanager
def ending_on_signals() -> Iterator[None]:
    """The first signal to end raises Told where the program is; those after it are not heard."""

    def on_signal(number: int, frame: object) -> None:
        hear_no_more()
        raise Told(signal.Signals(number).name)

    # A shell's background jobs ignore Ctrl-C; under nohup the end of the terminal is not for this process.
    heard = [n for n in SIGNALS if signal.getsignal(n) is not signal.SIG_IGN]
    before = {n: signal.signal(n, on_signal) for n in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def hear_no_more() -> None:
    """From here on nothing interrupts: what came out is being packed."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@dataclass(frozen=True)
class Budget:
    """How long there is: `minutes` from when it was made, the time to pack what came out taken off."""

    minutes: float
    began: float

    def left(self) -> float:
        return self.minutes * 60 - PACKING_SECONDS - (time.monotonic() - self.began)

    def of(self, part: Part) -> float | None:
        """The seconds that a part gets; None where it cannot end in what is left."""
        left = self.left()
        enough = part.seconds if part.least is None else part.least
        return min(part.seconds, left) if enough <= min(part.seconds, left) else None


def why_not(part: Part, lacking: Mapping[str, str], images: str, out: Path) -> str:
    """What keeps a part from being run, in a line; "" for nothing. `images`: what is lacking of them."""
    found = [lacking[name] for name in part.needs if name in lacking]
    if part.images and images:
        found.append(images)
    if found:
        return f"lacks {', '.join(found)}"
    if part.after and (state := read_state(part.after, out)["state"]) != PASSED:
        return f"waits for {part.after} ({state})"
    return f"waits {part.waits}" if part.waits else ""


def run_part(part: Part, out: Path, env: Mapping[str, str], seconds: float) -> str:
    """Run one part for so long at most, its end included; returns its state, which its state file holds, too.

    `passed`, `failed (...)`, `over time (...)`, or `cut short (...)` of one that goes on at the next start.
    What it started ends with it: a measurement that went on would spoil the next one. Told comes through, the
    state kept.
    """
    began = time.monotonic()
    state = "cut short (after {} s)" if part.least is not None else "interrupted (after {} s)"
    with (out / f"{part.name}.log").open("a" if part.least is not None else "w") as log:
        child = subprocess.Popen(
            part.command,
            cwd=ROOT,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=dict(env),
        )
        try:
            code = child.wait(max(0.0, seconds - 2 * plan.GRACE_SECONDS))
            state = PASSED if code == 0 else f"failed (exit code {code})"
        except subprocess.TimeoutExpired:
            if part.least is None:
                state = f"over time ({seconds:.0f} s)"
        finally:
            try:
                end(child)
            except Told:
                end(child)
                raise
            finally:
                taken = round(time.monotonic() - began)
                state = state.format(taken)
                write_state(part.name, out, state, taken)
    return state


def end(part: subprocess.Popen[bytes]) -> None:
    """End a part with all that it started; a training saves its state first, a benchmark its figures."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background jobs ignore the first
        if part.poll() is None:
            part.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                part.wait(plan.GRACE_SECONDS)
    with contextlib.suppress(ProcessLookupError):  # nothing of it is left
        os.killpg(part.pid, signal.SIGKILL)
    part.wait()


def write_state(name: str, out: Path, state: str, seconds: int | str = "") -> None:
    path = out / STATES / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"state": state, "seconds": seconds}))


def read_state(name: str, out: Path) -> dict[str, Any]:
    """What the last run of a part came to."""
    path = out / STATES / f"{name}.json"
    return json.loads(path.read_text()) if path.is_file() else {"state": TO_DO, "seconds": ""}


def write_summary(names: list[str], out: Path) -> bool:
    """Write summary.md; whether every part passed."""
    states = {name: read_state(name, out) for name in names}
    lines = [f"| {name} | {state['state']} | {state['seconds']} |" for name, state in states.items()]
    head = "# GPU check\n\n| part | state | seconds |\n|---|---|---:|\n"
    (out / "summary.md").write_text(head + "\n".join(lines) + "\n")
    return all(state["state"] == PASSED for state in states.values())
