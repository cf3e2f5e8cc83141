#!/usr/bin/env python3
"""Times that the documentation promises, each beside its aim: run it on a machine that does nothing else.

    python benchmarks/reliability_limits.py [help] [report] [killed] [stopped]

No test judges by the clock; this does, and exits with 1 where an aim was missed. Without names it measures
all.
"""

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src"), str(ROOT / "tests")]

from support import faults  # noqa: E402
from support.quick import QUICK  # noqa: E402
from support.wandb_server import Server  # noqa: E402
from support.wandb_server.clients import environment, wait_until  # noqa: E402

Figure = tuple[str, float, float]  # what, seconds, the aim in seconds
ENDLESS = (*QUICK, "epochs=100000", "eval.every=1000", "diagnostics.every=null")


def seconds_of(*command: object, **env: str) -> float:
    """Wall clock of a command that must succeed."""
    began = time.perf_counter()
    words = [sys.executable, *map(str, command)]
    subprocess.run(words, cwd=ROOT, env={**os.environ, **env}, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def helps(folder: Path) -> Iterator[Figure]:
    for what, words, aim in (
        ("run_experiment.py --help", ["run_experiment.py"], 0.5),
        ("ampcompare --help", ["-m", "ampcompare.cli"], 1.5),
    ):
        yield what, statistics.median(seconds_of(*words, "--help") for _ in range(5)), aim


def report(folder: Path) -> Iterator[Figure]:
    from report.test_scale import write_many_runs

    write_many_runs(folder / "many")
    words = ["-m", "ampcompare.cli", "report", folder / "many", "--out", folder / "out"]
    yield "report of 200 runs of 4,000 rows", seconds_of(*words), 20


def killed(folder: Path) -> Iterator[Figure]:
    """The age of the newest row on the disk when a run and W&B's client are killed; the worst of five."""
    from ampcompare.runs import load_runs

    ages = []
    for number in range(5):
        out = folder / str(number)
        words = (*ENDLESS, "log.every=2", f"output_dir={out}")
        faults.run(*words, kill_later=2 + number / 3, all=True)
        ended = time.time()
        (record,) = load_runs([out])
        ages.append(ended - record.history["_timestamp"].max())
    yield "age of the newest row on the disk at a kill", max(ages), 2


def stopped(folder: Path) -> Iterator[Figure]:
    """From a batch system's signal, and from a second Ctrl-C, to the end of a run whose server hangs."""
    for what, numbers, aim in (
        ("SIGUSR1 to the end, the server hanging", [signal.SIGUSR1], 10),
        ("SIGTERM to the end, the server hanging", [signal.SIGTERM], 10),
        ("second Ctrl-C to the end, the server hanging", [signal.SIGINT, signal.SIGINT], 3),
    ):
        server, sent = Server(), list[float]()

        def act(pid: int, server: Server = server, numbers: list[int] = numbers, sent: list = sent) -> None:
            wait_until(lambda: any(run.history for run in server.runs.values()))
            server.hang()
            for number in numbers:
                os.kill(pid, number)
                sent.append(time.monotonic())
                time.sleep(0.5 if len(sent) < len(numbers) else 0)

        words = [word for word in ENDLESS if not word.startswith("wandb.")]
        out = folder / what.partition(" ")[0]
        out.mkdir()
        faults.run(
            *words,
            "wandb.mode=online",
            f"output_dir={out}",
            env=environment(server, out),
            begun=lambda pid, act=act: threading.Thread(target=act, args=(pid,), daemon=True).start(),
        )
        yield what, time.monotonic() - sent[-1], aim
        server.close()


PARTS: dict[str, Callable[[Path], Iterator[Figure]]] = {
    "help": helps,
    "report": report,
    "killed": killed,
    "stopped": stopped,
}


def main(names: list[str]) -> int:
    if unknown := [name for name in names if name not in PARTS]:
        print(f"error: {unknown[0]!r}: expected some of {', '.join(PARTS)}", file=sys.stderr)
        return 2
    missed = 0
    print("| what | s | aim, s |\n| --- | ---: | ---: |")
    for name in names or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            for what, seconds, aim in PARTS[name](Path(folder)):
                missed += seconds > aim
                print(f"| {what} | {seconds:.2f} | {aim:g} |", flush=True)
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
